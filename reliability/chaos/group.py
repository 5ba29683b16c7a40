"""The processes of a group: etcd, nsqlookupd, two or three nsqds, and the links between them.

Everything has an address of 127.0.0.0/8 of its own, so that no other process takes a port while its owner is
down.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.daemon import Nsqlookupd

from . import archive
from .links import Link

TCP, HTTP, LINK, ETCD, PEER = 4150, 4151, 5151, 2379, 2380
LEASE = 3.0
LOOK_EVERY = 0.1
_OF_CLIENTS = re.compile(r"INFO: (\d+ [A-Z]+ /|.*\[\d+\.\d+\.\d+\.\d+:\d+\])")
PATIENCE = 60.0  # for what takes seconds, on a machine that has something else to do


def why_not() -> str:
    """Why no group can be started here; empty if one can."""
    return "" if shutil.which("etcd") else "there is no etcd: apt-get install etcd-server"


@dataclass(frozen=True, slots=True)
class Settings:
    members: int = 2
    ack: str = "written"
    min_copies: int = 1
    failovers: int = 10  # of a series
    patience: float = 20.0  # seconds without a message after which it counts as lost
    whole_within: float = PATIENCE  # seconds after the end of all faults in which all are in sync
    slack: float = 15.0  # seconds beyond lease + 2 s that a busy machine may need
    mutant: str = ""
    archive: bool = False  # segments are small, and go to an archive that all members share


class Process:
    """A process that is killed, stopped and started again. Its output goes to a file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command = command
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        assert not self.running
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.stopped = number == signal.SIGSTOP

    async def ended(self, within: float) -> bool:
        """Whether it has ended in time."""
        end = asyncio.get_running_loop().time() + within
        while self.running:
            if asyncio.get_running_loop().time() > end:
                return False
            await asyncio.sleep(0.02)
        return True

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended(PATIENCE)
        self.stopped = False

    def tracebacks(self) -> list[str]:
        """What its output has of unexpected errors, each with the lines around its beginning."""
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return [
            "\n".join(lines[max(0, at - 1) : at + 30]) for at, line in enumerate(lines) if "Traceback" in line
        ]

    def last_lines(self, count: int = 20) -> list[str]:
        """The last lines of its output, without those of single requests and connections."""
        if not self.log.exists():
            return []
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return [line for line in lines if not _OF_CLIENTS.search(line)][-count:]


class Member(Process):
    """An nsqd of the group, the link by which others reach it, and its own link to etcd."""

    def __init__(self, group: Group, number: int, settings: Settings) -> None:
        self.name = "abc"[number]
        self.host = group.host(number + 1)
        self.data_path = group.folder / self.name
        self.data_path.mkdir()
        self.link = Link(f"to {self.name}", (self.host, LINK), (self.host, HTTP))
        self.etcd_link = Link(f"{self.name} to etcd", (self.host, ETCD), (group.host(100), ETCD))
        self.tcp_address = f"{self.host}:{TCP}"
        self.http_address = f"{self.host}:{HTTP}"
        program = ["reliability.chaos.mutants", settings.mutant] if settings.mutant else ["nsquark.nsqd"]
        flags = {
            "data-path": self.data_path,
            "node-id": 7,
            "tcp-address": self.tcp_address,
            "http-address": self.http_address,
            "broadcast-address": self.host,
            "lookupd-tcp-address": group.lookupd.tcp_address,
            "drain-timeout": "0s",
            "msg-timeout": "5m",
            "max-msg-timeout": "10m",
            "retention-bytes": 1 << 40,
            "replica-group": "chaos",
            "replica-member": self.name,
            "replica-etcd": self.etcd_link,
            "replica-advertise": self.link,
            "replica-ack": settings.ack,
            "min-copies": settings.min_copies,
            "replica-timeout": "2s",
            "replica-lease": f"{LEASE:.0f}s",
        }
        if settings.archive:
            flags["archive-url"] = f"file://{group.folder / archive.FOLDER}"
            flags["max-bytes-per-file"] = flags["retention-bytes"] = archive.SEGMENT
        command = [sys.executable, "-m", *program, *(f"--{name}={value}" for name, value in flags.items())]
        if number == 0:
            command.append("--replica-bootstrap")
        super().__init__(command, group.folder / f"{self.name}.log")

    @property
    def links(self) -> tuple[Link, Link]:
        return self.link, self.etcd_link

    async def begin(self) -> None:
        """Start the process, and let others connect to it."""
        self.start()
        await self.link.open()

    async def kill(self) -> None:
        await super().kill()
        await self.gone()

    async def gone(self) -> None:
        """The process has ended: connections to it are refused."""
        await self.link.close()
        await self.etcd_link.reset()

    async def ask(
        self, method: str, path: str, body: bytes = b"", within: float = PATIENCE
    ) -> tuple[int, bytes]:
        """The status and the body of an answer. Raises OSError if there is none."""
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_connection(self.host, HTTP)
            try:
                head = f"{method} {path} HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\nContent-Length: "
                writer.write(head.encode() + b"%d\r\n\r\n" % len(body) + body)
                answer = await reader.read()
            finally:
                writer.transport.abort()
        head_bytes, blank, content = answer.partition(b"\r\n\r\n")
        if not blank:
            raise ConnectionResetError(f"{self.name} closed the connection without an answer")
        length = next(
            (
                int(line[15:])
                for line in head_bytes.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ),
            len(content),
        )
        if len(content) < length:
            raise ConnectionResetError(f"{self.name} closed the connection in the middle of an answer")
        return int(head_bytes.split(b" ", 2)[1]), content

    async def replica(self, within: float = 2.0) -> dict[str, Any]:
        """What the member says of the group; nothing if it does not answer."""
        try:
            status, answer = await self.ask("GET", "/replica", within=within)
        except (OSError, ValueError):
            return {}
        told = json.loads(answer) if status == 200 else {}
        return told if isinstance(told, dict) else {}


class Group:
    """`primary` is the member that served last as far as is known, `term` the highest term known.

    No client goes back to a member of an older term.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        chance = random.SystemRandom()  # other runs with the same seed may be under way
        self._net = f"127.{chance.randrange(16, 250)}.{chance.randrange(250)}"
        self.lookupd = Nsqlookupd()
        self.lookupd.tcp_address = f"{self.host(101)}:4160"
        self.lookupd.http_address = f"{self.host(101)}:4161"
        self.etcd = Process(self._etcd_command(), folder / "etcd.log")
        self.members = [Member(self, number, settings) for number in range(settings.members)]
        self.primary: Member | None = None
        self.term = 0
        self._changed = asyncio.Condition()
        self._watches: list[asyncio.Task[None]] = []

    def host(self, number: int) -> str:
        return f"{self._net}.{number}"

    def _etcd_command(self) -> list[str]:
        client, peer = f"http://{self.host(100)}:{ETCD}", f"http://{self.host(100)}:{PEER}"
        flags = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        return ["etcd", *(f"--{name}={value}" for name, value in flags.items())]

    async def __aenter__(self) -> Self:
        try:
            self.etcd.start()
            self.lookupd.start()
            for member in self.members:
                await member.etcd_link.open()
            # The founder leads before others ask etcd for a group.
            await self.members[0].begin()
            self._watches = [asyncio.ensure_future(self._watch(each)) for each in self.members]
            await self.serving()
            for member in self.members[1:]:
                await member.begin()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for process in (*self.members, self.etcd):
            await process.kill()
        for member in self.members:
            await member.etcd_link.close()
        if hasattr(self.lookupd, "process"):
            self.lookupd.kill()

    # ---- the primary

    async def _watch(self, member: Member) -> None:
        while True:
            if member.running:
                with suppress(OSError, ValueError, KeyError):
                    status, answer = await member.ask("GET", "/replica/primary", within=2.0)
                    told = json.loads(answer)
                    if status == 200 and told["member"] == member.name:
                        await self._leads(member, int(told["term"]))
                    elif status != 200 and self.primary is member:
                        await self._leads(None, self.term)
            await asyncio.sleep(LOOK_EVERY)

    async def _leads(self, member: Member | None, term: int) -> None:
        if term < self.term or (term, member) == (self.term, self.primary):
            return
        self.primary, self.term = member, term
        async with self._changed:
            self._changed.notify_all()

    async def serving(self, beyond: int = 0, within: float = PATIENCE) -> Member:
        """The primary, once one serves in a term beyond that one. Raises TimeoutError."""
        async with asyncio.timeout(within):
            async with self._changed:
                await self._changed.wait_for(lambda: self.primary is not None and self.term > beyond)
        assert self.primary is not None
        return self.primary

    async def whole(self, within: float = PATIENCE) -> bool:
        """Whether a primary serves and all members are in sync, in time."""
        end = asyncio.get_running_loop().time() + within
        names = sorted(member.name for member in self.members)
        while asyncio.get_running_loop().time() < end:
            told = await self.primary.replica() if self.primary is not None else {}
            if told.get("serving") and sorted(told.get("isr", ())) == names and not told.get("refusing"):
                return True
            await asyncio.sleep(LOOK_EVERY)
        return False

    def standbys(self) -> list[Member]:
        return [member for member in self.members if member is not self.primary]

    async def level(self, within: float = PATIENCE) -> bool:
        """Whether all members have written all that the primary has, in time. Nothing is published."""
        end = asyncio.get_running_loop().time() + within
        while asyncio.get_running_loop().time() < end:
            told = await self.primary.replica() if self.primary is not None else {}
            others = [each for each in told.get("members", ()) if each["member"] != told.get("member")]
            if (
                told.get("serving")
                and len(others) == len(self.members) - 1
                and all(each["in_sync"] and each["written"] == told["sequence"] for each in others)
            ):
                return True
            await asyncio.sleep(LOOK_EVERY)
        return False

    async def archived(self, within: float = PATIENCE) -> bool:
        """Whether the primary has nothing left to bring to the archive, and to delete, in time."""
        end = asyncio.get_running_loop().time() + within
        before: list[Path] = []
        while asyncio.get_running_loop().time() < end and self.primary is not None:
            with suppress(OSError):
                topics = json.loads((await self.primary.ask("GET", "/stats?format=json"))[1])["topics"]
                here = sorted((self.primary.data_path / "topics").rglob("*"))
                if here == before and not any(each.get("log_unarchived_bytes") for each in topics):
                    return True
                before = here
            await asyncio.sleep(2.5)  # longer than nsqd takes from one look at its topics to the next
        return False

    async def mend(self, reset: bool = False) -> None:
        """Everything runs, and every byte passes."""
        if not self.etcd.running:
            self.etcd.start()
        self.etcd.signal(signal.SIGCONT)
        for member in self.members:
            for link in member.links:
                await link.mend(reset)
            if not member.running:
                await member.gone()
                await member.begin()
            member.signal(signal.SIGCONT)
