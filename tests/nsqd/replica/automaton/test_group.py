"""What etcd holds of a group is read back as it was written, and nothing else is believed."""

from __future__ import annotations

import pytest

from nsquark.nsqd.replica.automaton.group import (
    BadGroup,
    GroupState,
    MemberKey,
    PrimaryKey,
    check_name,
    member_of,
)


def test_values_come_back_as_they_were_packed() -> None:
    state = GroupState(7, 3, "a@1", ("a@1", "b@2f"))
    assert GroupState.parse(state.pack()) == state
    primary = PrimaryKey("a@1", 3, {"http": "h:4151"})
    assert PrimaryKey.parse(primary.pack()) == primary
    member = MemberKey("b@2f", False, ((1, 5), (3, 2)), {"tcp": "h:4150"})
    assert MemberKey.parse(member.pack()) == member
    assert member_of("b@2f") == "b"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"node":1,"term":1,"primary":"a@1","isr":[]}',
        b'{"node":1,"term":1,"primary":"a@1","isr":["a@1"' + b',"a@1"' * 16 + b"]}",
        b'{"node":1,"term":-1,"primary":"a@1","isr":["a@1"]}',
        b'{"node":1,"term":true,"primary":"a@1","isr":["a@1"]}',
        b'{"node":1,"term":1,"primary":"a","isr":["a@1"]}',
        b'{"node":1,"term":1,"primary":"a@1","isr":["a@1\\n"]}',
        b'{"node":1,"term":1,"primary":"a@1","isr":[1]}',
    ],
)
def test_a_state_that_nsqd_does_not_write_is_refused(value: bytes) -> None:
    with pytest.raises(BadGroup):
        GroupState.parse(value)


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b'{"incarnation":"a@1"}',
        b'{"incarnation":"a@1","settled":true,"progress":[1]}',
        b'{"incarnation":"a@1","settled":true,"progress":[["1",2]]}',
        b'{"incarnation":"a@1","settled":true,"addresses":[]}',
        b'{"incarnation":"a@1","settled":true,"addresses":{"tcp":1}}',
    ],
)
def test_a_member_that_nsqd_does_not_write_is_refused(value: bytes) -> None:
    with pytest.raises(BadGroup):
        MemberKey.parse(value)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a@b", "a\n", "x" * 65])
def test_a_name_that_no_key_can_hold_is_refused(name: str) -> None:
    with pytest.raises(BadGroup):
        check_name(name)
