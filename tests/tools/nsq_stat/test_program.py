"""`nsq_stat` as a process against real daemons, and in a terminal of its own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon import PATIENCE, Nsqd, Nsqlookupd, until
from tests.security.certificates import Authority
from tests.tools.programs import Program, run

HEADERS = (
    b"------rate------+----------------depth----------------+--------------metadata---------------\n"
    b"ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
)
IDLE = b"      0       0 |       5       5       0     0     0 |       0       0            5       0\n"
ON_DISK = b"      0       0 |       5       0       5     0     0 |       0       0            5       0\n"
CHANNEL = ("--topic=t", "--channel=c")


def in_memory(out: bytes) -> bytes:
    """The output as if nsqd had not freed the memory of the topic, which it does after some idle seconds."""
    return out.replace(ON_DISK, IDLE)


def http(nsqd: Nsqd) -> str:
    return f"--nsqd-http-address={nsqd.http_address}"


async def fill(nsqd: Nsqd, count: int = 5) -> None:
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    async with await nsqd.connect() as client:
        await client.mpub("t", [b"x"] * count)


# ---- flags


async def test_the_checks_come_in_nsqs_order() -> None:
    required = "--topic and --channel are required"
    for flags, text in [
        ((), required),
        (("--topic=t",), required),
        (("--channel=c", "--interval=0"), required),
        ((*CHANNEL, "--interval=0", "--http-client-connect-timeout=0"), "--interval should be positive"),
        ((*CHANNEL, "--http-client-connect-timeout=-1s"), "--http-client-connect-timeout should be positive"),
        ((*CHANNEL, "--http-client-request-timeout=0"), "--http-client-request-timeout should be positive"),
        ((*CHANNEL, "--count=0"), "--count should be positive"),
        (CHANNEL, "--nsqd-http-address or --lookupd-http-address required"),
        ((*CHANNEL, "--nsqd-http-address=a:1", "--lookupd-http-address=b:1"), "not both"),
        (
            (*CHANNEL, "--nsqd-http-address=http://a:1"),
            "--nsqd-http-address error - address should not",
        ),
        ((*CHANNEL, "--lookupd-http-address=httpd:1"), "--lookupd-http-address error - address should not"),
        ((*CHANNEL, "--nsqd-http-address=nowhere"), "nowhere"),
    ]:
        ended = await run("nsq_stat", *flags)
        assert (ended.code, ended.out, len(ended.said)) == (1, b"", 1), (flags, ended)
        assert text in ended.said[0]


async def test_the_command_line_is_told_apart_from_what_it_says() -> None:
    assert (await run("nsq_stat", "-h")).code == 0
    assert (await run("nsq_stat", "--version")).out.startswith(b"nsq_stat v1.3.0")
    for flags in (("--nothing",), ("--count=0x10",), ("--count=3000000000",), ("--interval=2",)):
        ended = await run("nsq_stat", *flags)
        assert ended.code == 2
        assert "Usage of nsq_stat:" in ended.err


# ---- NSQ's lines


async def test_lines_are_nsqs_byte_for_byte(nsqd: Nsqd) -> None:
    await fill(nsqd)
    ended = await run("nsq_stat", http(nsqd), *CHANNEL, "--count=3", "--interval=50ms")
    assert (ended.code, in_memory(ended.out), ended.err) == (0, HEADERS + 3 * IDLE, "")


async def test_headers_come_again_before_the_25th_line(nsqd: Nsqd) -> None:
    await fill(nsqd)
    ended = await run("nsq_stat", http(nsqd), *CHANNEL, "--count", "26", "--interval", "1ms")
    expected = HEADERS + 24 * IDLE + HEADERS + 2 * IDLE
    assert (ended.code, in_memory(ended.out), ended.err) == (0, expected, "")


async def test_rates_are_by_the_interval_asked_for(nsqd: Nsqd) -> None:
    await fill(nsqd, 10)
    program = await Program.start("nsq_stat", http(nsqd), *CHANNEL, "--count=1", "--interval=2s")
    assert await program.line() + await program.line() == HEADERS
    async with await nsqd.connect() as client:
        await client.mpub("t", [b"x"] * 101)
        await client.sub("t", "c", 11)
        for _ in range(11):
            client.fin(await client.message())
        client.rdy(0)
        await client.caught_up()
        line = await program.line()
        ingress, egress, _, total, *_ = line.split()
        assert (ingress, egress) == (b"50", b"%d" % ((101 - (int(total) - 10)) // 2))
        assert line.split()[-1] == b"1"
    assert (await program.ended()).code == 0


async def test_several_nsqds_are_summed(nsqd: Nsqd, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "other").start() as other:
        await fill(nsqd, 5)
        await fill(other, 7)
        ended = await run("nsq_stat", http(nsqd), http(other), *CHANNEL, "--count=1", "--interval=10ms")
        assert ended.code == 0
        line = ended.out.splitlines()[-1].split()
        assert (line[3], line[-2]) == (b"12", b"12")
        # The channel need not be at each of them.
        await other.post("/channel/delete?topic=t&channel=c")
        ended = await run("nsq_stat", http(nsqd), http(other), *CHANNEL, "--count=1", "--interval=10ms")
        assert ended.out.splitlines()[-1].split()[-2] == b"5"


@pytest.fixture
def registered(nsqlookupd: Nsqlookupd, tmp_path: Path) -> Iterator[Nsqd]:
    flags = (f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1")
    with Nsqd(tmp_path / "registered", *flags).start() as nsqd:
        yield nsqd


async def listed(nsqlookupd: Nsqlookupd) -> bool:
    return "t" in (await nsqlookupd.get("/topics"))["topics"]


async def test_nsqds_are_found_by_lookupd(nsqlookupd: Nsqlookupd, registered: Nsqd) -> None:
    await fill(registered)
    await until(lambda: listed(nsqlookupd))
    lookupd = f"--lookupd-http-address={nsqlookupd.http_address}"
    ended = await run("nsq_stat", lookupd, *CHANNEL, "--count=1", "--interval=10ms")
    assert (ended.code, in_memory(ended.out), ended.err) == (0, HEADERS + IDLE, "")
    ended = await run("nsq_stat", lookupd, "--topic=nope", "--channel=c")
    assert (ended.code, ended.out, len(ended.said)) == (1, b"", 1)
    assert ended.said[0].startswith("ERROR: failed to get topic producers - ")


async def test_what_is_not_there_ends_it(nsqd: Nsqd) -> None:
    await fill(nsqd)
    missing = "ERROR: failed to find channel({}) in stats metadata for topic({})"
    for flags, text in [
        ((http(nsqd), "--topic=t", "--channel=nope"), missing.format("nope", "t")),
        ((http(nsqd), "--topic=nope", "--channel=c"), missing.format("c", "nope")),
        (
            ("--nsqd-http-address=127.0.0.1:1", *CHANNEL),
            "ERROR: failed to get nsqd stats - http://127.0.0.1:1",
        ),
        (("--lookupd-http-address=127.0.0.1:1", *CHANNEL), "ERROR: failed to get topic producers - "),
        ((http(nsqd), "--nsqd-http-address=127.0.0.1:1", *CHANNEL), "ERROR: failed to get nsqd stats - "),
    ]:
        ended = await run("nsq_stat", *flags)
        assert (ended.code, ended.out, len(ended.said)) == (1, b"", 1), ended
        assert ended.said[0].startswith(text)


async def test_failures_are_tolerated_if_that_is_asked_for(nsqd: Nsqd, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "other").start() as other:
        await fill(nsqd, 5)
        await fill(other, 7)
        flags = (http(nsqd), http(other), *CHANNEL, "--interval=50ms", "--tolerate-failures")
        program = await Program.start("nsq_stat", *flags)
        await program.line()
        await program.line()
        other.kill()
        await program.says(f"going on without {other.http_address}")
        for _ in range(3):  # with what it had told before
            line = (await program.line()).split()
            assert (line[0], line[3]) == (b"0", b"12")
        other.restart()
        await program.says(f"{other.http_address} is back")
        other.kill()
        nsqd.kill()
        ended = await program.ended()
        assert ended.code == 1
        assert ended.said[-1].startswith("ERROR: failed to get nsqd stats - ")


async def test_lookupds_that_fail_are_tolerated_with_the_nsqds_they_listed(
    nsqlookupd: Nsqlookupd, registered: Nsqd
) -> None:
    await fill(registered)
    await until(lambda: listed(nsqlookupd))
    flags = (f"--lookupd-http-address={nsqlookupd.http_address}", *CHANNEL, "--interval=50ms")
    strict = await Program.start("nsq_stat", *flags)
    tolerant = await Program.start("nsq_stat", *flags, "--tolerate-failures")
    for program in (strict, tolerant):
        assert await program.line() + await program.line() == HEADERS
    nsqlookupd.kill()
    await tolerant.says(f"going on without {nsqlookupd.http_address}")
    assert in_memory(await tolerant.line()) == IDLE
    assert (await tolerant.interrupted()).code == 0
    ended = await strict.ended()
    assert ended.code == 1
    assert ended.said[-1].startswith("ERROR: failed to get topic producers - ")


async def test_an_nsqd_that_requires_tls_is_asked_over_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.sign("server")
    tls = (f"--tls-cert={certificate}", f"--tls-key={key}", "--https-address=127.0.0.1:0", "--tls-required")
    flags = (*CHANNEL, "--count=1", "--interval=10ms")
    with Nsqd(tmp_path / "data", f"--tls-cert={certificate}", f"--tls-key={key}").start() as plain:
        await fill(plain)
        plain.stop()
    with Nsqd(tmp_path / "data", *tls).start() as nsqd:
        ended = await run("nsq_stat", http(nsqd), *flags, SSL_CERT_FILE=str(authority.file))
        assert (ended.code, ended.said) == (0, [])
        assert ended.out.splitlines()[-1].split()[3] == b"5"
        ended = await run("nsq_stat", http(nsqd), *flags, SSL_CERT_FILE="/dev/null")
        assert (ended.code, len(ended.said)) == (1, 1)
        assert "certificate" in ended.said[0].lower()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_it_at_once(nsqd: Nsqd, signum: signal.Signals) -> None:
    await fill(nsqd)
    program = await Program.start("nsq_stat", http(nsqd), *CHANNEL, "--interval=1h")
    await program.line()
    await program.line()
    ended = await program.interrupted(signum)
    assert ended == (0, b"", ended.err)
    assert ended.said == ["interrupted after 0 reports"]


async def test_a_server_that_does_not_answer_does_not_hold_up_the_end() -> None:
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        program = await Program.start("nsq_stat", f"--nsqd-http-address=127.0.0.1:{port}", *CHANNEL)
        await asyncio.sleep(0.7)  # asked, or about to
        assert (await program.interrupted()).code in (0, -signal.SIGINT)
        flags = (f"--nsqd-http-address=127.0.0.1:{port}", *CHANNEL, "--http-client-request-timeout=200ms")
        ended = await run("nsq_stat", *flags)
        assert (ended.code, len(ended.said)) == (1, 1)
        assert "no answer within 0.2 s" in ended.said[0]


async def test_a_closed_pipe_ends_it_quietly(nsqd: Nsqd) -> None:
    await fill(nsqd)
    program = await Program.start("nsq_stat", http(nsqd), *CHANNEL, "--interval=10ms")
    await program.line()
    program.stdout._transport.close()  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE):
        assert await program.process.wait() == 141
    assert await program.stderr.read() == b""


# ---- a terminal


@contextmanager
def terminal(columns: int, rows: int, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program in a terminal of this size; what it draws is read from the descriptor."""
    ours, theirs = pty.openpty()
    resize(ours, columns, rows)
    process = subprocess.Popen(
        [sys.executable, "-m", "nsquark.tools.nsq_stat", *flags],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
        start_new_session=True,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        os.close(ours)


def resize(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def drawn_until(fd: int, text: bytes | None) -> bytes:
    """What is drawn, up to this text or to the end of the program."""
    drawn, deadline = b"", time.monotonic() + PATIENCE
    while text is None or text not in drawn:
        assert time.monotonic() < deadline, drawn
        try:
            drawn += os.read(fd, 65536)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # the other side is closed
            assert text is None, drawn
            break
    return drawn


async def test_a_terminal_has_a_live_table_that_follows_its_size(nsqd: Nsqd) -> None:
    await fill(nsqd)
    with terminal(80, 24, http(nsqd), *CHANNEL, "--interval=100ms") as (process, screen):
        drawn = drawn_until(screen, b"at most")
        assert b"\x1b[?1049h" in drawn  # the other screen
        drawn_until(screen, b"clients")
        resize(screen, 120, 24)
        process.send_signal(signal.SIGWINCH)
        drawn_until(screen, b"msgs")  # a column for wide terminals
        process.send_signal(signal.SIGINT)
        # The last table stays on the usual screen.
        assert b"t/c" in drawn_until(screen, None).partition(b"\x1b[?1049l")[2]
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert b"interrupted after " in process.stderr.read()


async def test_a_terminal_may_have_nsqs_lines(nsqd: Nsqd) -> None:
    await fill(nsqd)
    with terminal(80, 24, http(nsqd), *CHANNEL, "--interval=10ms", "--count=1", "--plain") as (
        process,
        screen,
    ):
        drawn = drawn_until(screen, b"clients\r\n")
        assert b"\x1b" not in drawn
        assert process.wait(PATIENCE) == 0


async def test_an_error_leaves_the_terminal_as_it_was(nsqd: Nsqd) -> None:
    await fill(nsqd)
    with terminal(80, 24, http(nsqd), *CHANNEL, "--interval=100ms") as (process, screen):
        drawn_until(screen, b"\x1b[?1049h")
        nsqd.kill()
        drawn_until(screen, b"\x1b[?1049l")
        assert process.wait(PATIENCE) == 1
        assert process.stderr is not None
        (line,) = process.stderr.read().splitlines()
        assert b"ERROR: failed to get nsqd stats - " in line
