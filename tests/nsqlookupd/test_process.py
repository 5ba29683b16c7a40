"""nsqlookupd as scripts know it: a process with flags, two ports, signals and an exit status."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nsquark.version import NSQ_VERSION, VERSION
from tests.daemon import PATIENCE, Nsqlookupd
from tests.nsqlookupd.served import Producer, identify

SCRIPT = Path(sys.executable).with_name("nsqlookupd")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """nsqlookupd with flags with which it ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "nsquark.nsqlookupd", *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_version_is_nsqs_with_ours_in_the_bracket() -> None:
    result = run("--version")
    assert result.stdout == f"nsqlookupd v{NSQ_VERSION} (built w/nsquark-{VERSION})\n"
    assert (result.returncode, result.stderr) == (0, "")


def test_an_unknown_flag_is_a_usage_error() -> None:
    result = run("--no-such-flag")
    assert result.returncode == 2
    assert result.stderr.startswith("flag provided but not defined: -no-such-flag\nUsage of nsqlookupd:\n")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("localhost", "listen tcp: address localhost: missing port in address"),
        ("127.0.0.1:99999", "listen tcp: address 99999: invalid port"),
        ("/tmp/no.sock", "listen tcp: address /tmp/no.sock: missing port in address"),
        ("a:b:1", "listen tcp: address a:b:1: too many colons in address"),
    ],
)
@pytest.mark.parametrize("flag", ["--tcp-address", "--http-address"])
def test_what_is_no_address_is_fatal(flag: str, address: str, reason: str) -> None:
    other = "--http-address" if flag == "--tcp-address" else "--tcp-address"
    result = run(f"{flag}={address}", f"{other}=127.0.0.1:0")
    assert result.returncode == 1
    assert result.stderr.endswith(
        f" FATAL: failed to instantiate nsqlookupd - listen ({address}) failed - {reason}\n"
    )


def test_a_port_in_use_is_fatal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("--tcp-address=127.0.0.1:0", f"--http-address={address}")
    assert result.returncode == 1
    assert re.fullmatch(
        r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: failed to instantiate nsqlookupd - "
        rf"listen \({address}\) failed - address already in use",
        result.stderr.splitlines()[-1],
    )


def test_a_missing_config_file_is_fatal(tmp_path: Path) -> None:
    result = run(f"--config={tmp_path / 'nowhere'}")
    assert result.returncode == 1
    assert "FATAL: failed to load config file" in result.stderr


def test_the_console_script_is_the_same_program() -> None:
    nsqlookupd = Nsqlookupd()
    nsqlookupd.program = [str(SCRIPT)]
    with nsqlookupd.start():
        assert nsqlookupd.stop() == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_nobody_delays_the_end(nsqlookupd: Nsqlookupd, signum: signal.Signals) -> None:
    """Go's waits for ever for a connection that has not sent its magic."""
    clients = []
    for greeting in (
        b"",
        b"  V",
        b"  V1",
        b"  V1IDENTIFY\n\0\0\1\0{",
        b"  V1" + identify() + b"PING\n" * 50_000,
    ):
        client = socket.create_connection(("127.0.0.1", nsqlookupd.tcp_port))
        client.sendall(greeting)
        clients.append(client)
    for request in (b"", b"GET /topics HTTP/1.1\r\n"):
        client = socket.create_connection(("127.0.0.1", nsqlookupd.http_port))
        client.sendall(request)
        clients.append(client)
    nsqd = await Producer.connect(nsqlookupd.tcp_port)
    await nsqd.ask(identify())
    assert await asyncio.to_thread(nsqlookupd.stop, signum, within=5) == 0
    await nsqd.closed()
    for client in clients:
        client.close()
    nsqd.close()


async def test_it_serves_again_at_once_and_knows_nothing(nsqlookupd: Nsqlookupd) -> None:
    nsqd = await Producer.connect(nsqlookupd.tcp_port)
    await nsqd.ask(identify())
    await nsqd.ok("REGISTER orders")
    nsqlookupd.kill()
    nsqlookupd.restart()
    await nsqd.closed()
    assert await nsqlookupd.get("/topics") == {"topics": []}
    nsqd.close()


async def test_the_log_is_nsqs(nsqlookupd: Nsqlookupd) -> None:
    nsqd = await Producer.connect(nsqlookupd.tcp_port)
    await nsqd.ask(identify())
    await nsqd.ok("REGISTER orders archive", "REGISTER orders archive", "PING", "UNREGISTER orders archive")
    assert await nsqlookupd.http("POST", "/topic/tombstone?topic=orders&node=nsqd1.example:4151") == (
        200,
        b"",
    )
    assert await nsqlookupd.http("POST", "/channel/create?topic=orders&channel=c") == (200, b"")
    assert await nsqlookupd.http("POST", "/topic/delete?topic=orders") == (200, b"")
    assert (await nsqd.ask(b"FOO\n")).startswith(b"E_INVALID")
    await nsqd.closed()
    nsqd.close()
    assert await asyncio.to_thread(nsqlookupd.stop) == 0
    peer = re.escape(nsqd.address)
    expected = [
        rf"INFO: nsqlookupd v{NSQ_VERSION} \(built w/nsquark-{VERSION}\)",
        rf"INFO: HTTP: listening on {nsqlookupd.http_address}",
        rf"INFO: TCP: listening on {nsqlookupd.tcp_address}",
        rf"INFO: TCP: new client\({peer}\)",
        rf"INFO: CLIENT\({peer}\): desired protocol magic '  V1'",
        rf"INFO: CLIENT\({peer}\): IDENTIFY Address:nsqd1.example TCP:4150 HTTP:4151 Version:1.3.0",
        rf"INFO: DB: client\({peer}\) REGISTER category:client key: subkey:",
        rf"INFO: DB: client\({peer}\) REGISTER category:topic key:orders subkey:",
        rf"INFO: DB: client\({peer}\) REGISTER category:channel key:orders subkey:archive",
        rf"INFO: CLIENT\({peer}\): pinged \(last ping [0-9.]+\S+\)",
        rf"INFO: DB: client\({peer}\) UNREGISTER category:channel key:orders subkey:archive",
        r"INFO: DB: setting tombstone for producer@nsqd1.example:4151 of topic\(orders\)",
        r"INFO: 200 POST /topic/tombstone\?topic=orders&node=nsqd1.example:4151 \(127.0.0.1:\d+\) [0-9.]+\S+",
        r"INFO: DB: adding channel\(c\) in topic\(orders\)",
        r"INFO: DB: removing channel\(archive\) from topic\(orders\)",
        r"INFO: DB: removing channel\(c\) from topic\(orders\)",
        r"INFO: DB: removing topic\(orders\)",
        rf"ERROR: \[{peer}\] - E_INVALID invalid command FOO",
        rf"INFO: DB: client\({peer}\) UNREGISTER category:client key: subkey:",
        rf"INFO: PROTOCOL\(V1\): \[{peer}\] exiting ioloop",
        rf"INFO: client\({peer}\) - EOF",
    ]
    found = [line.partition(".")[2][7:] for line in nsqlookupd.lines]
    found = [line for line in found if "POST" not in line or "tombstone" in line]
    assert len(found) == len(expected), "\n".join(found)
    for line, pattern in zip(found, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)
