"""`to_nsq` as a process against real nsqds: what it publishes, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from nsquark.tools.log_reader import LogReader
from tests.client.scripted import ScriptedNsqd
from tests.daemon import PATIENCE, Nsqd, until
from tests.tools.programs import Program, run


async def stored(nsqd: Nsqd, topic: str = "t") -> list[bytes]:
    runs = LogReader(nsqd.http_address, topic).runs()
    return [message.body async for run in runs for message in run]


async def count(nsqd: Nsqd, topic: str = "t") -> int:
    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={topic}")
    topics: list[dict[str, Any]] = json.loads(answer)["topics"]
    return int(topics[0]["message_count"]) if topics else 0


# ---- flags


async def test_the_checks_come_in_nsqs_order() -> None:
    address = "--nsqd-tcp-address=127.0.0.1:4150"
    for flags, text in [
        (("--delimiter=ab",), "--topic required"),
        (("--topic=t", "--delimiter=ab"), "--delimiter must be a single byte"),
        (("--topic=t", "--delimiter=é"), "--delimiter must be a single byte"),
        (("--topic=t", "--delimiter="), "--delimiter must be a single byte"),
        (("--topic=t",), "--nsqd-tcp-address required"),
        (("--topic=t x", address), "--topic 't x' is no valid name"),
        (("--topic=t", "--nsqd-tcp-address=nowhere"), "address 'nowhere' is not host:port"),
    ]:
        ended = await run("to_nsq", *flags, given=b"x\n")
        assert (ended.code, ended.out) == (1, b""), flags
        assert len(ended.said) == 1, ended.err
        assert text in ended.said[0] or "nowhere" in ended.said[0]


async def test_the_command_line_is_told_apart_from_what_it_says() -> None:
    assert (await run("to_nsq", "-h")).code == 0
    version = await run("to_nsq", "--version")
    assert (version.code, version.err) == (0, "")
    assert version.out.startswith(b"to_nsq v1.3.0")
    for flags in (("--nothing",), ("--rate=fast",), ("--producer-opt=max_msg_size,big",)):
        ended = await run("to_nsq", *flags)
        assert ended.code == 2
        assert "Usage of to_nsq:" in ended.err


# ---- what is published


async def test_pieces_are_messages_and_empty_ones_are_not(nsqd: Nsqd) -> None:
    given = b"\none\n\n\ntwo\r\n\x00three\x00\nlast without an end"
    assert await run("to_nsq", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", given=given) == (
        0,
        b"",
        "",
    )
    assert await stored(nsqd) == [b"one", b"two\r", b"\x00three\x00", b"last without an end"]


async def test_another_delimiter(nsqd: Nsqd) -> None:
    flags = ("--topic", "t", "--delimiter", ",", "--nsqd-tcp-address", nsqd.tcp_address)
    assert (await run("to_nsq", *flags, given=b"a,b\n,,c\n")).code == 0
    assert await stored(nsqd) == [b"a", b"b\n", b"c\n"]


async def test_every_destination_gets_everything_in_order(nsqd: Nsqd, tmp_path: Path) -> None:
    bodies = [b"%d" % number * (number % 7 + 1) for number in range(100_000)]
    with Nsqd(tmp_path / "other").start() as other:
        addresses = [f"--nsqd-tcp-address={each.tcp_address}" for each in (nsqd, other, nsqd)]
        ended = await run("to_nsq", "--topic=t", *addresses, given=b"\n".join(bodies))
        assert ended == (0, b"", "")
        assert await stored(nsqd) == await stored(other) == bodies


async def test_empty_input_connects_to_nobody() -> None:
    for given in (b"", b"\n\n\n"):
        assert await run("to_nsq", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1", given=given) == (0, b"", "")


async def test_a_slow_input_is_published_at_once(nsqd: Nsqd) -> None:
    program = await Program.start("to_nsq", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
    for number in range(1, 4):
        program.stdin.write(b"line\nhalf of the ne")

        async def is_there(expected: int = number) -> bool:
            return await count(nsqd) == expected

        await until(is_there)
    assert (await program.ended(b"xt")).code == 0
    assert await stored(nsqd) == [b"line", b"half of the neline", b"half of the neline", b"half of the next"]


async def test_an_nsqd_that_was_restarted_between_two_lines_is_connected_again(nsqd: Nsqd) -> None:
    program = await Program.start("to_nsq", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
    program.stdin.write(b"before\n")
    await until(lambda: count(nsqd))
    nsqd.stop()
    await program.says("connecting again at the next message")
    nsqd.restart()
    assert (await program.ended(b"after\n")).code == 0
    assert await stored(nsqd) == [b"before", b"after"]


async def test_a_batch_fits_into_max_body_size_and_a_large_piece_goes_alone(tmp_path: Path) -> None:
    limits = ("--max-msg-size=30000", "--max-body-size=20000")
    options = ("--producer-opt=max_msg_size,30000", "--producer-opt=max_body_size,20000")
    bodies = [b"x" * 15_000, b"y" * 15_000, b"z" * 29_999, *(b"%d" % number for number in range(20_000))]
    with Nsqd(tmp_path / "data", *limits).start() as nsqd:
        flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", *options)
        ended = await run("to_nsq", *flags, given=b"\n".join(bodies))
        assert ended == (0, b"", "")
        assert await stored(nsqd) == bodies


async def test_the_rate_is_kept(nsqd: Nsqd) -> None:
    loop = asyncio.get_running_loop()
    program = await Program.start(
        "to_nsq", "--topic=t", "--rate=10", f"--nsqd-tcp-address={nsqd.tcp_address}"
    )
    await program.says("Throttling messages rate to max:10/second")
    began = loop.time()
    assert (await program.ended(b"line\n" * 20)).code == 0
    assert loop.time() - began >= 1.85
    assert await count(nsqd) == 20


# ---- errors


async def test_a_long_piece_ends_it_with_all_before_stored(nsqd: Nsqd) -> None:
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    for given in (b"a\nb\n" + b"x" * 101 + b"\nc\n", b"a\nb\n" + b"x" * 5_000_000):
        ended = await run("to_nsq", "--topic=t", address, "--producer-opt=max_msg_size,100", given=given)
        assert ended.code == 1
        assert len(ended.said) == 1
        assert ended.said[0].startswith("a piece of more than 100 bytes")
        assert ended.said[0].endswith(f"2 messages stored at {nsqd.tcp_address}")
    assert await stored(nsqd) == [b"a", b"b", b"a", b"b"]


async def test_a_dead_destination_ends_it(nsqd: Nsqd) -> None:
    flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", "--nsqd-tcp-address=127.0.0.1:1")
    ended = await run("to_nsq", *flags, given=b"one\n")
    assert (ended.code, len(ended.said)) == (1, 1)
    assert ended.said[0].startswith("127.0.0.1:1: ")
    assert f"0 messages stored at {nsqd.tcp_address}, 0 messages stored at 127.0.0.1:1" in ended.said[0]


async def test_what_nsqd_refuses_is_told(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", "--max-msg-size=10").start() as nsqd:
        ended = await run("to_nsq", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", given=b"x" * 20)
        assert ended.code == 1
        assert ended.said[-1].startswith("E_BAD_MESSAGE ")
        assert ended.said[-1].endswith(f"0 messages stored at {nsqd.tcp_address}")


async def test_a_destination_killed_halfway_is_reported_with_what_it_has(nsqd: Nsqd, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "other").start() as other:
        addresses = [f"--nsqd-tcp-address={each.tcp_address}" for each in (nsqd, other)]
        program = await Program.start("to_nsq", "--topic=t", *addresses)
        line = b"x" * 99 + b"\n"

        async def feed() -> None:
            try:
                while True:
                    program.stdin.write(line * 1000)
                    await program.stdin.drain()
            except ConnectionError:
                pass

        feeding = asyncio.create_task(feed())
        await until(lambda: enough(other))
        other.kill()
        await feeding
        err = (await program.stderr.read()).decode()
        assert await program.process.wait() == 1
        assert len(err.splitlines()) == 1, err
        assert other.tcp_address in err
        # What it says is stored is stored; what it says is unanswered may be.
        other.restart()
        for each in (nsqd, other):
            there = await count_on_disk(each)
            told = int(err.split(f" messages stored at {each.tcp_address}")[0].split()[-1])
            behind = err.split(f"stored at {each.tcp_address}")[1].partition(",")[0]
            unanswered = int(behind.split()[1]) if "unanswered" in behind else 0
            assert told <= there <= told + unanswered
            assert told > 10_000


async def enough(nsqd: Nsqd) -> bool:
    return await count(nsqd) > 20_000


async def count_on_disk(nsqd: Nsqd) -> int:
    return (await LogReader(nsqd.http_address, "t").range()).next


# ---- peers that misbehave, on purpose


async def test_several_mpubs_are_unanswered_at_a_time_and_not_without_bound() -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["MPUB"] = lambda peer: None
        program = await Program.start("to_nsq", "--topic=t", f"--nsqd-tcp-address={nsqd.address}")

        async def feed() -> None:
            for _ in range(200):
                program.stdin.write((b"x" * 1023 + b"\n") * 1024)
                await program.stdin.drain()

        feeding = asyncio.create_task(feed())
        peer = await nsqd.peer(subscribed=False)
        await until(lambda: sum(map(len, peer.bodies)) > 4 << 20)
        size = 0
        while size != sum(map(len, peer.bodies)):
            size = sum(map(len, peer.bodies))
            await asyncio.sleep(0.3)
        assert size < 12 << 20
        assert not feeding.done()
        feeding.cancel()
        # It is told to end: what was sent is not answered in time, which is no good end.
        ended = await program.interrupted(signal.SIGTERM)
        assert ended.code == 1
        assert "interrupted before all was answered; 0 messages stored" in ended.err
        assert "unanswered)" in ended.err


async def test_messages_behind_a_refused_mpub_are_not_counted() -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["MPUB"] = lambda peer: peer.fail(b"E_MPUB_FAILED disk full")
        ended = await run(
            "to_nsq", "--topic=t", f"--nsqd-tcp-address={nsqd.address}", given=b"a\nb\n" * 300_000
        )
        assert ended.code == 1
        assert ended.said == [f"E_MPUB_FAILED disk full; 0 messages stored at {nsqd.address}"]


async def test_closed_descriptors_are_no_reason_to_crash(nsqd: Nsqd) -> None:
    script = f"{sys.executable} -m nsquark.tools.to_nsq --topic=t --nsqd-tcp-address={nsqd.tcp_address}"
    for closed, code in ((">&- 2>&-", 0), ("<&-", 1)):
        shell = await asyncio.create_subprocess_shell(
            f"{script} {closed}", stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE):
            _, err = await shell.communicate(b"one\n")
        assert shell.returncode == code, err
    assert err.endswith(b" stdin is closed\n")
    assert await stored(nsqd) == [b"one"]


# ---- signals


def unread(nsqd: Nsqd) -> bool:
    """Whether a client has sent something that nsqd has not read: the kernel tells."""
    port = int(nsqd.tcp_address.rpartition(":")[2])
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(
        int(fields[1].partition(":")[2], 16) == port and int(fields[4].partition(":")[2], 16) > 0
        for fields in sockets
        if fields[3] == "01"  # established
    )


async def test_an_nsqd_that_hangs_does_not_hold_up_the_end(nsqd: Nsqd) -> None:
    program = await Program.start("to_nsq", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
    program.stdin.write(b"one\n")
    await until(lambda: count(nsqd))
    nsqd.process.send_signal(signal.SIGSTOP)
    try:
        program.stdin.write(b"two\nthree\n")
        await until(lambda: unread(nsqd))
        ended = await program.interrupted()
    finally:
        nsqd.process.send_signal(signal.SIGCONT)
    assert ended.code == 1
    assert ended.said == [
        f"interrupted before all was answered; 1 message stored at {nsqd.tcp_address} (and 2 unanswered)"
    ]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_well_with_what_was_read_stored(nsqd: Nsqd, signum: signal.Signals) -> None:
    program = await Program.start("to_nsq", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
    program.stdin.write(b"one\ntwo\nhalf")
    await until(lambda: count(nsqd))
    ended = await program.interrupted(signum)
    assert ended.code == 0
    assert ended.said == [
        f"interrupted; 2 messages stored at {nsqd.tcp_address}; the rest of the input is abandoned"
    ]
    assert await stored(nsqd) == [b"one", b"two"]


async def test_a_signal_abandons_what_waits_for_the_throttle(nsqd: Nsqd) -> None:
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    program = await Program.start("to_nsq", "--topic=t", "--rate=1", address)
    program.stdin.write(b"one\ntwo\nthree\nlast")
    program.stdin.close()
    await until(lambda: count(nsqd))
    ended = await program.interrupted()
    assert ended.code == 0
    assert "abandoned" in ended.err
    bodies = await stored(nsqd)
    assert bodies == [b"one", b"two", b"three", b"last"][: len(bodies)]
    assert len(bodies) < 4
