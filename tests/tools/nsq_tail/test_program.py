"""`nsq_tail` as a process against real daemons: messages of channels, and of the log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.client.scripted import ScriptedNsqd
from tests.daemon import PATIENCE, Nsqd, Nsqlookupd, until
from tests.tools.programs import Program, run


async def channels(nsqd: Nsqd, topic: str = "t") -> list[dict[str, Any]]:
    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={topic}")
    topics = json.loads(answer)["topics"]
    return list(topics[0]["channels"]) if topics else []


async def publish(nsqd: Nsqd, *bodies: bytes, topic: str = "t") -> None:
    async with await nsqd.connect() as client:
        await client.mpub(topic, bodies)


def tcp(nsqd: Nsqd) -> str:
    return f"--nsqd-tcp-address={nsqd.tcp_address}"


def http(nsqd: Nsqd) -> str:
    return f"--nsqd-http-address={nsqd.http_address}"


# ---- flags


async def test_the_checks_come_in_nsqs_order_and_those_of_the_log_beside() -> None:
    neither, both = "--nsqd-tcp-address or --lookupd-http-address required", "not both"
    for flags, text in [
        ((), neither),
        (("--topic=t",), neither),
        (("--nsqd-tcp-address=a:1", "--lookupd-http-address=b:1"), both),
        (("--nsqd-tcp-address=a:1",), "--topic required"),
        (("--nsqd-tcp-address=a:1", "--topic=a b"), "'a b' is no valid name"),
        (("--nsqd-tcp-address=a:1", "--topic=t", "--channel=a b"), "'a b' is no valid name"),
        (("--nsqd-tcp-address=a:1", "--topic=t", "--to=latest"), "give --from too"),
        (("--nsqd-http-address=a:1", "--topic=t"), "give --from, or --nsqd-tcp-address"),
        (("--nsqd-tcp-address=a:1", "--topic=t", "--from=10m"), "give --nsqd-http-address"),
        (("--nsqd-http-address=a:1", "--topic=t", "--from=10m", "--channel=c"), "leave --channel out"),
        (("--topic=t", "--from=10m"), "--nsqd-http-address or --lookupd-http-address required"),
        (("--topic=t", "--from=1", "--nsqd-http-address=a:1", "--lookupd-http-address=b:1"), both),
    ]:
        ended = await run("nsq_tail", *flags)
        assert (ended.code, ended.out, len(ended.said)) == (1, b"", 1), (flags, ended)
        assert text in ended.said[0]


async def test_the_command_line_is_told_apart_from_what_it_says() -> None:
    assert (await run("nsq_tail", "-help")).code == 0
    assert (await run("nsq_tail", "--version")).out.startswith(b"nsq_tail v1.3.0")
    for flags in (("--nothing",), ("-n=many",), ("--from=yesterday",), ("--consumer-opt=nothing,1",)):
        ended = await run("nsq_tail", *flags)
        assert ended.code == 2
        assert "Usage of nsq_tail:" in ended.err


# ---- channels


async def test_bodies_come_as_they_are_and_the_last_one_is_finished(nsqd: Nsqd) -> None:
    await publish(nsqd, b"one", b"\x00NUL\x00", b"CR\r", b"two\nlines", *(b"%d" % n for n in range(6)))
    ended = await run("nsq_tail", tcp(nsqd), "--topic=t", "--channel=c", "-n", "3")
    assert (ended.code, ended.out) == (0, b"one\n\x00NUL\x00\nCR\r\n")
    assert "Adding consumer for topic: t" in ended.said
    ended = await run("nsq_tail", tcp(nsqd), "--topic=t", "--channel=c", "-n", "7", "--print-topic")
    assert ended.code == 0
    assert ended.out == b"t | two\nlines\n" + b"".join(b"t | %d\n" % n for n in range(6))
    (channel,) = await channels(nsqd)
    assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (0, 0, 0)
    assert channel["timeout_count"] == 0


async def test_without_a_channel_it_has_a_random_ephemeral_one(nsqd: Nsqd) -> None:
    program = await Program.start("nsq_tail", tcp(nsqd), "--topic=t")
    await until(lambda: channels(nsqd))
    (channel,) = await channels(nsqd)
    assert re.fullmatch(r"tail\d{6}#ephemeral", channel["channel_name"])
    await publish(nsqd, b"hello")
    assert await program.line() == b"hello\n"
    ended = await program.interrupted(signal.SIGTERM)
    assert ended.code == 0
    assert ended.said[-1] == "interrupted; 1 message shown"
    await until(lambda: gone(nsqd))  # the channel went with its only client


async def gone(nsqd: Nsqd) -> bool:
    return not await channels(nsqd)


async def test_topics_are_counted_apart(nsqd: Nsqd) -> None:
    await publish(nsqd, b"1", b"2", topic="a")
    await publish(nsqd, b"1", b"2", b"3", topic="b")
    ended = await run("nsq_tail", tcp(nsqd), "--topic=a", "--topic=b", "-n=3", "--channel=c", "--print-topic")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert [line for line in lines if line[:1] == b"b"] == [b"b | 1", b"b | 2", b"b | 3"]
    assert [line for line in lines if line[:1] == b"a"] == [b"a | 1", b"a | 2"][: len(lines) - 3]


async def test_it_says_cls_and_gives_back_what_it_has_not_shown() -> None:
    async with ScriptedNsqd() as nsqd:
        address = f"--nsqd-tcp-address={nsqd.address}"
        program = await Program.start("nsq_tail", address, "--topic=t", "--channel=c")
        peer = await nsqd.peer()
        assert await peer.next() == "RDY 200"
        peer.push(1, b"one")
        assert await program.line() == b"one\n"
        await peer.expect("FIN")
        ended = await program.interrupted(signal.SIGTERM)
        assert ended.code == 0
        await peer.until("CLS")


async def test_a_reader_who_has_stopped_does_not_hold_up_the_end(nsqd: Nsqd) -> None:
    await publish(nsqd, *(b"x" * 10_000 for _ in range(200)))
    program = await Program.start("nsq_tail", tcp(nsqd), "--topic=t", "--channel=c")
    program.stdout._transport.pause_reading()  # type: ignore[attr-defined]

    async def in_flight() -> bool:
        found = await channels(nsqd)
        return bool(found) and found[0]["in_flight_count"] > 100 and found[0]["depth"] == 0

    await until(in_flight)
    program.process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE):
        err = await program.stderr.read()
        program.stdout._transport.resume_reading()  # type: ignore[attr-defined]
        assert await program.process.wait() == 0
    shown = re.search(rb"interrupted; (\d+) messages? shown", err)
    assert shown is not None

    async def given_back() -> bool:
        (channel,) = await channels(nsqd)
        return channel["depth"] == 200 - int(shown[1]) and channel["in_flight_count"] == 0

    await until(given_back)


async def test_a_closed_pipe_ends_it_quietly(nsqd: Nsqd) -> None:
    await publish(nsqd, *(b"%d" % n for n in range(100)))
    program = await Program.start("nsq_tail", tcp(nsqd), "--topic=t", "--channel=c")
    assert await program.line() == b"0\n"
    program.stdout._transport.close()  # type: ignore[attr-defined]

    async def pushed() -> bool:
        await publish(nsqd, b"more")
        return program.process.returncode is not None

    await until(pushed)
    assert program.process.returncode == 141
    assert b"Traceback" not in await program.stderr.read()


async def test_an_nsqd_that_hangs_does_not_hold_up_the_end(nsqd: Nsqd) -> None:
    await publish(nsqd, b"one")
    programs = [
        await Program.start("nsq_tail", tcp(nsqd), "--topic=t", "--channel=c"),
        await Program.start("nsq_tail", http(nsqd), "--topic=t", "--from=earliest"),
    ]
    for program in programs:
        assert await program.line() == b"one\n"
    nsqd.process.send_signal(signal.SIGSTOP)
    try:
        for program in programs:
            ended = await program.interrupted()
            assert ended.code == 0
            assert ended.said[-1] == "interrupted; 1 message shown"
    finally:
        nsqd.process.send_signal(signal.SIGCONT)


async def test_what_cannot_be_written_is_given_back(nsqd: Nsqd) -> None:
    await publish(nsqd, b"one", b"two")
    flags = f"--topic=t {tcp(nsqd)} --channel=c > /dev/full"
    shell = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m nsquark.tools.nsq_tail {flags}", stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        _, err = await shell.communicate()
    assert shell.returncode == 1
    assert b"No space left on device" in err.splitlines()[-1]
    assert b"Traceback" not in err

    async def given_back() -> bool:
        (channel,) = await channels(nsqd)
        return channel["depth"] == 2 and channel["in_flight_count"] == 0

    await until(given_back)


async def test_an_nsqd_that_is_not_there_at_the_start_is_an_error(nsqd: Nsqd) -> None:
    for more in ((), (tcp(nsqd),)):
        ended = await run("nsq_tail", "--nsqd-tcp-address=127.0.0.1:1", *more, "--topic=t")
        assert (ended.code, ended.out) == (1, b"")
        assert "127.0.0.1:1: Connection refused" in ended.said[-1]


async def test_a_lookupd_that_is_not_there_is_asked_again(nsqd: Nsqd) -> None:
    program = await Program.start("nsq_tail", "--lookupd-http-address=127.0.0.1:1", "--topic=t")
    await program.says("nsqlookupd")
    assert (await program.interrupted()).code == 0


@pytest.fixture
def registered(nsqlookupd: Nsqlookupd, tmp_path: Path) -> Any:
    flags = (f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1")
    with Nsqd(tmp_path / "registered", *flags).start() as nsqd:
        yield nsqd


async def listed(nsqlookupd: Nsqlookupd) -> bool:
    return "t" in (await nsqlookupd.get("/topics"))["topics"]


async def test_nsqds_are_found_by_lookupd(nsqlookupd: Nsqlookupd, registered: Nsqd) -> None:
    await publish(registered, b"one", b"two")
    await until(lambda: listed(nsqlookupd))
    lookupd = f"--lookupd-http-address={nsqlookupd.http_address}"
    ended = await run("nsq_tail", lookupd, "--topic=t", "-n=2")
    assert (ended.code, ended.out) == (0, b"one\ntwo\n")
    ended = await run("nsq_tail", lookupd, "--topic=t", "--from=earliest", "--to=latest")
    assert ended == (0, b"one\ntwo\n", "")
    ended = await run("nsq_tail", lookupd, "--topic=nope", "--from=earliest")
    assert (ended.code, ended.said) == (1, ["no nsqd has the topic 'nope'"])


async def test_a_hundred_thousand_messages_pass_unchanged(nsqd: Nsqd) -> None:
    bodies = [b"%d\x00\r" % number + b"x" * (number % 50) for number in range(100_000)]
    given = b"\n".join(bodies) + b"\n"
    tail = await Program.start("nsq_tail", tcp(nsqd), "--topic=t", "--channel=c", "-n=100000")
    await until(lambda: channels(nsqd))
    assert (await run("to_nsq", "--topic=t", tcp(nsqd), given=given)).code == 0
    ended = await tail.ended()
    assert ended.code == 0
    assert ended.out == given
    (channel,) = await channels(nsqd)
    assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (0, 0, 0)


# ---- the log


async def test_a_part_of_the_log_is_read_and_no_channel_notices(nsqd: Nsqd) -> None:
    await publish(nsqd, b"0", b"1", b"2")
    await nsqd.post("/channel/create?topic=t&channel=c")
    before = await channels(nsqd)
    await asyncio.sleep(0.005)  # times are asked for in milliseconds
    between = time.time()
    await asyncio.sleep(0.005)
    await publish(nsqd, b"3", b"4")
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between)) + f"{between % 1:.3f}"[1:] + "Z"
    for flags, expected in [
        (("--from=earliest", "--to=latest"), b"01234"),
        (("--from=1", "--to=3"), b"12"),
        (("--from=10m", "--to=4"), b"0123"),
        ((f"--from={moment}", "--to=latest"), b"34"),
        (("--from=earliest", f"--to={moment}"), b"012"),
        (("--from=earliest", "-n=2"), b"01"),
        (("--from=3", "-n=1", "--print-topic"), b"3"),
        (("--from=latest", "--to=latest"), b""),
        (("--from=0", "--to=1000000"), b"01234"),
    ]:
        ended = await run("nsq_tail", http(nsqd), "--topic=t", *flags)
        prefix = b"t | " if "--print-topic" in flags else b""
        assert ended == (0, b"".join(prefix + b"%c\n" % each for each in expected), ""), flags
    after = await channels(nsqd)
    assert [each["channel_name"] for each in after] == ["c"]
    assert after[0]["depth"] == before[0]["depth"] + 2


async def test_the_log_is_followed_even_across_a_restart_of_nsqd(nsqd: Nsqd) -> None:
    await publish(nsqd, b"old")
    program = await Program.start("nsq_tail", http(nsqd), "--topic=t", "--from=earliest")
    assert await program.line() == b"old\n"
    await publish(nsqd, b"new")
    assert await program.line() == b"new\n"
    nsqd.stop()
    await program.says("asking again in")
    nsqd.restart()
    await publish(nsqd, b"newer")
    assert await program.line() == b"newer\n"
    ended = await program.interrupted()
    assert ended.code == 0
    assert ended.said[-1] == "interrupted; 3 messages shown"
    assert await channels(nsqd) == []


async def test_logs_of_several_nsqds_and_topics_are_merged_by_time(nsqd: Nsqd, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "other").start() as other:
        for number in range(6):
            where, topic = (nsqd, other)[number % 2], "ab"[number // 2 % 2]
            await publish(where, b"%d" % number, topic=topic)
        both = (http(nsqd), http(other), "--topic=a", "--topic=b")
        ended = await run("nsq_tail", *both, "--from=earliest", "--to=latest", "--print-topic")
        expected = b"a | 0\na | 1\nb | 2\nb | 3\na | 4\na | 5\n"
        assert ended == (0, expected, "")
        ended = await run("nsq_tail", *both, "--from=1h", "-n=2")
        assert ended == (0, b"0\n1\n", "")
        program = await Program.start("nsq_tail", *both, "--from=latest")
        await until(lambda: asleep(program))
        for number in range(4):
            await publish((nsqd, other)[number % 2], b"%d" % number, topic="a")
            assert await program.line() == b"%d\n" % number
        assert (await program.interrupted()).code == 0
        ended = await run("nsq_tail", *both, "--from=0")
        assert (ended.code, len(ended.said)) == (1, 1)
        assert "there are 4 logs" in ended.said[0]


async def asleep(program: Program) -> bool:
    """Whether it waits in long polls: its connections to nsqds stay."""
    sockets = 0
    for link in Path(f"/proc/{program.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed just now
            sockets += "socket:" in str(link.readlink())
    return sockets >= 4


async def test_mistakes_about_the_log_are_one_line(nsqd: Nsqd) -> None:
    await publish(nsqd, b"one")
    for flags, text in [
        ((http(nsqd), "--topic=nope", "--from=earliest"), "no nsqd has the topic 'nope'"),
        ((http(nsqd), "--topic=t", "--from=7"), "has not reached position 7"),
        (("--nsqd-http-address=127.0.0.1:1", "--topic=t", "--from=7"), "127.0.0.1:1"),
        (("--lookupd-http-address=127.0.0.1:1", "--topic=t", "--from=7"), "127.0.0.1:1"),
    ]:
        ended = await run("nsq_tail", *flags)
        assert (ended.code, ended.out, len(ended.said)) == (1, b"", 1), ended
        assert text in ended.said[0]


async def test_gos_nsqd_has_no_log() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 404 Not Found\r\nContent-Length: 23\r\n\r\n{"message":"NOT_FOUND"}')
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        address = f"127.0.0.1:{port}"
        ended = await run("nsq_tail", f"--nsqd-http-address={address}", "--topic=t", "--from=10m")
        assert (ended.code, len(ended.said)) == (1, 1)
        assert ended.said[0].startswith(f"{address} has no log to read")
