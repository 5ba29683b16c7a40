"""Hosts in network namespaces, and the network between them, whose latency, loss and partitions can be set.

    namespace ─ tun ─┐
    namespace ─ tun ─┼─ Network: a thread that passes IP packets on, late, or not at all
    namespace ─ tun ─┘

Each host has one address, and a tun device as its only way out. The kernel's netem would do for latency and
loss, but many kernels come without it, and this works for every pair of hosts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import selectors
import shutil
import struct
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_DEVICE = "tun0"
_PACKET = 1 << 16
_numbers = itertools.count()


def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.name != "posix" or os.uname().sysname != "Linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip (Debian: iproute2)"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    name = f"nsquark-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "ip netns add is refused here"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


@dataclass(slots=True)
class Link:
    """What happens to packets between two hosts, each way."""

    delay: float = 0.0  # seconds
    loss: float = 0.0  # the share of packets that is dropped
    cut: bool = False


class Host:
    """A namespace with one address."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.namespace = f"nsquark-{os.getpid()}-{next(_numbers)}-{name}"
        self.address = f"10.213.{number}.1"
        _ip("netns", "add", self.namespace)
        self.tun: int = self.within(_open_tun)
        for command in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self.address}/32", "dev", _DEVICE),
            ("link", "set", _DEVICE, "up"),
            ("route", "add", "default", "dev", _DEVICE),
        ):
            _ip("-n", self.namespace, *command)

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command, to run it on this host."""
        return "ip", "netns", "exec", self.namespace

    def within(self, function: Callable[[], T]) -> T:
        """Call a function on this host. A thread is moved there for it, and ends."""
        result: list[T] = []

        def run() -> None:
            _enter(self.namespace)
            result.append(function())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if not result:
            raise OSError(f"it did not work on the host {self.name}")
        return result[0]

    def get(self, url: str) -> Any:
        """The JSON at a URL that this host can reach."""

        def ask() -> Any:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)

        return self.within(ask)

    def close(self) -> None:
        os.close(self.tun)
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True)


class Network:
    """`with Network("a", "b") as network`: the hosts `network["a"]` and so on; `network.link("a", "b")`."""

    def __init__(self, *names: str, seed: int = 1) -> None:
        self._hosts: dict[str, Host] = {}
        self._links: dict[frozenset[str], Link] = {}
        self._by_address: dict[bytes, Host] = {}
        self._random = random.Random(seed)
        self._late: list[tuple[float, int, int, bytes]] = []  # when, a tie-breaker, to which tun, what
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._closing = False
        self.dropped = self.passed = 0
        try:
            for number, name in enumerate(names):
                host = self._hosts[name] = Host(name, number)
                self._by_address[bytes(map(int, host.address.split(".")))] = host
                self._selector.register(host.tun, selectors.EVENT_READ, host)
        except BaseException:
            self._close_hosts()
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._thread.join()
        self._selector.close()
        self._close_hosts()

    def _close_hosts(self) -> None:
        for host in self._hosts.values():
            host.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def link(self, one: str, other: str) -> Link:
        return self._links.setdefault(frozenset((one, other)), Link())

    def isolate(self, name: str, cut: bool = True) -> None:
        """Cut a host off from all others, or connect it again."""
        for other in self._hosts:
            if other != name:
                self.link(name, other).cut = cut

    # ---- the thread

    def _pass_on(self) -> None:
        while not self._closing:
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, tun, packet = heapq.heappop(self._late)
                _write(tun, packet)
            wait = min(0.1, self._late[0][0] - now) if self._late else 0.1
            for key, _ in self._selector.select(max(0.0, wait)):
                self._read(key.data)

    def _read(self, source: Host) -> None:
        for _ in range(64):
            try:
                packet = os.read(source.tun, _PACKET)
            except BlockingIOError:
                return
            target = self._by_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if target is None:
                continue
            link = self.link(source.name, target.name)
            if link.cut or (link.loss and self._random.random() < link.loss):
                self.dropped += 1
                continue
            self.passed += 1
            if link.delay:
                due = time.monotonic() + link.delay
                heapq.heappush(self._late, (due, next(_numbers), target.tun, packet))
            else:
                _write(target.tun, packet)


def _write(tun: int, packet: bytes) -> None:
    with contextlib.suppress(BlockingIOError):  # a full queue loses packets, as queues do
        os.write(tun, packet)


def _open_tun() -> int:
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return tun


def _enter(namespace: str) -> None:
    """Move this thread to a namespace."""
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")
    finally:
        os.close(fd)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
