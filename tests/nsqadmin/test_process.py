"""nsqadmin as scripts know it: a process with flags, a port, signals and an exit status."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys

import pytest

from nsquark.version import NSQ_VERSION, VERSION
from tests.daemon import PATIENCE, Nsqadmin, Nsqlookupd
from tests.nsqadmin.served import free_address


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """nsqadmin with flags with which it ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "nsquark.nsqadmin", *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_version_is_nsqs_with_ours_in_the_bracket() -> None:
    result = run("--version")
    assert result.stdout == f"nsqadmin v{NSQ_VERSION} (built w/nsquark-{VERSION})\n"
    assert (result.returncode, result.stderr) == (0, "")


def test_a_refusal_is_one_fatal_line() -> None:
    result = run()
    assert result.returncode == 1
    assert re.fullmatch(
        r"\[nsqadmin\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: failed to instantiate nsqadmin - "
        r"--nsqd-http-address or --lookupd-http-address required\n",
        result.stderr,
    )


def test_a_port_in_use_is_fatal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(f"--http-address={address}", "--nsqd-http-address=127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr.endswith(f"listen ({address}) failed - address already in use\n")


def test_a_ca_file_that_is_missing_is_fatal() -> None:
    flags = ("--nsqd-http-address=127.0.0.1:1", "--http-client-tls-root-ca-file=/nope")
    result = run("--http-address=127.0.0.1:0", *flags)
    assert result.returncode == 1
    assert result.stderr.endswith(
        "failed to instantiate nsqadmin - failed to read TLS root CA file /nope - no such file or directory\n"
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_nobody_delays_the_end(nsqlookupd: Nsqlookupd, signum: signal.Signals) -> None:
    nsqadmin = Nsqadmin(f"--lookupd-http-address={nsqlookupd.http_address}")
    with nsqadmin.start():
        clients = []
        nsqlookupd.process.send_signal(signal.SIGSTOP)
        try:
            for request in (
                b"",
                b"GET /ping HTTP/1.1\r\n",
                b"GET /api/topics HTTP/1.1\r\nHost: a\r\n\r\n",
                b"POST /api/topics HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
            ):
                client = socket.create_connection(("127.0.0.1", nsqadmin.http_port))
                client.sendall(request)
                clients.append(client)
            assert (await nsqadmin.http("GET", "/ping"))[0] == 200
            assert await asyncio.to_thread(nsqadmin.stop, signum, within=4) == 0
            assert not any("Traceback" in line or "ERROR" in line for line in nsqadmin.lines), nsqadmin.lines
        finally:
            nsqlookupd.process.send_signal(signal.SIGCONT)
        for client in clients:
            client.close()


async def test_the_log_is_nsqs_and_holds_no_secret(nsqlookupd: Nsqlookupd) -> None:
    nsqadmin = Nsqadmin(
        f"--lookupd-http-address={nsqlookupd.http_address}",
        f"--notification-http-endpoint=http://{free_address()}/hook?key=sesame",
        "--http-client-secret=sesame",
        "--log-level=debug",
    )
    with nsqadmin.start():
        assert (await nsqadmin.http("GET", "/api/topics?a=b"))[0] == 200
        assert (await nsqadmin.http("GET", "/api/topics/t"))[0] == 502
        assert (await nsqadmin.http("POST", "/api/topics", b'{"topic":"new"}'))[0] == 200
        nsqadmin.wait_for_line("failed to send a notification")
        assert await asyncio.to_thread(nsqadmin.stop) == 0
    log = "\n".join(line.partition(".")[2][7:] for line in nsqadmin.lines)
    assert re.search(r"^INFO: nsqadmin v1.3.0 \(built w/nsquark-", log, re.M)
    assert re.search(r"^INFO: HTTP: listening on 127.0.0.1:\d+$", log, re.M)
    assert re.search(r"^INFO: 200 GET /api/topics\?a=b \(127.0.0.1:\d+\) [0-9.]+\S+$", log, re.M)
    assert re.search(r"^WARNING: failed to query any nsqlookupd: .*TOPIC_NOT_FOUND", log, re.M)
    assert "sesame" not in log
