"""statsd: every key in NSQ's order, counters as differences, whole lines per datagram."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsquark.nsqd.stats import statsd
from nsquark.nsqd.stats.statsd import StatsdLines, pack
from tests.nsqd.api import Api, running

MEMORY = [
    "mem.heap_objects", "mem.heap_idle_bytes", "mem.heap_in_use_bytes", "mem.heap_released_bytes",
    "mem.gc_pause_usec_100", "mem.gc_pause_usec_99", "mem.gc_pause_usec_95", "mem.next_gc_bytes",
]  # fmt: skip


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(
        tmp_path, statsd_prefix="n", statsd_mem_stats=False, e2e_processing_latency_percentile=[0.999, 0.5]
    ) as api:
        yield api


def collect(lines: StatsdLines) -> dict[str, str]:
    told = [line.decode() for line in lines.collect()]
    assert all(line.startswith("n.") and line.endswith("\n") for line in told)
    return dict(line[2:-1].split(":", 1) for line in told)


async def test_every_key_in_order(api: Api) -> None:
    await api.done("/topic/create?topic=b")
    await api.done("/mpub?topic=a.b%23ephemeral", b"one\nthree")
    await api.done("/channel/create?topic=a.b%23ephemeral&channel=ch")
    told = collect(StatsdLines(api.broker))
    assert list(told.items()) == [
        ("topic.a.b#ephemeral.message_count", "2|c"),
        ("topic.a.b#ephemeral.message_bytes", "8|c"),
        ("topic.a.b#ephemeral.depth", "0|g"),
        ("topic.a.b#ephemeral.backend_depth", "0|g"),
        ("topic.a.b#ephemeral.e2e_processing_latency_100", "0|g"),
        ("topic.a.b#ephemeral.e2e_processing_latency_50", "0|g"),
        ("topic.a.b#ephemeral.channel.ch.message_count", "2|c"),
        ("topic.a.b#ephemeral.channel.ch.depth", "2|g"),
        ("topic.a.b#ephemeral.channel.ch.backend_depth", "0|g"),
        ("topic.a.b#ephemeral.channel.ch.in_flight_count", "0|g"),
        ("topic.a.b#ephemeral.channel.ch.deferred_count", "0|g"),
        ("topic.a.b#ephemeral.channel.ch.requeue_count", "0|c"),
        ("topic.a.b#ephemeral.channel.ch.timeout_count", "0|c"),
        ("topic.a.b#ephemeral.channel.ch.clients", "0|g"),
        ("topic.a.b#ephemeral.channel.ch.e2e_processing_latency_100", "0|g"),
        ("topic.a.b#ephemeral.channel.ch.e2e_processing_latency_50", "0|g"),
        ("topic.b.message_count", "0|c"),
        ("topic.b.message_bytes", "0|c"),
        ("topic.b.depth", "0|g"),
        ("topic.b.backend_depth", "0|g"),
    ]


async def test_counters_are_differences(api: Api) -> None:
    lines = StatsdLines(api.broker)
    client = await api.client()
    await client.sub("t", "ch", rdy=1)
    for number, (published, requeued) in enumerate([(3, 1), (2, 0), (0, 0)]):
        if published:
            await api.done("/mpub?topic=t", b"x\n" * published)
        for _ in range(requeued):
            client.req(await client.message())
            await client.caught_up()
        told = collect(lines)
        assert told["topic.t.message_count"] == f"{published}|c", number
        assert told["topic.t.message_bytes"] == f"{published}|c"
        assert told["topic.t.channel.ch.message_count"] == f"{published}|c"
        assert told["topic.t.channel.ch.requeue_count"] == f"{requeued}|c"


async def test_a_topic_that_is_created_again_starts_from_nothing(api: Api) -> None:
    lines = StatsdLines(api.broker)
    await api.done("/mpub?topic=t", b"a\nb")
    collect(lines)
    await api.done("/topic/delete?topic=t")
    await api.done("/mpub?topic=t", b"a\nb\nc")
    assert collect(lines)["topic.t.message_count"] == "3|c"


async def test_what_is_ephemeral_can_be_left_out(api: Api) -> None:
    api.broker.options.statsd_exclude_ephemeral = True
    for topic in ("a", "b%23ephemeral"):
        await api.done(f"/topic/create?topic={topic}")
        for channel in ("c", "d%23ephemeral"):
            await api.done(f"/channel/create?topic={topic}&channel={channel}")
    told = collect(StatsdLines(api.broker))
    assert {key.rpartition(".")[0] for key in told} == {"topic.a", "topic.a.channel.c"}


async def test_memory_comes_last(api: Api) -> None:
    api.broker.options.statsd_mem_stats = True
    await api.done("/topic/create?topic=t")
    lines = StatsdLines(api.broker)
    told = collect(lines)
    assert list(told)[-9:] == [*MEMORY, "mem.gc_runs"]
    assert all(told[name].endswith("|g") for name in MEMORY)
    assert told["mem.gc_runs"].endswith("|c")
    assert int(collect(lines)["mem.gc_runs"][:-2]) < int(told["mem.gc_runs"][:-2])


def test_datagrams_have_whole_lines() -> None:
    lines = [b"aaaa\n", b"bb\n", b"c\n", b"dddddddddddd\n", b"e\n"]
    assert pack(lines, 8) == [b"aaaa\nbb\n", b"c\n", b"dddddddddddd\n", b"e\n"]
    assert pack(lines, 1000) == [b"".join(lines)]
    assert pack([], 8) == []


class Daemon(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.packets: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.packets.put_nowait(data)


@pytest.fixture
async def daemon() -> AsyncIterator[tuple[Daemon, int]]:
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        Daemon, local_addr=("127.0.0.1", 0)
    )
    yield protocol, transport.get_extra_info("sockname")[1]
    transport.close()


async def test_it_is_pushed_every_interval(
    tmp_path: Path, daemon: tuple[Daemon, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statsd, "REST", 0.0)
    received, port = daemon
    async with running(
        tmp_path,
        statsd_address=f"127.0.0.1:{port}",
        statsd_interval=0.1,
        statsd_udp_packet_size=200,
        broadcast_address="10.0.0.1",
        broadcast_http_port=4151,
    ) as api:
        await api.done("/mpub?topic=t", b"a\nb")
        text = b""
        async with asyncio.timeout(20):
            while text.count(b"topic.t.depth") < 2:
                packet = await received.packets.get()
                assert len(packet) <= 200
                assert packet.endswith(b"\n")
                text += packet
        lines = text.decode().splitlines()
        counted = [line for line in lines if ".topic.t.message_count:" in line]
        assert counted[:2] == [f"nsq.10_0_0_1_4151.topic.t.message_count:{n}|c" for n in (2, 0)]
        assert any(line.startswith("nsq.10_0_0_1_4151.mem.heap_objects:") for line in lines)


async def test_a_daemon_that_is_not_there_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, statsd_address="no.such.host.invalid:8125", statsd_interval=0.01) as api:
        async with asyncio.timeout(20):
            while "failed to push to statsd(no.such.host.invalid:8125)" not in caplog.text:
                assert (await api.get("/ping")).status == 200
