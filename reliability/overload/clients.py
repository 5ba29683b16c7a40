"""Very many connections to one nsqd, from several source addresses, served by one thread."""

from __future__ import annotations

import contextlib
import itertools
import resource
import select
import socket
import struct
import threading
from collections.abc import Iterator

from tests.daemon import Nsqd

TIMEOUT = 120.0
PORTS = 20_000  # connections from one source address: fewer than there are ports
_SPARE = 200  # descriptors for everything else


def fitting(count: int, each: int) -> int:
    """How many of `count` things that take `each` descriptors can be had here.

    Raises the limit of this process as far as that goes; its children inherit it.
    """
    wanted = count * each + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # only root may raise the hard limit, if at all
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(count, (hard - _SPARE) // each)


class Crowd:
    """Connections that answer heartbeats and read everything. `dropped` counts those that nsqd has ended."""

    def __init__(self, nsqd: Nsqd) -> None:
        host, _, port = nsqd.tcp_address.rpartition(":")
        self._address = host, int(port)
        self.sockets: dict[int, socket.socket] = {}
        self.dropped = 0
        self._poll = select.epoll()
        self._ending = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def add(self, hello: bytes, answers: int) -> None:
        """One more: it says hello, and reads as many frames before it is on its own."""
        source = f"127.0.{1 + len(self.sockets) // PORTS}.1"
        sock = socket.create_connection(self._address, TIMEOUT, (source, 0))
        sock.sendall(hello)
        for _ in range(answers):
            read_frame(sock)
        sock.setblocking(False)
        self.sockets[sock.fileno()] = sock
        self._poll.register(sock, select.EPOLLIN)

    def _serve(self) -> None:
        while not self._ending:
            for fd, _ in self._poll.poll(0.1):
                sock = self.sockets[fd]
                try:
                    data = sock.recv(1 << 16)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    data = b""
                if not data:
                    self.dropped += 1
                    self._poll.unregister(fd)
                elif b"_heartbeat_" in data:
                    with contextlib.suppress(OSError):
                        sock.sendall(b"NOP\n")

    def close(self) -> None:
        self._ending = True
        self._thread.join(TIMEOUT)
        for sock in self.sockets.values():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT
            sock.close()
        self._poll.close()


class Connection:
    """One that pipelines commands and counts answers."""

    def __init__(self, nsqd: Nsqd, hello: bytes = b"  V2") -> None:
        host, _, port = nsqd.tcp_address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT)
        self._stream = self.socket.makefile("rb", 1 << 18)
        self.send(hello)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> bytes:
        """The data of the next frame that is no heartbeat. Raises ConnectionError."""
        while True:
            head = self._stream.read(8)
            if len(head) < 8:
                raise ConnectionError("nsqd has closed the connection")
            size, _ = struct.unpack(">ii", head)
            data: bytes = self._stream.read(size - 4)
            if data != b"_heartbeat_":
                return data
            self.send(b"NOP\n")

    def ok(self) -> None:
        answer = self.frame()
        if answer != b"OK":
            raise ConnectionError(f"nsqd says {answer!r}")

    def ask_all(self, commands: Iterator[bytes], window: int = 1000) -> int:
        """Send commands that are answered with OK, a window at a time; how many there were."""
        count = 0
        while some := list(itertools.islice(commands, window)):
            self.send(b"".join(some))
            for _ in some:
                self.ok()
            count += len(some)
        return count

    def close(self) -> None:
        self._stream.close()
        self.socket.close()


def read_frame(sock: socket.socket) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
        piece = sock.recv(4 if len(data) < 4 else 4 + struct.unpack(">i", data[:4])[0] - len(data))
        if not piece:
            raise ConnectionError("nsqd has closed the connection")
        data += piece
    return data
