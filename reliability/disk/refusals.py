"""A real nsqd whose disk refuses some calls on some files for a while."""

from __future__ import annotations

import errno
import json
import random
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from reliability.power.disk import Disk, Luck, NoLuck, build
from reliability.power.recovered import NotStarted, Recovered
from reliability.power.trace import read_trace
from reliability.shim import Fault, Shim
from tests.daemon import dpub, mpub, pub, sized

from .wire import Wire

FILES = {
    "log": "topics/*/[0-9]*",
    "journal": "topics/*/journal.*",
    "folder": "topics/t",
    "nsqd.dat": "nsqd.dat*",
    "nsquark.dat": "nsquark.dat*",
    "staged": "staged/*",
}
# Everything is written to the disk and read from it at once.
FLAGS = (
    "--sync-every=1",
    "--sync-timeout=200ms",
    "--max-bytes-per-file=50000",
    "--mem-queue-size=10",
    "--max-rdy-count=1000000",
)
RECOVERS_WITHIN = 30.0
CALLED_WITHIN = 3.0
CHANNEL, KEEP = "c", "keep"
BODY = bytes(4000)  # so that a consumer which lags reads from the disk again and again
# Journals are compacted within a second.
START = """
import sys
import nsquark.log.journal.journal as journal
journal.COMPACT_FROM, journal.COMPACT_GROWTH = 100, 1
from nsquark.nsqd.__main__ import main
sys.exit(main())
"""
# What /ping need not tell: the journal of a new topic, whose troubles are forgotten with the topic.
_TOLD = {
    (call, file)
    for call in ("write", "fsync", "read", "rename", "open")
    for file in ("log", "journal", "nsqd.dat")
    if (call, file) != ("open", "journal")
}


@dataclass(slots=True, frozen=True)
class Refusal:
    """What the disk refuses."""

    call: str
    error: int
    file: str
    once: bool = False
    at_start: bool = False

    def __str__(self) -> str:
        when = ", once" if self.once else ", at a start" if self.at_start else ""
        return f"{errno.errorcode[self.error]} on {self.call} of {self.file}{when}"

    @property
    def faults(self) -> list[Fault]:
        fault = Fault(self.call, FILES[self.file], self.error, times=1 if self.once else -1)
        if (self.call, self.file) == ("rename", "log"):  # that of a copy, which is made when an fsync fails
            return [fault, Fault("fsync", FILES["log"], errno.EIO, times=1)]
        return [fault]


def every_refusal() -> list[Refusal]:
    """The whole table."""
    errors = {
        "write": (errno.ENOSPC, errno.EROFS, errno.EIO),
        "fsync": (errno.EIO, errno.ENOSPC),
        "read": (errno.EIO,),
        "rename": (errno.EIO, errno.EROFS),
        "open": (errno.EMFILE, errno.ENFILE, errno.ENOSPC),
    }
    found = []
    for call, numbers in errors.items():
        for file in FILES:
            if file == "folder" and call != "fsync":
                continue
            found += [Refusal(call, number, file) for number in numbers]
            error = numbers[-1] if call == "write" else numbers[0]
            found.append(Refusal(call, error, file, once=True))
            found.append(Refusal(call, error, file, at_start=True))
    at_start = {("read", "journal"), ("read", "nsqd.dat"), ("read", "nsquark.dat")}  # is called then only
    return [each for each in found if each.at_start or (each.call, each.file) not in at_start]


@dataclass(slots=True)
class Outcome:
    refusal: Refusal
    refused: int = 0  # calls
    answers: dict[str, str] = field(default_factory=dict)  # that were not OK, by what was asked
    ping: str = ""
    delivered: int = 0  # messages while the disk refused
    recovered: float = 0.0  # seconds from the end of the trouble until everything worked
    kept: int = 0  # messages that were answered OK, and found after a kill
    faults: list[str] = field(default_factory=list)

    @property
    def row(self) -> tuple[str, ...]:
        said = (
            "; ".join(sorted(f"{asked}: {answer}" for asked, answer in self.answers.items()))
            or "everything OK"
        )
        if not self.refused:
            said = "not called"
        return (
            str(self.refusal),
            str(self.refused),
            said,
            self.ping or "OK",
            str(self.delivered),
            f"{self.recovered:.1f} s",
            "; ".join(self.faults) or f"{self.kept} kept",
        )


class Trial:
    """One refusal, from its beginning to a restart after a kill."""

    def __init__(self, refusal: Refusal, folder: Path) -> None:
        self.outcome = Outcome(refusal)
        self._refusal = refusal
        self._path = folder / "data"
        self._folder = folder
        self._stored: dict[str, set[bytes]] = {}  # answered OK, by topic
        self._refused: set[bytes] = set()
        self._finished: set[bytes] = set()
        self._number = 0
        self._batch = 0

    def run(self) -> Outcome:
        """Raises NoCompiler."""
        self._path.mkdir(parents=True)
        shim = Shim(self._path, fsync_us=0)
        shim.refuse()
        command = shim.command([sys.executable, "-c", START])
        nsqd = Recovered(self._path, *FLAGS, command=command)
        try:
            with nsqd:
                self._live(nsqd, shim)
            if b"Traceback" in nsqd.stderr:
                self.outcome.faults.append(nsqd.stderr.decode(errors="replace")[-1500:])
            if self._refusal.at_start:
                self._start(shim, command)
            self._look(self._path, "after a kill")
            self._cut_power(shim)
        except (AssertionError, OSError, NotStarted) as error:
            self.outcome.faults.append(f"{type(error).__name__}: {str(error)[-1500:]}")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self.outcome

    # ---- while it runs

    def _live(self, nsqd: Recovered, shim: Shim) -> None:
        publisher, consumer = Wire(nsqd.tcp_port), Wire(nsqd.tcp_port)
        for topic in ("t", "old"):
            nsqd.request("POST", f"/topic/create?topic={topic}")
        for channel in (CHANNEL, KEEP):
            nsqd.request("POST", f"/channel/create?topic=t&channel={channel}")
        for _ in range(15):
            self._publish(nsqd, publisher)
        assert not self.outcome.answers, self.outcome.answers
        assert consumer.ask(f"SUB t {CHANNEL}\n".encode()) == "OK"
        consumer.send(b"RDY 5\n")
        self._consume(consumer, 5)
        if self._refusal.at_start:
            self._act(nsqd, publisher)
            self._caught_up(consumer)
            return
        shim.refuse(*self._refusal.faults)
        begin = time.monotonic()
        rounds = 0
        while rounds < 3 or (time.monotonic() - begin < CALLED_WITHIN and not shim.refused()):
            rounds += 1
            self.outcome.delivered += self._consume(consumer, 8)
            self._act(nsqd, publisher)
            self._ping(nsqd)
        self._expect_ping(nsqd, shim)
        self.outcome.refused = shim.refused()
        shim.refuse()
        self._recover(nsqd, publisher, consumer)
        publisher.close()
        consumer.close()

    def _body(self) -> bytes:
        self._number += 1
        return b"%d|" % self._number + BODY

    def _note(self, asked: str, answer: str, topic: str = "", bodies: list[bytes] | None = None) -> None:
        if answer == "OK":
            self._stored.setdefault(topic, set()).update(bodies or ())
            return
        self._refused.update(bodies or ())
        self.outcome.answers[asked] = answer
        reason = answer.partition("NOT_STORED ")[2] or answer.partition("_FAILED ")[2]
        if not reason:
            self.outcome.faults.append(f"{asked} is answered {answer!r}")

    def _publish(self, nsqd: Recovered, publisher: Wire) -> None:
        body = self._body()
        self._note("PUB", publisher.ask(pub("t", body)), "t", [body])
        bodies = [self._body() for _ in range(5)]
        self._note("MPUB", publisher.ask(mpub("t", bodies)), "t", bodies)
        body = self._body()
        self._note("/pub", self._post(nsqd, "/pub?topic=t", body), "t", [body])

    @staticmethod
    def _post(nsqd: Recovered, path: str, body: bytes = b"") -> str:
        status, answer = nsqd.request("POST", path, body)
        if status == 200:
            return "OK"
        try:
            told = json.loads(answer)
            return f"{status} {told['message']} {told.get('reason', '')}".rstrip()
        except (ValueError, KeyError):
            return f"{status} {answer!r}"

    def _act(self, nsqd: Recovered, publisher: Wire) -> None:
        """Everything that needs the disk, once."""
        self._publish(nsqd, publisher)
        body = self._body()
        self._note("DPUB", publisher.ask(dpub("t", 3_600_000, body)), "t", [body])
        for verb in ("pause", "unpause"):
            self._note("pause", self._post(nsqd, f"/channel/{verb}?topic=t&channel={KEEP}"))
        self._note("empty", self._post(nsqd, "/topic/empty?topic=old"))
        self._number += 1
        topic, body = f"new{self._number}", self._body()
        self._note("/pub, new topic", self._post(nsqd, f"/pub?topic={topic}", body), topic, [body])
        deleted = self._post(nsqd, f"/topic/delete?topic={topic}")
        if deleted != "404 TOPIC_NOT_FOUND":
            self._note("delete", deleted)
        self._stored.pop(topic, None)
        self._stage(nsqd)

    def _stage(self, nsqd: Recovered) -> None:
        self._batch += 1
        bodies = [self._body() for _ in range(3)]
        body = len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies))
        place = f"app=nightly&batch={self._batch}"
        put = self._post(nsqd, f"/staged/put?{place}&partition=0&attempt=a&seq=0&topic=t", body)
        self._note("/staged/put", put)
        if put == "OK":
            wanted = {"partitions": [{"partition": 0, "attempt": "a", "messages": len(bodies)}]}
            published = self._post(nsqd, f"/staged/publish?{place}", json.dumps(wanted).encode())
            # One that was refused has begun all the same, and is finished when the disk allows.
            self._note("/staged/publish", published, "t", bodies if published == "OK" else [])

    def _consume(self, consumer: Wire, count: int) -> int:
        """Take and finish so many messages, or as many as come; returns how many."""
        for taken in range(count):
            found = consumer.message(1.0)
            if found is None:
                return taken
            message_id, body = found
            known = any(body in bodies for bodies in self._stored.values())
            if not known and body not in self._refused and body.partition(b"|")[2] != BODY:
                self.outcome.faults.append(f"{body[:40]!r} is delivered, and was never published")
            consumer.send(b"FIN %b\n" % message_id)
            self._finished.add(body)
        return count

    def _ping(self, nsqd: Recovered) -> bool:
        status, text = nsqd.request("GET", "/ping")
        if status != 200:
            self.outcome.ping = text.decode()[:160]
        return status == 200

    def _expect_ping(self, nsqd: Recovered, shim: Shim) -> None:
        """While the disk refuses for good, /ping must come to say so."""
        place = self._refusal.call, self._refusal.file
        if self._refusal.once or place not in _TOLD or not shim.refused():
            return
        deadline = time.monotonic() + RECOVERS_WITHIN
        while not self.outcome.ping:
            if time.monotonic() > deadline:
                self.outcome.faults.append("/ping says OK all the time")
                return
            self._ping(nsqd)
            time.sleep(0.05)

    def _recover(self, nsqd: Recovered, publisher: Wire, consumer: Wire) -> None:
        """The disk works again: so does everything, in a while and by itself."""
        begin = time.monotonic()
        told = dict(self.outcome.answers)
        while True:
            self.outcome.answers.clear()
            self._act(nsqd, publisher)
            self._consume(consumer, 5)
            status, text = nsqd.request("GET", "/ping")
            if status == 200 and not self.outcome.answers:
                break
            if time.monotonic() - begin > RECOVERS_WITHIN:
                self.outcome.faults.append(f"does not recover: {text.decode()}, {self.outcome.answers}")
                break
            time.sleep(0.05)
        self.outcome.recovered = time.monotonic() - begin
        self.outcome.answers = told
        self._caught_up(consumer)

    @staticmethod
    def _caught_up(consumer: Wire) -> None:
        """The FINs are in the journal once the turn is over in which they came."""
        for _ in range(2):
            consumer.send(b"TOUCH ................\n")
            while (found := consumer.frame()) is not None and found[0] != 1:
                pass

    def _start(self, shim: Shim, command: list[str]) -> None:
        """nsqd starts although the disk refuses, or says in one line why it does not."""
        shim.refuse(*self._refusal.faults)
        nsqd = Recovered(self._path, *FLAGS, command=command)
        try:
            with nsqd:
                self._ping(nsqd)
                self.outcome.answers["start"] = "starts"
        except NotStarted as error:
            fatal = [line for line in str(error).splitlines() if "FATAL" in line]
            self.outcome.answers["start"] = fatal[0].partition("FATAL: ")[2] if fatal else str(error)
            if len(fatal) != 1 or "Traceback" in str(error):
                self.outcome.faults.append(str(error)[-1500:])
        self.outcome.refused = shim.refused()
        shim.refuse()

    # ---- afterwards

    def _look(self, path: Path, when: str) -> None:
        """Start another nsqd: everything must be there that was answered OK."""
        with Recovered(path, *FLAGS) as nsqd:
            deadline = time.monotonic() + RECOVERS_WITHIN
            while any(each["publishing_batch"] is not None for each in nsqd.get("/staged")["apps"]):
                assert time.monotonic() < deadline, "a staged batch is not published"
                time.sleep(0.01)
            self.outcome.kept = 0
            for topic, bodies in self._stored.items():
                found = [each.body for each in nsqd.log(topic)] if topic and bodies else []
                lost = {each for each in bodies if each not in found}
                if (
                    topic == "t"
                ):  # a segment may go that both channels have finished, but KEEP finishes nothing
                    if len(found) != len(set(found)):
                        self.outcome.faults.append(f"{when} messages are stored twice")
                    if self._refusal.call == "write" and self._refusal.file == "log":
                        ghosts = self._refused.intersection(found)
                        if ghosts:
                            self.outcome.faults.append(f"{when} {len(ghosts)} are there that were refused")
                if lost:
                    names = sorted(each.partition(b"|")[0].decode() for each in lost)
                    self.outcome.faults.append(f"{when} {len(lost)} of {topic} are lost: {names[:5]}")
                self.outcome.kept += len(bodies) - len(lost)
            if when == "after a kill":
                state = nsqd.channel("t", CHANNEL)
                again = {body for _, body in nsqd.drain("t", CHANNEL, state["depth"])} & self._finished
                if again:
                    self.outcome.faults.append(f"{when} {len(again)} finished messages come again")
        if b"Traceback" in nsqd.stderr:
            self.outcome.faults.append(nsqd.stderr.decode(errors="replace")[-1500:])

    def _cut_power(self, shim: Shim) -> None:
        """The power fails at the end: an fsync that had failed has kept nothing, whatever came after it."""
        if self._refusal.call not in ("fsync", "write", "rename"):
            return
        disk = Disk()
        for call in read_trace(shim.trace):
            disk.see(call)
        for luck in (NoLuck(), Luck(random.Random(1)), Luck(random.Random(2))):
            path = self._folder / "cut"
            build(disk.remains(luck), path)
            self._look(path, "after a power cut")
            shutil.rmtree(path)
