"""The servers under load: a fresh nsqd, or nsqload's sink, each on a free loopback port.

A server lives for one `with` block, and so does its data.
"""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import load
from load import LoadError

START_TIMEOUT = 20.0


@dataclass(slots=True)
class Server:
    port: int
    http_port: int  # 0 if it has none
    process: subprocess.Popen[bytes]

    def rss(self) -> int:
        """Resident memory in bytes, whatever it is made of."""
        self._check_alive()
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def processor_seconds(self) -> float:
        """User and system time of all its threads so far."""
        self._check_alive()
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        self._check_alive()
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def _check_alive(self) -> None:
        if self.process.poll() is not None:
            raise LoadError(f"the server ended with {self.process.returncode}")


@contextmanager
def nsqd(
    executable: Path, flags: Sequence[str], data_parent: Path | None, metadata: str = ""
) -> Iterator[Server]:
    """Run an nsqd with `flags` and a data path of its own, made under `data_parent` and removed at the end.

    It is empty but for `metadata`, what nsqd.dat says: topics and channels to begin with.
    """
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-", dir=data_parent) as folder:
        data = Path(folder, "data")
        data.mkdir()
        if metadata:
            Path(data, "nsqd.dat").write_text(metadata)
        tcp, http = _free_ports(2)
        argv = [
            str(executable),
            f"--tcp-address=127.0.0.1:{tcp}",
            f"--http-address=127.0.0.1:{http}",
            "--broadcast-address=127.0.0.1",
            f"--data-path={data}",
            "--log-level=error",
            *flags,
        ]
        with _running(argv, tcp, http, Path(folder, "log")) as server:
            yield server


@contextmanager
def sink() -> Iterator[Server]:
    """Run the server that stores nothing: the most that this machine and generator can do."""
    (port,) = _free_ports(1)
    with (
        tempfile.TemporaryDirectory(prefix="sink-bench-") as folder,
        _running(load.command("sink", port), port, 0, Path(folder, "log")) as server,
    ):
        yield server


def version(executable: Path) -> str | None:
    """What the nsqd says of itself, if it does."""
    said = subprocess.run([executable, "--version"], check=False, capture_output=True, text=True)
    return said.stdout.strip() or None


@contextmanager
def _running(argv: Sequence[str], port: int, http_port: int, log: Path) -> Iterator[Server]:
    """Raises LoadError, with the end of the server's log, if it does not listen or `with` ends in one."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    try:
        _wait_until_listening(process, port)
        yield Server(port, http_port, process)
    except LoadError as error:
        raise LoadError(f"{error}\n{log.read_text(errors='replace')[-1000:]}".strip()) from error
    finally:
        # Not a polite stop: an nsqd would first write its memory to a folder about to be removed.
        process.kill()
        process.wait()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise LoadError("the server does not listen")


def _free_ports(count: int) -> list[int]:
    # All are held until the last is found, so that no port comes twice.
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports
