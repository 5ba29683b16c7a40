"""nsq_to_http between nsqds and HTTP servers: what is sent, and how each answer ends a message."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.scripted import CERTIFICATE, Peer, ScriptedNsqd, server_context
from tests.daemon import Nsqd, until
from tests.http.web import OK, Got, Web, answer
from tests.tools.forward.program import Program

FIN = f"FIN {1:016x}"
REQUEUED = ("RDY 0", f"REQ {1:016x} 90000")


def start(source: str, *flags: str, **env: str) -> Program:
    return Program("nsq_to_http", "--topic=t", f"--nsqd-tcp-address={source}", *flags, env=env)


async def subscribed(source: ScriptedNsqd) -> Peer:
    peer = await source.peer()
    await peer.until("RDY 200")
    return peer


async def sent(*flags: str, body: bytes = b"body", ends: tuple[str, ...] = (FIN,), **env: str) -> list[str]:
    """Send one message with these flags, see how it ends, and return what the program said."""
    async with ScriptedNsqd() as source:
        with start(source.address, *flags, **env) as program:
            peer = await subscribed(source)
            peer.push(1, body)
            await peer.expect(*ends)
            assert await asyncio.to_thread(program.stop) == 0
            return program.lines


# ---- what is sent


async def test_a_post_has_the_message_as_its_body() -> None:
    async with Web() as web:
        body = bytes(range(256)) * 10
        await sent(f"--post={web.url}/in?x=1", body=body)
        (got,) = web.got
        assert (got.method, got.target, got.body) == ("POST", "/in?x=1", body)
        assert got.headers["user-agent"] == "nsq_to_http v1.3.0"
        assert got.headers["content-type"] == "application/octet-stream"
        assert got.headers["accept-encoding"] == "gzip"
        assert got.headers["host"] == web.url.removeprefix("http://")


async def test_a_get_has_the_message_escaped_in_its_url() -> None:
    async with Web() as web:
        await sent(f"--get={web.url}/in%20/?a=%41&q=%s&z", body="hello world&x=1/é".encode())
        (got,) = web.got
        assert got.method == "GET"
        assert got.target == "/in%20/?a=%41&q=hello+world%26x%3D1%2F%C3%A9&z"
        assert got.body == b""
        assert "content-type" not in got.headers
        assert "content-length" not in got.headers


async def test_headers_of_the_user_win_except_the_host() -> None:
    async with Web() as web:
        flags = [
            "User-agent: mine",
            "content-Type:text/plain",
            "X-More:  a: b ",
            "Host: elsewhere",
            "X-More: c",
        ]
        await sent(f"--post={web.url}/", *(f"--header={flag}" for flag in flags))
        (got,) = web.got
        assert got.headers["user-agent"] == "mine"
        assert got.headers["content-type"] == "text/plain"
        assert got.headers["x-more"] == "c"
        assert got.headers["host"] == web.url.removeprefix("http://")


async def test_a_content_type_and_a_password_in_the_url() -> None:
    async with Web() as web:
        address = web.url.replace("http://", "http://me:p%40ss@")
        lines = await sent(f"--post={address}/x", "--content-type=text/csv", "--status-every=1")
        (got,) = web.got
        assert got.headers["content-type"] == "text/csv"
        assert got.headers["authorization"] == "Basic bWU6cEBzcw=="
        web.answers["/x"] = answer(500)
        lines += await sent(f"--post={address}/x", ends=REQUEUED)
        assert any("got status code 500" in line for line in lines)
        assert not any("ss@" in line for line in lines)


# ---- how it ends


@pytest.mark.parametrize(
    ("method", "status", "ends"),
    [
        ("post", 200, (FIN,)),
        ("post", 201, (FIN,)),
        ("post", 204, (FIN,)),
        ("post", 299, (FIN,)),
        ("post", 300, REQUEUED),
        ("post", 400, REQUEUED),
        ("post", 500, REQUEUED),
        ("get", 200, (FIN,)),
        ("get", 201, REQUEUED),
        ("get", 404, REQUEUED),
    ],
)
async def test_the_status_decides(method: str, status: int, ends: tuple[str, ...]) -> None:
    async with Web() as web:
        web.answers["/in"] = answer(status)
        await sent(f"--{method}={web.url}/in" + "?%s" * (method == "get"), ends=ends)


async def test_a_target_that_is_not_there_requeues_and_names_it() -> None:
    lines = await sent("--post=http://127.0.0.1:1/in?secret=1", ends=REQUEUED)
    (line,) = [line for line in lines if "ERROR" in line]
    assert "http://127.0.0.1:1/in: no connection: Connection refused" in line
    assert "secret" not in line


def _hang_up(got: Got, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def _halfway(got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    writer.close()


def _half_a_head(got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    writer.close()


def _garbage(got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")


async def _silence(got: Got, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def _endless_body(got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 1_000_000)
        await writer.drain()


async def _endless_head(got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: x\r\n" * 1000)
        await writer.drain()


async def _drip(got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "behaviour",
    [_hang_up, _halfway, _half_a_head, _garbage, _silence, _endless_body, _endless_head, _drip],
    ids=lambda each: each.__name__.strip("_"),
)
async def test_a_target_that_does_not_answer_as_it_should_requeues(behaviour: Callable[..., Any]) -> None:
    async with Web() as web:
        web.answers["/in"] = behaviour
        await sent(f"--post={web.url}/in", "--http-client-request-timeout=500ms", ends=REQUEUED)


async def test_an_answer_may_end_with_its_connection_or_come_in_chunks_or_after_another() -> None:
    async with Web() as web:

        def until_the_end(got: Got, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")
            writer.close()

        web.answers["/end"] = until_the_end
        await sent(f"--post={web.url}/end")
        web.answers["/chunks"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        await sent(f"--post={web.url}/chunks")
        web.answers["/continue"] = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
        await sent(f"--post={web.url}/continue")


# ---- redirects


async def test_a_302_becomes_a_get_without_a_body_and_a_307_keeps_it() -> None:
    async with Web() as web:
        web.answers["/old"] = answer(302, "Location: /new")
        web.answers["/moved"] = answer(307, f"Location: {web.url}/new")
        await sent(f"--post={web.url}/old", body=b"one")
        await sent(f"--post={web.url}/moved", body=b"two")
        assert [(got.method, got.target, got.body) for got in web.got] == [
            ("POST", "/old", b"one"),
            ("GET", "/new", b""),
            ("POST", "/moved", b"two"),
            ("POST", "/new", b"two"),
        ]
        assert "content-type" not in web.got[1].headers
        assert web.got[3].headers["content-type"] == "application/octet-stream"


async def test_redirects_without_end_or_to_nowhere_requeue() -> None:
    async with Web() as web:
        web.answers["/loop"] = answer(308, "Location: /loop")
        await sent(f"--post={web.url}/loop", ends=REQUEUED)
        assert len(web.got) == 11
        for location in ("ftp://127.0.0.1/", "http://[", "http://127.0.0.1:99999/"):
            web.answers["/bad"] = answer(307, f"Location: {location}")
            await sent(f"--post={web.url}/bad", ends=REQUEUED)


async def test_a_secret_header_does_not_follow_to_another_host() -> None:
    async with Web() as web:
        elsewhere = web.url.replace("127.0.0.1", "localhost")
        web.answers["/in"] = answer(307, f"Location: {elsewhere}/out")
        await sent(f"--post={web.url}/in", "--header=Authorization: secret", "--header=X-Kept: yes")
        assert web.got[0].headers["authorization"] == "secret"
        assert "authorization" not in web.got[1].headers
        assert web.got[1].headers["x-kept"] == "yes"


# ---- connections


async def test_connections_are_kept_and_as_many_as_handlers() -> None:
    async with Web() as web, ScriptedNsqd() as source:

        async def slow(got: Got, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.02)
            writer.write(OK)

        web.answers["/in"] = slow
        with start(source.address, f"--post={web.url}/in", "-n=5"):
            peer = await subscribed(source)
            for number in range(50):
                peer.push(number, b"%d" % number)
            for _ in range(50):
                await peer.expect("FIN")
        assert web.most_at_once == 5
        assert web.connections == 5
        assert sorted(int(got.body) for got in web.got) == list(range(50))


async def test_a_kept_connection_that_its_server_has_closed_is_no_failure() -> None:
    async with Web() as web, ScriptedNsqd() as source:
        asked = Counter[int]()

        def close_at_the_second(got: Got, writer: asyncio.StreamWriter) -> None:
            asked[got.connection] += 1
            if asked[got.connection] == 1:
                writer.write(OK)
            else:
                writer.transport.abort()

        web.answers["/in"] = close_at_the_second
        with start(source.address, f"--post={web.url}/in", "-n=1"):
            peer = await subscribed(source)
            for number in range(3):
                peer.push(number)
                await peer.expect(f"FIN {number:016x}")
        assert web.connections == 3


async def test_https_is_verified_by_the_systems_roots() -> None:
    async with Web(server_context()) as web:
        await sent(f"--post={web.url}/in", body=b"one", SSL_CERT_FILE=str(CERTIFICATE))
        assert web.got[0].body == b"one"
        lines = await sent(f"--post={web.url}/in", ends=REQUEUED, SSL_CERT_FILE=os.devnull)
        assert len(web.got) == 1
        assert any("certificate verify failed" in line for line in lines)


# ---- modes


async def modes(mode: str, *paths: str, messages: int, finished: int) -> tuple[list[str], list[str]]:
    """Where messages went, one after the other, and the commands of nsqd's client; `/bad` always fails."""
    async with Web() as web, ScriptedNsqd() as source:
        web.answers["/bad"] = answer(500)
        flags = [f"--post={web.url}{path}" for path in paths]
        options = ["--consumer-opt=max_backoff_duration,0", "--status-every=0"]
        with start(source.address, *flags, f"--mode={mode}", "-n=1", *options) as program:
            peer = await subscribed(source)
            for number in range(messages):
                peer.push(number)
            answers = [(await peer.next()).split(" ")[0] for _ in range(messages)]
            assert answers.count("FIN") == finished
            assert await asyncio.to_thread(program.stop) == 0
            return [got.target for got in web.got], program.lines


async def test_round_robin_begins_with_the_second_and_has_no_memory() -> None:
    targets, _ = await modes("round-robin", "/one", "/bad", messages=6, finished=3)
    assert targets == ["/bad", "/one"] * 3


async def test_hostpool_skips_a_target_that_failed() -> None:
    targets, _ = await modes("hostpool", "/bad", "/one", messages=8, finished=7)
    assert targets == ["/bad", *["/one"] * 7]


async def test_epsilon_greedy_skips_it_too() -> None:
    targets, _ = await modes("epsilon-greedy", "/bad", "/one", messages=20, finished=19)
    assert targets.count("/bad") == 1


@pytest.mark.parametrize("mode", ["all", "everybody"])
async def test_all_targets_get_a_message_in_order_up_to_the_first_failure(mode: str) -> None:
    targets, lines = await modes(mode, "/one", "/bad", "/two", messages=2, finished=0)
    assert targets == ["/one", "/bad"] * 2
    targets, _ = await modes(mode, "/one", "/two", messages=2, finished=2)
    assert targets == ["/one", "/two"] * 2
    assert any("--mode=everybody is none of" in line for line in lines) == (mode == "everybody")


# ---- sampling, status lines


async def test_sample_0_sends_nothing_and_finishes_all(tmp_path: Path) -> None:
    async with Web() as web:
        with Nsqd(tmp_path).start() as nsqd:
            await publish(nsqd, 500)
            with start(nsqd.tcp_address, f"--post={web.url}/in", "--sample=0") as program:
                await until(lambda: is_drained(nsqd))
                assert await asyncio.to_thread(program.stop) == 0
            assert program.lines[-1].endswith(" 0 messages forwarded, 0 requeued, 500 left out")
        assert web.got == []


async def test_a_sample_sends_about_its_part(tmp_path: Path) -> None:
    async with Web() as web:
        with Nsqd(tmp_path).start() as nsqd:
            await publish(nsqd, 1000)
            with start(nsqd.tcp_address, f"--post={web.url}/in", "--sample=0.5"):
                await until(lambda: is_drained(nsqd))
        assert 350 < len(web.got) < 650  # nine standard deviations


async def test_status_lines_count_successes_for_each_target_and_in_all(tmp_path: Path) -> None:
    async with Web() as web:
        with Nsqd(tmp_path).start() as nsqd:
            await publish(nsqd, 203)
            flags = (f"--post={web.url}/a", f"--post={web.url}/b", "--mode=round-robin", "--status-every=100")
            with start(nsqd.tcp_address, *flags) as program:
                await until(lambda: is_drained(nsqd))
                assert await asyncio.to_thread(program.stop) == 0
        found = [line.split(" ", 2)[2] for line in program.lines if "finished" in line]
        assert [line.split(" - ")[0] for line in found if line.startswith("[aggregate]:")] == [
            "[aggregate]: finished 101",
            "[aggregate]: finished 201",
        ]
        assert sorted(line.split(" - ")[0] for line in found if not line.startswith("[agg")) == [
            f"[{web.url}/a]: finished 101",
            f"[{web.url}/b]: finished 101",
        ]


# ---- real nsqds


async def publish(nsqd: Nsqd, count: int, first: int = 0) -> None:
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=nsq_to_http")
    async with await nsqd.connect() as client:
        await client.mpub("t", (b"%08d" % number for number in range(first, first + count)))


async def channel(nsqd: Nsqd) -> dict[str, Any]:
    _, text = await nsqd.http("GET", "/stats?format=json&topic=t")
    found: dict[str, Any] = json.loads(text)["topics"][0]["channels"][0]
    return found


async def is_drained(nsqd: Nsqd) -> bool:
    found = await channel(nsqd)
    return bool(found["depth"] + found["in_flight_count"] + found["deferred_count"] == 0)


async def _progress(nsqd: Nsqd, web: Web, wanted: int) -> bool:
    return len(web.got) >= wanted or await is_drained(nsqd)


async def test_killed_and_restarted_again_and_again_it_loses_nothing(tmp_path: Path) -> None:
    kills, each = 4, 1_000
    async with Web() as web:
        with Nsqd(tmp_path, "--msg-timeout=1s").start() as nsqd:
            # Every program gets its own messages, so that the number of kills does not depend on its speed.
            for first in range(0, kills * each, each):
                await publish(nsqd, each, first)
                wanted = len(web.got) + 100
                with start(nsqd.tcp_address, f"--post={web.url}/in", "--status-every=0") as program:
                    await until(lambda wanted=wanted: _progress(nsqd, web, wanted))
                    program.kill()
            await publish(nsqd, 1, kills * each)
            with start(nsqd.tcp_address, f"--post={web.url}/in", "--status-every=0") as program:
                await until(lambda: is_drained(nsqd))
                assert await asyncio.to_thread(program.stop) == 0
        found = Counter(got.body for got in web.got)
        assert found.keys() == {b"%08d" % number for number in range(kills * each + 1)}
        # What was in flight when it was killed comes again: at most max-in-flight each time.
        assert sum(found.values()) - kills * each - 1 <= 200 * kills


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_stops_within_a_second_and_nothing_is_finished_that_was_not_sent(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with Web() as web:
        with Nsqd(tmp_path).start() as nsqd:
            await publish(nsqd, 20_000)
            with start(nsqd.tcp_address, f"--post={web.url}/in") as program:
                await until(lambda: len(web.got) > 500)
                began = time.monotonic()
                assert await asyncio.to_thread(program.stop, number) == 0
                assert (
                    time.monotonic() - began < 20
                )  # one second, not on a machine that has something else to do
            found = await channel(nsqd)
            assert found["in_flight_count"] == 0
            assert 20_000 - found["depth"] == len(web.got)
            assert program.lines[-1].endswith(f" {len(web.got)} messages forwarded, 0 requeued")


async def test_a_second_signal_does_not_wait_for_a_slow_target() -> None:
    async with Web() as web, ScriptedNsqd() as source:
        asked = asyncio.Event()

        async def silence(got: Got, writer: asyncio.StreamWriter) -> None:
            asked.set()
            await asyncio.sleep(60)

        web.answers["/in"] = silence
        with start(source.address, f"--post={web.url}/in") as program:
            peer = await subscribed(source)
            peer.push(1)
            await asked.wait()
            program.send(signal.SIGTERM)
            await peer.until("CLS")
            assert program.process.poll() is None
            program.send(signal.SIGTERM)
            await peer.expect(f"REQ {1:016x} 0")
            assert await asyncio.to_thread(program.ended, 2) == 0
