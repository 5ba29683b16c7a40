"""An nsqd on what a power cut has left, and what it says of it."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

_LISTENING = re.compile(rb"INFO: (TCP|HTTP): listening on 127\.0\.0\.1:(\d+)")
_FRAME = struct.Struct(">iiqH16s")  # size, kind, time, attempts, id
_HEAD = struct.Struct(">4sIQQQ")  # of /log/read
PATIENCE = 60.0
DELIVERED_WITHIN = 30.0
SILENCE = 0.1  # after which to ask whether there is anything more


class NotStarted(Exception):
    """nsqd has ended instead of listening. Its stderr."""


class Stored(NamedTuple):
    position: int
    id: bytes
    body: bytes


class Recovered:
    """A real nsqd, until the end of the `with`: a fork of this process, unless there is a command for it.

    A fork starts five times as fast, since everything is imported. This process must have one thread.
    """

    def __init__(self, path: Path, *flags: str, command: list[str] | None = None) -> None:
        self._path = path
        self._flags = [
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            f"--data-path={path}",
            *flags,
        ]
        self._command = command
        self._pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[bytes, int] = {}
        self._http: http.client.HTTPConnection | None = None
        self.stderr = b""

    def __enter__(self) -> Recovered:
        """Raises NotStarted."""
        reading, writing = os.pipe()
        if self._command is not None:
            self._process = subprocess.Popen(
                [*self._command, *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=writing,
            )
            self._pid = self._process.pid
        else:
            self._fork(reading, writing)
        os.close(writing)
        self._reading = reading
        try:
            self._await_ports()
        except BaseException:
            self.kill()
            raise
        self._http = http.client.HTTPConnection("127.0.0.1", self._ports[b"HTTP"], timeout=PATIENCE)
        try:
            self.request("GET", "/live")  # it listens before it has loaded anything
        except OSError:
            self._await_end()
            raise NotStarted(self.stderr.decode(errors="replace")) from None
        return self

    def _fork(self, reading: int, writing: int) -> None:
        from nsquark.nsqd.__main__ import main

        self._pid = os.fork()
        if self._pid:
            return
        status = 70
        try:
            os.close(reading)
            silence = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1):
                os.dup2(silence, descriptor)
            os.dup2(writing, 2)
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 (a test may have replaced it)
            sys.argv = ["nsqd", *self._flags]
            status = main() or 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def _await_end(self) -> None:
        """Take in what it has to say, until it has ended."""
        while data := os.read(self._reading, 65536):
            self.stderr += data
        self.kill()

    def _await_ports(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self._ports) < 2:
            data = os.read(self._reading, 65536)
            self.stderr += data
            if not data or time.monotonic() > deadline:
                raise NotStarted(self.stderr.decode(errors="replace"))
            self._ports = {service: int(port) for service, port in _LISTENING.findall(self.stderr)}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def tcp_port(self) -> int:
        return self._ports[b"TCP"]

    def kill(self) -> None:
        """SIGKILL, and take in the rest of its stderr."""
        if not self._pid:
            return
        if self._http is not None:
            self._http.close()
        os.kill(self._pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        else:
            os.waitpid(self._pid, 0)
        self._pid = 0
        while data := os.read(self._reading, 65536):
            self.stderr += data
        os.close(self._reading)

    def errors(self) -> bytes:
        """What it has written to its stderr so far."""
        while select.select([self._reading], [], [], 0)[0]:
            data = os.read(self._reading, 65536)
            if not data:
                break
            self.stderr += data
        return self.stderr

    # ---- asking

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        assert self._http is not None
        self._http.request(method, path, body)
        response = self._http.getresponse()
        return response.status, response.read()

    def get(self, path: str) -> Any:
        status, answer = self.request("GET", path)
        assert status == 200, (path, status, answer)
        return json.loads(answer)

    def stats(self) -> dict[str, dict[str, Any]]:
        return {each["topic_name"]: each for each in self.get("/stats?format=json")["topics"] or []}

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        """Its entry in /stats."""
        states: list[dict[str, Any]] = self.stats()[topic]["channels"]
        return next(each for each in states if each["channel_name"] == channel)

    def log(self, topic: str) -> Iterator[Stored]:
        """Every message of a topic's log."""
        bounds = self.get(f"/log/range?topic={topic}")
        position, end = bounds["first"], bounds["next"]
        while position < end:
            status, answer = self.request("GET", f"/log/read?topic={topic}&from={position}&to={end}")
            if status == 410:
                told = json.loads(answer)
                following = max(told.get("following", 0), told["first"])
                assert following > position, (topic, position, told)
                position = following
                continue
            assert status == 200, (topic, position, status, answer)
            _, count, position, _, length = _HEAD.unpack_from(answer)
            batches = memoryview(answer)[_HEAD.size : _HEAD.size + length]
            for (at,) in struct.iter_unpack(">I", answer[_HEAD.size + length :]):
                size, _, _, _, message_id = _FRAME.unpack_from(batches, at)
                yield Stored(position, message_id, bytes(batches[at + _FRAME.size : at + 4 + size]))
                position += 1
            assert count, (topic, position)

    def drain(self, topic: str, channel: str, count: int) -> list[tuple[bytes, bytes]]:
        """The id and body of every message that a channel delivers, none of which is answered.

        `count` is its depth. That may count messages which turn out to be deferred when they are read.
        """
        found: list[tuple[bytes, bytes]] = []
        deadline = time.monotonic() + DELIVERED_WITHIN
        with socket.create_connection(("127.0.0.1", self.tcp_port), SILENCE) as sock:
            sock.sendall(b"  V2SUB %b %b\nRDY 1000000\n" % (topic.encode(), channel.encode()))
            data, at = bytearray(), 0
            while len(found) < count:
                try:
                    more = sock.recv(1 << 18)
                except TimeoutError:
                    state = self.channel(topic, channel)
                    if state["depth"] == 0 and state["in_flight_count"] == len(found):
                        break
                    assert time.monotonic() < deadline, (
                        f"{topic}/{channel} delivers {len(found)} of {count}: {state}"
                    )
                    continue
                assert more, f"{topic}/{channel} closes after {len(found)} of {count}"
                data += more
                while len(data) - at >= 8:
                    size, kind = struct.unpack_from(">ii", data, at)
                    if len(data) - at < 4 + size:
                        break
                    if kind == 2:
                        _, _, _, _, message_id = _FRAME.unpack_from(data, at)
                        found.append((message_id, bytes(data[at + _FRAME.size : at + 4 + size])))
                    elif kind == 1:
                        raise AssertionError(f"{topic}/{channel}: {bytes(data[at + 8 : at + 4 + size])!r}")
                    at += 4 + size
        return found
