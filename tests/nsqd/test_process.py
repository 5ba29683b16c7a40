"""nsqd as scripts know it: a process with flags, two ports, a data directory, signals and an exit status."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nsquark.kernel import keep_freed_memory
from nsquark.version import NSQ_VERSION, VERSION
from nsquark.wire import pack_error
from tests.daemon import PATIENCE, Client, Nsqd, pub, until

SCRIPT = Path(sys.executable).with_name("nsqd")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """nsqd with flags with which it ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "nsquark.nsqd", *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


# ---- the command


@pytest.mark.parametrize("flag", ["--version", "-version", "--version=true"])
def test_version_is_nsqs_with_ours_in_the_bracket(flag: str) -> None:
    result = run(flag)
    assert result.stdout == f"nsqd v{NSQ_VERSION} (built w/nsquark-{VERSION})\n"
    assert (result.returncode, result.stderr, NSQ_VERSION) == (0, "", "1.3.0")


def test_an_unknown_flag_is_a_usage_error() -> None:
    result = run("--no-such-flag")
    assert result.returncode == 2
    assert result.stderr.startswith("flag provided but not defined: -no-such-flag\nUsage of nsqd:\n")


def test_a_missing_data_directory_is_fatal(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    result = run(f"--data-path={path}")
    assert result.returncode == 1
    assert re.fullmatch(
        r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: "
        r"failed to instantiate nsqd - failed to lock data-path: "
        rf"open {re.escape(str(path))}: no such file or directory\n",
        result.stderr,
    )


def test_a_directory_in_use_is_fatal(nsqd: Nsqd) -> None:
    result = run(f"--data-path={nsqd.data_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    assert result.returncode == 1
    assert result.stderr.endswith(
        " FATAL: failed to instantiate nsqd - failed to lock data-path: "
        f"cannot flock directory {nsqd.data_path} - resource temporarily unavailable "
        "(possibly in use by another instance of nsqd)\n"
    )
    assert nsqd.running


@pytest.mark.parametrize("flag", ["--tcp-address", "--http-address"])
def test_a_port_in_use_is_fatal(flag: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        others = [f"{each}=127.0.0.1:0" for each in ("--tcp-address", "--http-address") if each != flag]
        result = run(f"--data-path={tmp_path}", f"{flag}={address}", *others)
    assert result.returncode == 1
    assert f" FATAL: failed to instantiate nsqd - listen ({address}) failed - " in result.stderr
    assert result.stderr.endswith("address already in use\n")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"topics":7}'])
def test_a_metadata_file_that_does_not_read_is_fatal(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(content)
    result = run(f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    assert result.returncode == 1
    assert (
        f"FATAL: failed to load metadata - failed to parse metadata in {tmp_path}/nsqd.dat - "
        in result.stderr
    )
    assert (tmp_path / "nsqd.dat").read_bytes() == content


# ---- the ports


def test_it_says_once_where_it_listens(nsqd: Nsqd) -> None:
    nsqd.stop()
    listening = [line.partition(" INFO: ")[2] for line in nsqd.lines if "listening on" in line]
    assert listening == [
        f"TCP: listening on {nsqd.tcp_address}",
        f"HTTP: listening on {nsqd.http_address}",
    ]
    assert nsqd.tcp_port != nsqd.http_port
    assert 0 not in (nsqd.tcp_port, nsqd.http_port)


async def test_it_answers_on_both_ports(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await client.pub("topic", b"body")
    assert await nsqd.http("GET", "/ping") == (200, b"OK")


def test_without_an_http_address_there_is_only_tcp(tmp_path: Path) -> None:
    path = tmp_path / "tcp"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "nsquark.nsqd",
            f"--tcp-address={path}",
            "--http-address=",
            f"--data-path={tmp_path}",
        ],
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        line = b""
        while b"listening" not in line:
            line = process.stderr.readline()
            assert line
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(path))
            client.sendall(b"  V2" + pub("topic", b"body"))
            assert client.recv(100) == b"\0\0\0\x06\0\0\0\0OK"
        process.terminate()
        _, rest = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert b"HTTP: listening" not in line + rest
    assert process.returncode == 0


@pytest.mark.parametrize("script", [True, False], ids=["console script", "module"])
def test_it_is_one_process(script: bool, tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "data")
    if script:
        nsqd.program = [str(SCRIPT)]
    with nsqd.start():
        pid = nsqd.process.pid
        assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""
        nsqd.kill()
        # nothing is left that listens
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", nsqd.tcp_port))


# ---- the end, and the beginning after it


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(nsqd: Nsqd, signum: signal.Signals) -> None:
    async with await nsqd.connect() as client:
        await client.sub("topic", "channel")
        assert nsqd.stop(signum) == 0
        await client.closed()
    assert not [line for line in nsqd.lines if "ERROR" in line or "Traceback" in line]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_as_soon_as_it_listens_ends_it_in_order(tmp_path: Path, signum: signal.Signals) -> None:
    for _ in range(3):
        with Nsqd(tmp_path / "data").start() as nsqd:
            assert nsqd.stop(signum) == 0
            assert not [line for line in nsqd.lines if " INFO: " not in line]


async def test_clients_that_do_nothing_do_not_delay_the_end(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data").start() as nsqd:
        flood = await nsqd.connect()
        await flood.mpub("topic", [b"x" * 100_000] * 50)
        clients = []
        for greeting in (
            b"",  # not even the magic
            b"  V2",
            b"  V2PUB topic\n\0\0\1\0half a body",
            b"  V2SUB topic channel\nRDY 100\n",  # and does not read
            b"  V2" + pub("topic", b"body") * 1000,  # nor does this one
        ):
            client = socket.create_connection(("127.0.0.1", nsqd.tcp_port))
            client.sendall(greeting)
            clients.append(client)
        for request in (b"", b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf"):
            client = socket.create_connection(("127.0.0.1", nsqd.http_port))
            client.sendall(request)
            clients.append(client)
        await flood.pub("topic", b"the end")
        assert await asyncio.to_thread(nsqd.stop, within=PATIENCE) == 0
        for client in clients:
            client.close()
        flood.close()


async def test_it_serves_again_at_once_on_the_same_ports_and_data(nsqd: Nsqd) -> None:
    addresses = nsqd.tcp_address, nsqd.http_address
    body = 0
    for _ in range(3):
        clients = [await nsqd.connect() for _ in range(5)]  # open when it dies
        body += 1
        await clients[0].pub("topic", b"%d" % body)
        await clients[1].sub("topic", "channel", rdy=10)
        for number in range(1, body + 1):
            assert (await clients[1].message()).body == b"%d" % number
        nsqd.kill()
        nsqd.restart()
        assert (nsqd.tcp_address, nsqd.http_address) == addresses
        for client in clients:
            await client.closed()
            client.close()
    async with await nsqd.connect() as client:
        await client.sub("topic", "channel", rdy=10)
        assert [(await client.message()).body for _ in range(body)] == [b"1", b"2", b"3"]
    assert nsqd.stop() == 0
    nsqd.restart()


# ---- unix sockets


async def test_unix_sockets_serve_and_are_gone_after_the_end(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "data")
    nsqd.tcp_address, nsqd.http_address = str(tmp_path / "tcp.sock"), str(tmp_path / "http.sock")
    with nsqd.start():
        assert nsqd.tcp_address == str(tmp_path / "tcp.sock")
        assert stat.S_ISSOCK(os.stat(nsqd.tcp_address).st_mode)
        async with await nsqd.connect() as client:
            await client.sub("topic", "channel", rdy=1)
            await client.pub("topic", b"body")
            assert (await client.message()).body == b"body"
        reader, writer = await asyncio.open_unix_connection(nsqd.http_address)
        writer.write(b"GET /ping HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nOK")
        writer.close()
        assert nsqd.stop() == 0
        assert not os.path.exists(nsqd.tcp_address)
        assert not os.path.exists(nsqd.http_address)
        nsqd.restart()


async def test_a_unix_socket_that_is_left_over_is_fatal_as_in_nsq(tmp_path: Path) -> None:
    path = tmp_path / "tcp.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    result = run(f"--data-path={tmp_path}", f"--tcp-address={path}", "--http-address=127.0.0.1:0")
    assert result.returncode == 1
    assert f"FATAL: failed to instantiate nsqd - listen ({path}) failed - " in result.stderr


# ---- stderr


async def test_a_stderr_that_nobody_drains_does_not_block_it(tmp_path: Path) -> None:
    path = tmp_path / "tcp"
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "nsquark.nsqd",
            f"--tcp-address={path}",
            "--http-address=",
            f"--data-path={tmp_path}",
        ],
        stderr=writing,
    )
    os.close(writing)
    try:
        await until(path.exists)
        async with await connected(path) as client:
            await client.sub("topic", "channel")
            # each of these is logged: some 2 MB, to a pipe of 4 kB
            client.send(b"TOUCH 0123456789abcdef\n" * 20_000)
            answer = pack_error(b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight")
            async with asyncio.timeout(PATIENCE):
                assert await client.reader.readexactly(20_000 * len(answer)) == answer * 20_000
            await client.pub("topic", b"body")
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)


async def connected(path: Path) -> Client:
    """A client of a unix socket that is bound, and may not be listened to yet."""
    while True:
        try:
            return await Client.connect(str(path))
        except ConnectionError:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
async def test_it_does_without_a_stderr(redirection: str, tmp_path: Path) -> None:
    path = tmp_path / "tcp"
    command = (
        f"exec '{sys.executable}' -m nsquark.nsqd --tcp-address={path} --http-address= --data-path={tmp_path}"
    )
    process = subprocess.Popen(["/bin/sh", "-c", f"{command} {redirection}"])
    try:
        await until(path.exists)
        async with await connected(path) as client:
            await client.pub("topic", b"body")
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


# ---- nsqd.dat


def metadata(nsqd: Nsqd) -> bytes:
    path = nsqd.data_path / "nsqd.dat"
    return path.read_bytes() if path.exists() else b""


async def metadata_is(nsqd: Nsqd, content: bytes) -> None:
    """It is written soon after the change, and stays like that over the end and the next start."""
    await until(lambda: metadata(nsqd) == content)
    assert nsqd.stop() == 0
    assert metadata(nsqd) == content
    nsqd.restart()
    assert metadata(nsqd) == content


async def test_metadata_without_topics(nsqd: Nsqd) -> None:
    await metadata_is(nsqd, b'{"topics":null,"version":"1.3.0"}')
    assert stat.S_IMODE(os.stat(nsqd.data_path / "nsqd.dat").st_mode) == 0o600


async def test_metadata_is_replaced_as_a_whole(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        for number in range(20):
            await client.pub(f"t{number}", b"body")
            json.loads(metadata(nsqd))
    assert nsqd.stop() == 0
    assert len(json.loads(metadata(nsqd))["topics"]) == 20
    assert list(nsqd.data_path.glob("*.tmp")) == []


async def test_metadata_of_a_topic_without_channels(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await client.pub("t", b"body")
    await metadata_is(nsqd, b'{"topics":[{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}')


async def test_metadata_of_a_topic_with_a_channel(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await client.sub("t", "ch")
    await metadata_is(
        nsqd,
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"ch","paused":false}]}],"version":"1.3.0"}',
    )


async def test_metadata_of_paused_topics_and_channels(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await client.sub("t", "ch")
    await nsqd.post("/channel/pause?topic=t&channel=ch")
    one = b'{"name":"ch","paused":true}'
    assert one in metadata(nsqd)  # by the time it is answered
    await nsqd.post("/topic/pause?topic=t")
    await metadata_is(
        nsqd, b'{"topics":[{"name":"t","paused":true,"channels":[%b]}],"version":"1.3.0"}' % one
    )


async def test_metadata_of_many_topics_and_channels(nsqd: Nsqd) -> None:
    channels = {"a": ["x"], "b": ["x", "y", "z"], "c": []}
    for topic, names in channels.items():
        await nsqd.post(f"/topic/create?topic={topic}")
        for name in names:
            await nsqd.post(f"/channel/create?topic={topic}&channel={name}")

    def known() -> dict[str, list[str]]:
        document = json.loads(metadata(nsqd))
        return {
            topic["name"]: sorted(channel["name"] for channel in topic["channels"] or [])
            for topic in document["topics"] or []
        }

    await until(lambda: known() == channels)
    await nsqd.post("/channel/delete?topic=b&channel=y")
    await nsqd.post("/topic/delete?topic=a")
    channels = {"b": ["x", "z"], "c": []}
    await until(lambda: known() == channels)
    nsqd.kill()
    nsqd.restart()
    assert known() == channels
    _, answer = await nsqd.http("GET", "/stats?format=json")
    served = {
        topic["topic_name"]: sorted(channel["channel_name"] for channel in topic["channels"])
        for topic in json.loads(answer)["topics"]
    }
    assert served == channels


async def test_what_is_ephemeral_is_not_kept(nsqd: Nsqd) -> None:
    ephemeral = "t#ephemeral"
    async with await nsqd.connect() as client, await nsqd.connect() as other, await nsqd.connect() as third:
        await client.sub(ephemeral, "ch")
        await other.sub("t", "ch#ephemeral")
        await third.sub("t", "ch")
        await client.pub(ephemeral, b"body")
        await client.pub("t", b"body")
        await until(lambda: b'"ch"' in metadata(nsqd))
        assert nsqd.stop() == 0
    assert metadata(nsqd) == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"ch","paused":false}]}],"version":"1.3.0"}'
    )
    assert [path for path in nsqd.data_path.rglob("*") if "ephemeral" in path.name] == []
    nsqd.restart()
    _, answer = await nsqd.http("GET", "/stats?format=json")
    (topic,) = json.loads(answer)["topics"]
    assert (topic["topic_name"], [each["channel_name"] for each in topic["channels"]]) == ("t", ["ch"])


async def test_names_of_dots_are_topics_like_any_other(nsqd: Nsqd) -> None:
    names = [".", "..", "...", ".x", "-", "_", "." * 64]
    async with await nsqd.connect() as client:
        for name in names:
            await client.pub(name, b"to " + name.encode())
        await client.dpub("..", 1, b"and again")
    nsqd.kill()
    outside = {path.name for path in nsqd.data_path.parent.iterdir()}
    assert outside == {nsqd.data_path.name}
    nsqd.restart()
    for name in names:
        async with await nsqd.connect() as client:
            await client.sub(name, name, rdy=10)
            message = await client.message()
            if name == ".." and message.body == b"and again":
                message = await client.message()
            assert message.body == b"to " + name.encode()
            client.fin(message)
            await client.caught_up()
    for name in names:
        await nsqd.post(f"/topic/delete?topic={name}")
    await metadata_is(nsqd, b'{"topics":null,"version":"1.3.0"}')


def test_a_crowd_may_wait_to_be_accepted(nsqd: Nsqd) -> None:
    """An event loop that is told nothing takes 100; a client that comes then waits for its retransmission."""
    assert nsqd.process is not None
    nsqd.process.send_signal(signal.SIGSTOP)
    crowd = []
    try:
        for _ in range(300):
            crowd.append(socket.create_connection(("127.0.0.1", nsqd.tcp_port), timeout=5))
    finally:
        nsqd.process.send_signal(signal.SIGCONT)
        for client in crowd:
            client.close()


# ---- memory


@pytest.mark.skipif(not keep_freed_memory(1 << 20, 1 << 20), reason="the C library, or the kernel, cannot")
async def test_large_bodies_come_into_memory_that_is_there(nsqd: Nsqd) -> None:
    """A page that the system has to map and clear is a fault. A body of a megabyte has 245 pages."""

    def faults() -> int:
        stat = Path(f"/proc/{nsqd.process.pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[7])

    async with await nsqd.connect() as client:
        await client.sub("large", "ch", rdy=1)
        counts = []
        for _ in range(60):
            await client.pub("large", bytes(1_000_000))
            client.fin(await client.message())
            counts.append(faults())
    assert counts[-1] - counts[29] < 30 * 20
