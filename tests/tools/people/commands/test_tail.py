"""`nsquark tail`: live and from the log, against ours and an nsqd without a log."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path

from tests.daemon import Nsqd, until
from tests.tools.people.command import (
    PROGRAM,
    Running,
    environment,
    failure,
    like_go,
    nsquark,
    output,
    terminal,
)


async def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    async with await nsqd.connect() as client:
        for body in bodies:
            await client.pub(topic, body)


async def test_a_range_of_the_log(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "range", *(b"%d" % n for n in range(10)))
    everything = "".join(f"{n}\n" for n in range(10))
    assert output("tail", "range", "--from", "earliest", "--to", "latest", *at) == everything
    assert output("tail", "range", "--from", "10m", "--to", "latest", *at) == everything
    assert output("tail", "range", "--to", "3", *at) == "0\n1\n2\n"
    assert output("tail", "range", "--from", "4", "--to", "6", *at) == "4\n5\n"
    assert output("tail", "range", "--from", "7", "-n", "2", *at) == "7\n8\n"
    assert output("tail", "range", "--from", "latest", "--to", "latest", *at) == ""
    assert output("tail", "range", "--from", "6", "--to", "2", *at) == ""


async def test_no_channel_notices(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "quiet", b"waits for a first channel")
    before = output("stat", "quiet", "--json", *at)
    assert output("tail", "quiet", "--from", "earliest", "--to", "latest", *at) != ""
    with Running("tail", "quiet", *at) as running:
        await asyncio.to_thread(_publish_until_printed, at, "quiet", running)
        running.interrupt()
    (topic,) = json.loads(output("stat", "quiet", "--json", *at))
    assert topic["channels"] == []
    assert topic["depth"] == topic["messages"] > json.loads(before)[0]["depth"]


def _publish_until_printed(at: list[str], topic: str, running: Running) -> str:
    """A tail does not say when it has begun, so messages come until one is printed."""
    import threading

    stop = threading.Event()

    def publish_on() -> None:
        while not stop.is_set():
            output("pub", topic, "live", *at)

    thread = threading.Thread(target=publish_on)
    thread.start()
    try:
        return running.line()
    finally:
        stop.set()
        thread.join()


async def test_live_and_ctrl_c(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "live", b"before")
    with Running("tail", "live", *at) as running:
        assert await asyncio.to_thread(_publish_until_printed, at, "live", running) == "live\n"
        status, _, stderr = running.interrupt()
    assert status == 130
    assert stderr.startswith("interrupted: printed ")
    assert stderr.count("\n") == 1


async def test_from_the_log_and_on(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "on", b"0")
    with Running("tail", "on", "--from", "earliest", "-n", "3", *at) as running:
        assert await asyncio.to_thread(running.line) == "0\n"
        await publish(shared, "on", b"1", b"2", b"3")
        stdout, stderr = await asyncio.to_thread(running.process.communicate)
    assert (running.process.returncode, stdout, stderr) == (0, b"1\n2\n", b"")


async def test_json_has_the_history(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "history", b'{"a": 1}', b"\xff")
    lines = output("tail", "history", "--from", "earliest", "--to", "latest", "--json", *at).splitlines()
    first, second = map(json.loads, lines)
    assert (first["position"], first["body"], first["attempts"]) == (0, '{"a": 1}', 1)
    assert first["nsqd"] == shared.http_address
    assert abs(first["timestamp"] / 1e9 - time.time()) < 600
    assert second["body_base64"] == "/w=="
    assert "body" not in second


async def test_raw_bodies_stay_as_they_are_and_pretty_ones_are_indented(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "raw", b'{"a":[1]}', b"\xff\x1b[31m")
    words = ["tail", "raw", "--from", "earliest", "--to", "latest", *at]
    raw = subprocess.run([*PROGRAM, *words], capture_output=True, env=environment(), check=True).stdout
    assert raw == b'{"a":[1]}\n\xff\x1b[31m\n'
    assert output("tail", "raw", "--to", "1", "--pretty", *at) == '{\n  "a": [\n    1\n  ]\n}\n'


async def test_a_body_cannot_play_tricks_on_a_terminal(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "tricks", b'{"a": 1}\x1b[2J\x07')
    with terminal("tail", "tricks", "--from", "earliest", "--to", "latest", *at) as screen:
        assert screen.end() == 0
        assert b"\x1b[2J" not in screen.written
        assert r"\x1b[2J\x07" in screen.text
        assert b"\x1b[" in screen.written  # colours
    with terminal("tail", "tricks", "--from", "earliest", "--to", "latest", *at, NO_COLOR="1") as screen:
        assert screen.end() == 0
        assert b"\x1b[3" not in screen.written


async def test_a_reader_that_has_enough_ends_it(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "head", b"1", b"2")
    # It waits for messages that never come, and still notices.
    words = [*PROGRAM, "tail", "head", "--from", "earliest", *at]
    tail = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    head = subprocess.run(["head", "-1"], stdin=tail.stdout, capture_output=True)
    assert tail.stdout is not None
    tail.stdout.close()
    _, stderr = tail.communicate(timeout=20)
    assert (head.stdout, tail.returncode, stderr) == (b"1\n", 0, b"")


async def test_ctrl_c_while_the_reader_stands_still(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "still", *([b"x" * 100_000] * 20))
    with Running("tail", "still", "--from", "earliest", *at) as running:
        await until(lambda: _is_full(running))
        status, _, stderr = running.interrupt()
    assert status == 130
    assert stderr.startswith("interrupted: printed ")


def _is_full(running: Running) -> bool:
    """Whether the pipe holds as much as a pipe can, but for what an odd size may leave."""
    import array
    import fcntl
    import termios

    assert running.process.stdout is not None
    waiting = array.array("i", [0])
    fcntl.ioctl(running.process.stdout.fileno(), termios.FIONREAD, waiting)
    return waiting[0] > 60_000


async def test_an_nsqd_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data").start() as nsqd:
        await publish(nsqd, "t", b"1")
        with Running("tail", "t", "--from", "earliest", "--nsqd-http", nsqd.http_address) as running:
            assert await asyncio.to_thread(running.line) == "1\n"
            nsqd.kill()
            assert running.process.stderr is not None
            said = (await asyncio.to_thread(running.process.stderr.readline)).decode()
            assert said.startswith(f"nsqd {nsqd.http_address} does not answer, trying again")
            nsqd.restart()
            await publish(nsqd, "t", b"2")
            assert await asyncio.to_thread(running.line) == "2\n"


async def test_a_topic_that_is_deleted_meanwhile_ends_it(shared: Nsqd, at: list[str]) -> None:
    await publish(shared, "gone", b"1")
    with Running("tail", "gone", "--from", "earliest", *at) as running:
        assert await asyncio.to_thread(running.line) == "1\n"
        await shared.post("/topic/delete?topic=gone")
        _, stderr = await asyncio.to_thread(running.process.communicate)
    assert running.process.returncode == 1
    assert stderr.decode() == f"nsquark: nsqd {shared.http_address} has no topic 'gone'\n"


def test_a_topic_that_is_not_there_is_named_and_not_created(at: list[str]) -> None:
    assert failure("tail", "nope", *at) == "nsquark: there is no topic 'nope'\n"
    assert failure("tail", "nope", "--from", "1m", *at) == "nsquark: there is no topic 'nope'\n"
    assert "nope" not in output("topic", "list", *at)


# ---- Go's nsqd has no log


async def test_without_a_log_it_says_why_it_cannot(nsqd: Nsqd) -> None:
    await publish(nsqd, "t", b"1")
    async with like_go(nsqd) as address:
        where = ["--nsqd-http", address, "--nsqd-tcp", nsqd.tcp_address]
        line = await asyncio.to_thread(failure, "tail", "t", "--from", "1m", *where)
        assert f"{address} has no log to read" in line
        for words in (
            ["peek", "t"],
            ["channel", "seek", "t", "ch", "latest", "-y"],
            ["replay", "t", "--into", "u"],
        ):
            await nsqd.post("/channel/create?topic=t&channel=ch")
            line = await asyncio.to_thread(failure, *words, *where)
            assert "it is not an nsqd of nsquark" in line


async def test_without_a_log_an_ephemeral_channel_shows_what_comes(nsqd: Nsqd) -> None:
    await publish(nsqd, "t", b"before")
    async with like_go(nsqd) as address:
        where = ["--nsqd-http", address, "--nsqd-tcp", nsqd.tcp_address]
        # As the first channel it would take what waits for another.
        line = await asyncio.to_thread(failure, "tail", "t", *where)
        assert "the 1 message that wait for its first one" in line
        await nsqd.post("/channel/create?topic=t&channel=ch")
        with Running("tail", "t", "--json", *where) as running:

            async def subscribed() -> bool:
                return b"#ephemeral" in (await nsqd.http("GET", "/stats?format=json"))[1]

            await until(subscribed)
            await publish(nsqd, "t", b"now")
            told = json.loads(await asyncio.to_thread(running.line))
            assert (told["body"], told["attempts"], told["nsqd"]) == ("now", 1, nsqd.tcp_address)
            status, _, stderr = await asyncio.to_thread(running.interrupt)
        assert (status, stderr) == (130, "interrupted: printed 1 message of topic 't'\n")

        async def gone() -> bool:
            return not await subscribed()

        await until(gone)
        assert nsquark("tail", "t", "--nsqd-tcp", "127.0.0.1:1").returncode == 1
