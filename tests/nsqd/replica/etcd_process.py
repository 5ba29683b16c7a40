"""A real etcd for tests, on ports of its own."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path


def why_not() -> str:
    """Why no etcd can be started here; empty if one can."""
    return "" if shutil.which("etcd") else "there is no etcd: apt-get install etcd-server"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def etcd(folder: Path, *flags: str, scheme: str = "http", port: int = 0) -> Iterator[str]:
    """An etcd of one process; its endpoint. Started again on the same folder and port, it goes on."""
    deadline = time.monotonic() + 20
    while True:
        client, peer = f"{scheme}://127.0.0.1:{port or _free_port()}", f"http://127.0.0.1:{_free_port()}"
        process, lines = _start(folder, client, peer, flags)
        if process.poll() is None:
            break
        # Another process may have got the port meanwhile.
        taken = any("address already in use" in line for line in lines)
        if not taken or time.monotonic() > deadline:
            raise AssertionError("etcd does not start: " + "".join(lines[-5:]))
    try:
        yield client
    finally:
        process.kill()
        process.wait()


def _start(
    folder: Path, client: str, peer: str, flags: tuple[str, ...]
) -> tuple[subprocess.Popen[str], list[str]]:
    """Start an etcd, and wait until it serves or ends; returns what it said until then, too."""
    command = [
        *("etcd", "--data-dir", str(folder), "--listen-client-urls", client),
        *("--advertise-client-urls", client, "--listen-peer-urls", peer),
        *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", *flags),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "client requests" in line:  # "serving insecure client requests on ..."
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, lines
    process.wait()
    return process, lines
