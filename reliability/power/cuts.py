"""Runs a load, cuts the power at many points of it, and gathers what is wrong after each cut."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reliability.shim import Shim
from tests.daemon import Nsqd

from . import trace
from .check import Check, Known, read_sure
from .disk import Disk, Luck, NoLuck, build
from .load import Answer, Load, Promises
from .recovered import NotStarted, Recovered
from .trace import Call, read_trace

FSYNC_US = 1500  # as long as a good disk needs, so that much happens while it does
EXECUTED = 10  # every so many cuts nsqd is started as a process of its own, recorded, and cut again
# Journals are compacted, and segments rolled, far more often than by default.
COMPACT_FROM = 2048
FLAGS = ("--max-bytes-per-file=20000", "--mem-queue-size=50", "--max-rdy-count=1000000")

_START = f"""
import sys
import nsquark.log.journal.journal as journal
journal.COMPACT_FROM = {COMPACT_FROM}
{{mutation}}
from nsquark.nsqd.__main__ import main
sys.exit(main())
"""

MUTANTS = {
    # No fsync of a directory: new files and renames are lost.
    "no-folder-sync": """
import os, stat
def spare(real):
    return lambda fd: None if stat.S_ISDIR(os.fstat(fd).st_mode) else real(fd)
os.fsync, os.fdatasync = spare(os.fsync), spare(os.fdatasync)
""",
    # An OK goes out before its fsync.
    "answer-first": """
from nsquark.nsqd.storage.syncer import Syncer
real = Syncer.request
def request(self, topic):
    self._settle(topic.take_receipts(), None)
    real(self, topic)
Syncer.request = request
""",
    # nsqd.dat is written in place.
    "write-in-place": """
import nsquark.nsqd.storage.node as node, nsquark.nsqd.storage.metadata_saving as saving
def write(path, data):
    path.write_bytes(data)
node.write_atomically = saving.write_atomically = write
""",
}


_KINDS = {
    trace.CREATE: "create",
    trace.TRUNCATE: "truncate",
    trace.WRITE: "write",
    trace.RENAME: "rename",
    trace.LINK: "link",
    trace.UNLINK: "unlink",
    trace.MKDIR: "mkdir",
    trace.RMDIR: "rmdir",
    trace.SYNC_ENDS: "fsync",
}


@dataclass(slots=True)
class Plan:
    cuts: int
    seed: int = 1
    sync_every: int = 1
    sync_timeout: float = 2.0
    cuts_per_load: int = 250
    seconds: float = 2.5
    mutant: str | None = None
    keep: Path | None = None
    until_fault: bool = False  # one is enough

    @property
    def flags(self) -> tuple[str, ...]:
        return (*FLAGS, f"--sync-every={self.sync_every}", f"--sync-timeout={self.sync_timeout * 1000:.0f}ms")


@dataclass(slots=True)
class Outcome:
    cuts: int = 0
    again: int = 0  # cuts of a recovery
    loads: int = 0
    calls: int = 0
    answered: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return (
            f"{self.cuts} cuts, {self.again} more while nsqd recovered, of {self.loads} loads "
            f"with {self.calls} calls ({kinds}) and {self.answered} answered publishes, "
            f"in {self.seconds:.0f} s: {len(self.faults)} faults"
        )


def run(plan: Plan, folder: Path, say: Callable[[str], object] = lambda _: None) -> Outcome:
    """Do what the plan says, with files in `folder`. Raises NoCompiler."""
    outcome = Outcome()
    begin = time.monotonic()
    choice = random.Random(plan.seed)
    while outcome.cuts < plan.cuts and not (plan.until_fault and outcome.faults):
        count = min(plan.cuts_per_load, plan.cuts - outcome.cuts)
        place = folder / f"load{outcome.loads}"
        place.mkdir()
        _Cuts(plan, place, choice.randrange(1 << 32), outcome, say).run(count)
        shutil.rmtree(place)
        outcome.loads += 1
        outcome.seconds = time.monotonic() - begin
        say(str(outcome))
    return outcome


class _Cuts:
    """The cuts of one load."""

    def __init__(
        self, plan: Plan, folder: Path, seed: int, outcome: Outcome, say: Callable[[str], object]
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._random = random.Random(seed)
        self._seed = seed
        self._outcome = outcome
        self._say = say
        self._calls: list[Call] = []
        self._sends: dict[int, list[int]] = {}  # by ports: the calls that sent something
        self._outs: dict[Answer, int] = {}
        self._promises = Promises()
        self._highest: dict[str, int] = {}  # positions that were synced at a cut before

    def run(self, count: int) -> None:
        self._record()
        cuts = sorted(self._random.randint(1, len(self._calls)) for _ in range(count))
        disk = Disk()
        for number, cut in enumerate(cuts):
            while disk.calls < cut:
                disk.see(self._calls[disk.calls])
            self._cut(disk, cut, number)
            self._outcome.cuts += 1
            if self._plan.until_fault and self._outcome.faults:
                return

    def _program(self) -> list[str]:
        mutation = MUTANTS[self._plan.mutant] if self._plan.mutant else ""
        return [sys.executable, "-c", _START.format(mutation=mutation)]

    def _record(self) -> None:
        data = self._folder / "data"
        data.mkdir()
        shim = Shim(data, FSYNC_US)
        nsqd = Nsqd(data, *self._plan.flags)
        nsqd.program = shim.command(self._program())
        with nsqd.start():
            pace = 0.003 if self._plan.sync_every == 1 else 0.01
            self._promises = asyncio.run(Load(nsqd, self._seed, self._plan.seconds, pace).run())
            assert not self._promises.refused, "\n".join(nsqd.lines)
        self._calls = list(read_trace(shim.trace))
        for index, call in enumerate(self._calls):
            if call.kind == trace.SEND:
                self._sends.setdefault(call.inode, []).append(index)
        outcome = self._outcome
        outcome.calls += len(self._calls)
        outcome.answered += sum(each.answer is not None for each in self._promises.publishes)
        outcome.kinds.update(_KINDS[each.kind] for each in self._calls if each.kind in _KINDS)

    # ---- what is known at a cut

    def _call_of(self, answer: object) -> int:
        """The call with which an answer was out; beyond all calls if there is none."""
        if not isinstance(answer, Answer):
            return len(self._calls)
        if answer not in self._outs:
            calls = self._calls
            found = (
                each
                for each in self._sends.get(answer.ports, ())
                if calls[each].time >= answer.connected and calls[each].number >= answer.received
            )
            self._outs[answer] = next(found, len(calls))
        return self._outs[answer]

    def _known(self, cut: int) -> Known:
        now = self._calls[cut - 1].time
        # A sync is asked for within a --sync-timeout, and may wait for the pause behind the one before.
        old = now - round((2 * self._plan.sync_timeout + 1.0) * 1e9)

        def answered_long_ago(answer: object) -> bool:
            call = self._call_of(answer)
            return call < len(self._calls) and self._calls[call].time < old

        return Known(
            cut,
            now,
            lambda answer: self._call_of(answer) < cut,
            answered_long_ago,
            self._plan.sync_every == 1,
        )

    def _cut(self, disk: Disk, cut: int, number: int) -> None:
        known = self._known(cut)
        seed = self._random.randrange(1 << 32)
        luck = Luck(random.Random(seed))
        floor = disk.remains(NoLuck())
        sure = self._folder / "sure"
        build(floor, sure)
        read_sure(known, floor, sure)
        for topic, messages in known.sure.items():
            if messages and not topic.startswith("."):  # else it is deleted
                self._highest[topic] = max(self._highest.get(topic, 0), *messages)
        if luck.names != "some":
            # A disk that keeps the deletion of a finished segment, and not the file that was begun before,
            # takes the log back. Disks that keep names in order (ext4, xfs) do not.
            known.highest = self._highest
        shutil.rmtree(sure)
        path = self._folder / "cut"
        build(disk.remains(luck), path)
        what = f"load {self._seed}, cut {cut} of {len(self._calls)}"
        what += f", luck {seed} ({luck.writes} writes, {luck.names} names)"
        new = self._check(path, known, set(), what, number % EXECUTED == 0)
        if new is not None:
            self._cut_again(known, new, what)
        shutil.rmtree(path, ignore_errors=True)

    def _check(
        self, path: Path, known: Known, extra: set[bytes], what: str, again: bool
    ) -> set[bytes] | None:
        """Start nsqd and look. If it is to be cut again, returns what was published meanwhile; else None."""
        kept = self._plan.keep
        if kept is not None:
            shutil.copytree(path, self._folder / "kept")
        command = None
        if again:
            shim = Shim(path, FSYNC_US)
            shim.trace.unlink(missing_ok=True)
            # The inodes in the trace are those of `path`, so that is what the disk is made from.
            self._again = Disk.holding(path)
            command = shim.command([sys.executable, "-c", _START.format(mutation="")])
        check = Check(self._promises, known, extra)
        nsqd = Recovered(path, *self._plan.flags, command=command)
        try:
            with nsqd:
                check.run(nsqd)
        except NotStarted as error:
            check.faults.append(f"nsqd does not start: {str(error)[-2000:]}")
        except (AssertionError, OSError) as error:
            check.faults.append(repr(error))
        if b"Traceback" in nsqd.stderr:
            check.faults.append(nsqd.stderr.decode(errors="replace")[-3000:])
        for fault in check.faults:
            self._outcome.faults.append(f"{what}: {fault}")
            self._say(self._outcome.faults[-1])
        if kept is not None:
            if check.faults:
                shutil.copytree(
                    self._folder / "kept", kept / str(len(self._outcome.faults)), dirs_exist_ok=True
                )
            shutil.rmtree(self._folder / "kept")
        return check.new if again and not check.faults else None

    def _cut_again(self, known: Known, new: set[bytes], what: str) -> None:
        """Cut the power while nsqd recovered from the cut before, or just after."""
        calls = list(read_trace(self._folder / "cut.trace"))
        cut = self._random.randint(0, len(calls))
        for call in calls[:cut]:
            self._again.see(call)
        seed = self._random.randrange(1 << 32)
        path = self._folder / "again"
        build(self._again.remains(Luck(random.Random(seed))), path)
        what = f"{what}, and {cut} of {len(calls)} of the recovery, luck {seed}"
        self._check(path, known, new, what, False)
        shutil.rmtree(path, ignore_errors=True)
        self._outcome.again += 1
