"""The servers under load: a fresh nsqd, or nsqload's sink, each on a free loopback port.

A server lives for one `with` block, and so does its data. Within it a workload may stop and start it again.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import load
from load import LoadError

START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0


@dataclass(slots=True)
class Server:
    port: int
    http_port: int  # 0 if it has none
    process: subprocess.Popen[bytes]
    argv: Sequence[str] = ()
    log: Path = Path(os.devnull)
    data: Path | None = None

    def start(self) -> float:
        """Start it again on the data that it has; how many seconds until it answers. Raises LoadError."""
        began = time.monotonic()
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.argv, stdout=out, stderr=subprocess.STDOUT)
        _wait_until_answering(self.process, self.port, self.http_port)
        return time.monotonic() - began

    def stop(self) -> None:
        """Stop it as an operator does, so that Go's nsqd writes what it has in memory. Raises LoadError."""
        self._check_alive()
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise LoadError(f"the server did not stop within {STOP_TIMEOUT:g} s") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self, described: str, empty: bool = False) -> None:
        """Kill it, let nsqd.dat say `described`, without any other file if `empty`, and start it again."""
        self.kill()
        data = self._data()
        if empty:
            shutil.rmtree(data)
            data.mkdir()
        Path(data, "nsqd.dat").write_text(described)
        self.start()

    def evict_files(self) -> None:
        """Write its files to the disk and drop them from the page cache."""
        for file in self._files():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def read_files(self) -> None:
        """Bring its files into the page cache."""
        for file in self._files():
            with file.open("rb") as opened:
                while opened.read(1 << 20):
                    pass

    def _data(self) -> Path:
        if self.data is None:
            raise LoadError("the server has no data folder")
        return self.data

    def _files(self) -> list[Path]:
        return [file for file in self._data().rglob("*") if file.is_file() and not file.is_symlink()]

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
        tcp, http = free_ports(2)
        argv = [
            str(executable),
            f"--tcp-address=127.0.0.1:{tcp}",
            f"--http-address=127.0.0.1:{http}",
            "--broadcast-address=127.0.0.1",
            f"--data-path={data}",
            "--log-level=error",
            *flags,
        ]
        with running(argv, tcp, http, Path(folder, "log")) as server:
            server.data = data
            yield server


def metadata(topics: Sequence[str], channels: Sequence[str]) -> str:
    """What nsqd.dat says of these topics, each with these channels."""
    each = [{"name": name, "paused": False} for name in channels]
    described = [{"name": name, "paused": False, "channels": each} for name in topics]
    return json.dumps({"version": "1.3.0", "topics": described})


@contextmanager
def sink() -> Iterator[Server]:
    """Run the server that stores nothing: the most that this machine and generator can do."""
    (port,) = free_ports(1)
    with (
        tempfile.TemporaryDirectory(prefix="sink-bench-") as folder,
        running(load.command("sink", port), port, 0, Path(folder, "log")) as server,
    ):
        yield server


def version(executable: Path) -> str | None:
    """What the nsqd says of itself, if it does."""
    said = subprocess.run([executable, "--version"], check=False, capture_output=True, text=True)
    return said.stdout.strip() or None


@contextmanager
def running(argv: Sequence[str], port: int, http_port: int, log: Path) -> Iterator[Server]:
    """Raises LoadError, with the end of the server's log, if it does not listen or `with` ends in one."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    server = Server(port, http_port, process, argv, log)
    try:
        _wait_until_answering(process, port, http_port)
        yield server
    except LoadError as error:
        raise LoadError(f"{error}\n{log.read_text(errors='replace')[-1000:]}".strip()) from error
    finally:
        # Not a polite stop: an nsqd would first write its memory to a folder about to be removed.
        server.kill()


def _wait_until_answering(process: subprocess.Popen[bytes], port: int, http_port: int) -> None:
    """Until `/ping` is answered: Go's nsqd listens long before it has loaded its topics.

    What has no HTTP needs only to listen.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if http_port:
                urllib.request.urlopen(f"http://127.0.0.1:{http_port}/ping", timeout=START_TIMEOUT).close()
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.01)
    raise LoadError("the server does not answer")


def free_ports(count: int) -> list[int]:
    # All are held until the last is found, so that no port comes twice.
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports
