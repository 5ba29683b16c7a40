"""How long a message may be: as nsqd says, or the config, or without a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.client import Config, Producer
from nsquark.client.producer.size_limits import SizeLimits, split_size
from nsquark.errors import UsageError
from nsquark.wire.identify import IdentifyResponse
from tests.client.producer.publishing import CONFIG, bodies, topic
from tests.client.scripted import ScriptedNsqd
from tests.daemon import Nsqd

pytestmark = pytest.mark.usefixtures("tidy")


async def test_an_nsqd_that_takes_more_gets_more(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", "--max-msg-size=3000000", "--max-body-size=9000000").start() as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", b"x" * 2_000_000)
            await producer.publish_many("t", [b"x" * 2_500_000] * 3)
            await producer.publish_nowait("t", b"x" * 3_000_000)
            for call in (producer.publish, producer.publish_nowait):
                with pytest.raises(UsageError, match=r"3000001 bytes; .* takes 1 to 3000000"):
                    await call("t", b"x" * 3_000_001)  # type: ignore[operator]
            with pytest.raises(UsageError, match=r"an MPUB to .* takes 9000000"):
                await producer.publish_many("t", [b"x" * 2_900_000] * 4)
            await producer.publish_many("t", [b"x" * 2_900_000] * 4, split=True)
        stats = await topic(nsqd, "t")
        assert stats["message_count"] == 9


async def test_the_first_publish_waits_for_the_limit() -> None:
    async with ScriptedNsqd({"max_msg_size": 100}) as nsqd, Producer(nsqd.address) as producer:
        with pytest.raises(UsageError, match="101 bytes"):
            await producer.publish("t", b"x" * 101)
        with pytest.raises(UsageError, match="101 bytes"):
            await producer.publish_many("t", [b"x", b"x" * 101])
        await producer.publish("t", b"x" * 100)
        assert bodies(nsqd) == [b"x" * 100]


async def test_a_list_is_split_by_what_nsqd_takes() -> None:
    async with ScriptedNsqd({"max_body_size": 300}) as nsqd, Producer(nsqd.address) as producer:
        await producer.publish_many("t", [b"x" * 96] * 5, split=True)
        assert [len(body) for body in nsqd.peers[0].bodies[1:]] == [204, 204, 104]


async def test_an_nsqd_that_does_not_tell_decides_itself() -> None:
    async with ScriptedNsqd() as nsqd, Producer(nsqd.address, config=CONFIG) as producer:
        await producer.publish("t", b"x" * 6_000_000)
        assert [len(body) for body in bodies(nsqd)] == [6_000_000]


def test_the_lower_limit_holds() -> None:
    told = IdentifyResponse(max_msg_size=10, max_body_size=100)
    low, high = SizeLimits(Config(max_msg_size=5), told), SizeLimits(Config(max_msg_size=50), told)
    assert (low.max_msg_size, high.max_msg_size, high.unchecked) == (5, 10, 10)
    assert split_size(Config(), [low, SizeLimits(Config(), IdentifyResponse())]) == 100
    assert split_size(Config(), []) == 5 << 20
    assert split_size(Config(max_body_size=7), []) == 7
