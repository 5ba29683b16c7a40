"""The transactions of a group, carried out by a model of etcd and by a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nsquark.nsqd.replica.automaton.actions import Acquisition, Campaign, ChangeIsr, Reclaim, Resign
from nsquark.nsqd.replica.automaton.group import BadGroup, GroupState, GroupView, MemberKey
from nsquark.nsqd.replica.etcd.client import EtcdClient
from nsquark.nsqd.replica.etcd.group_keys import GroupKeys
from nsquark.nsqd.replica.etcd.transactions import Answer, KeyValue, Transaction
from reliability.replicas.etcd_model import EtcdModel
from tests.nsqd.replica.etcd_process import etcd, why_not

KEYS = GroupKeys("g", "a", {"tcp": "h:4150"})
FOUNDED = GroupState(1, 0, "a@1", ("a@1", "b@1"))
LED = GroupState(1, 1, "a@1", ("a@1", "b@1"))

Store = tuple[
    Callable[[Transaction], Awaitable[Answer]],
    Callable[[], Awaitable[GroupView]],
    Callable[[], Awaitable[int]],
]


@pytest.fixture(params=["model", "etcd"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """How to commit, to read the group, and to get a lease."""
    if request.param == "etcd":
        if reason := why_not():
            pytest.skip(reason)
        with etcd(tmp_path / "data") as endpoint:
            client = EtcdClient([endpoint], timeout=30.0)

            async def read() -> GroupView:
                return KEYS.parse(await client.range(KEYS.root))

            async def grant() -> int:
                return await client.grant(60)

            yield client.commit, read, grant
            client.close()
        return
    model = EtcdModel(60)

    async def commit(transaction: Transaction) -> Answer:
        return model.commit(transaction)

    async def read_model() -> GroupView:
        return KEYS.parse(model.range(KEYS.root))

    async def grant_by_model() -> int:
        return model.grant(0)

    yield commit, read_model, grant_by_model


async def test_a_group_from_its_foundation_to_a_handover(store: Store) -> None:
    commit, read, grant = store
    assert (await commit(KEYS.bootstrap(FOUNDED))).succeeded
    assert not (await commit(KEYS.bootstrap(LED))).succeeded  # it is founded once
    lease = await grant()
    opening = KEYS.open_session(MemberKey("a@1", True), lease, 0)
    assert (await commit(opening)).succeeded
    assert not (await commit(opening)).succeeded  # another process of the name would not take the key
    seen = await read()
    assert seen.state == FOUNDED
    assert seen.primary is None
    assert seen.members == {"a": MemberKey("a@1", True)}
    assert seen.member_leases == {"a": lease}

    campaign = Campaign(1, lease, Acquisition.CAMPAIGN, seen, LED)
    won = await commit(KEYS.campaign(campaign))
    assert won.succeeded
    again = await commit(KEYS.campaign(campaign))  # the same request, held up on its way
    assert not again.succeeded
    view = KEYS.parse(again)
    assert view.state == LED
    assert view.state_revision == view.primary_revision == won.revision
    assert view.primary is not None
    assert view.primary.addresses == {"tcp": "h:4150"}

    smaller = replace(LED, isr=("a@1",))
    changed = await commit(KEYS.change_isr(ChangeIsr(2, won.revision, smaller, True)))
    assert changed.succeeded
    assert not (await commit(KEYS.change_isr(ChangeIsr(3, won.revision, LED, False)))).succeeded
    assert (await commit(KEYS.reclaim(Reclaim(4, lease, changed.revision, smaller)))).succeeded
    assert not (await commit(KEYS.resign(Resign(5, won.revision)))).succeeded
    assert (await commit(KEYS.resign(Resign(6, changed.revision)))).succeeded
    assert (await read()).primary is None


async def test_a_process_whose_session_is_over_cannot_campaign(store: Store) -> None:
    commit, read, grant = store
    await commit(KEYS.bootstrap(FOUNDED))
    older, newer = await grant(), await grant()
    opened = await commit(KEYS.open_session(MemberKey("a@1", True), older, 0))
    assert (await commit(KEYS.open_session(MemberKey("a@1", True), newer, opened.revision))).succeeded
    assert not (await commit(KEYS.announce(MemberKey("a@1", False), older))).succeeded
    campaign = Campaign(1, older, Acquisition.CAMPAIGN, await read(), LED)
    assert not (await commit(KEYS.campaign(campaign))).succeeded
    assert (await commit(KEYS.campaign(replace(campaign, lease=newer)))).succeeded


async def test_a_salvage_fails_when_a_member_has_changed(store: Store) -> None:
    commit, read, grant = store
    await commit(KEYS.bootstrap(FOUNDED))
    other = GroupKeys("g", "b")
    mine, theirs = await grant(), await grant()
    await commit(KEYS.open_session(MemberKey("a@2", True), mine, 0))
    await commit(other.open_session(MemberKey("b@2", True), theirs, 0))
    seen = await read()
    await commit(other.announce(MemberKey("b@2", True, ((1, 9),)), theirs))
    salvage = Campaign(1, mine, Acquisition.SALVAGE, seen, GroupState(1, 1, "a@2", ("a@2",)))
    assert not (await commit(KEYS.campaign(salvage))).succeeded
    assert (await commit(KEYS.campaign(replace(salvage, seen=await read())))).succeeded


def test_a_member_under_another_s_key_is_refused() -> None:
    lying = KeyValue(KEYS.member("b"), MemberKey("a@1", True).pack(), 3)
    with pytest.raises(BadGroup, match="another member"):
        KEYS.view([lying], 3)


@pytest.mark.parametrize("group", ["", "a/b"])
def test_a_group_has_a_name_that_fits_a_key(group: str) -> None:
    with pytest.raises(BadGroup):
        GroupKeys(group, "a")
