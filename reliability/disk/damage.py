"""Bits that flip in the files of an nsqd that is down, and segments that are gone."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reliability.power.recovered import NotStarted, Recovered
from tests.daemon import mpub, pub, sized

from .wire import Wire

FLAGS = (
    "--sync-every=1",
    "--max-bytes-per-file=8000",
    "--mem-queue-size=10",
    "--max-rdy-count=1000000",
)


@dataclass(slots=True)
class Outcome:
    kind: str
    tried: int = 0
    starts: int = 0
    lost: int = 0  # messages
    told: int = 0  # by /ping
    refusals: set[str] = field(default_factory=set)  # what nsqd said when it did not start
    faults: list[str] = field(default_factory=list)

    @property
    def row(self) -> tuple[str, ...]:
        refused = f", else: {'; '.join(sorted(self.refusals))[:160]}" if self.refusals else ""
        return (
            self.kind,
            str(self.tried),
            f"{self.starts} starts{refused}",
            f"{self.told} told by /ping",
            f"{self.lost} messages lost",
            "; ".join(self.faults)[:1500] or "as promised",
        )


class Original:
    """The data directory of an nsqd that was killed, and what was published there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.batches: list[list[bytes]] = []  # of topic t; each is one batch of the log
        self.ids: set[bytes] = set()
        self.finished: set[bytes] = set()
        path.mkdir(parents=True)
        with Recovered(path, *FLAGS) as nsqd:
            self._fill(nsqd)

    def _fill(self, nsqd: Recovered) -> None:
        nsqd.request("POST", "/topic/create?topic=t")
        for channel in ("c", "keep"):
            nsqd.request("POST", f"/channel/create?topic=t&channel={channel}")
        publisher = Wire(nsqd.tcp_port)
        for number in range(40):
            bodies = [b"%d.%d|" % (number, each) + b"x" * 300 for each in range(1 + number % 3)]
            assert publisher.ask(pub("t", bodies[0]) if len(bodies) == 1 else mpub("t", bodies)) == "OK"
            self.batches.append(bodies)
        publisher.close()
        consumer = Wire(nsqd.tcp_port)
        assert consumer.ask(b"SUB t c\n") == "OK"
        consumer.send(b"RDY 1\n")
        for _ in range(10):
            found = consumer.message(10.0)
            assert found is not None
            self.finished.add(found[1])
            consumer.send(b"FIN %b\n" % found[0])
        for _ in range(2):
            consumer.send(b"TOUCH ................\n")
            while (frame := consumer.frame()) is not None and frame[0] != 1:
                pass
        consumer.close()
        for batch, published in ((1, True), (2, False)):
            bodies = [b"staged%d.%d|" % (batch, each) + b"y" * 200 for each in range(3)]
            body = struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
            place = f"app=nightly&batch={batch}"
            status, answer = nsqd.request(
                "POST", f"/staged/put?{place}&partition=0&attempt=a&seq=0&topic=t", body
            )
            assert status == 200, answer
            if published:
                status, answer = nsqd.request("POST", f"/staged/publish?{place}", publication())
                assert status == 200, answer
                self.batches.append(bodies)
        nsqd.request("POST", "/channel/pause?topic=t&channel=keep")
        nsqd.request("POST", "/channel/unpause?topic=t&channel=keep")
        self.ids = {each.id for each in nsqd.log("t")}


def publication() -> bytes:
    return json.dumps({"partitions": [{"partition": 0, "attempt": "a", "messages": 3}]}).encode()


def flip(path: Path, choice: random.Random) -> str:
    """Flip a bit of a file; returns which."""
    data = bytearray(path.read_bytes())
    at, bit = choice.randrange(len(data)), choice.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at} of {path.name}"


def _logs(path: Path) -> list[Path]:
    return sorted((path / "topics" / "t").glob("*.log"))


def _older_log(path: Path, choice: random.Random) -> str:
    return flip(choice.choice(_logs(path)[:-1]), choice)


def _newest_log(path: Path, choice: random.Random) -> str:
    return flip([each for each in _logs(path) if each.stat().st_size][-1], choice)


def _journal(path: Path, choice: random.Random) -> str:
    return flip(max((path / "topics" / "t").glob("journal.*")), choice)


def _staged(path: Path, choice: random.Random) -> str:
    return flip(path / "staged" / "nightly" / "2" / "0.a", choice)


def _state(path: Path, choice: random.Random) -> str:
    return flip(path / "staged" / "nightly" / "app.json", choice)


def _node(path: Path, choice: random.Random) -> str:
    return flip(path / "nsquark.dat", choice)


def _metadata(path: Path, choice: random.Random) -> str:
    return flip(path / "nsqd.dat", choice)


def _missing(path: Path, choice: random.Random) -> str:
    gone = choice.choice(_logs(path)[1:-1])
    gone.unlink()
    return f"{gone.name} is gone"


KINDS: dict[str, Callable[[Path, random.Random], str]] = {
    "a bit of an older log": _older_log,
    "a bit of the newest log": _newest_log,
    "a bit of the journal": _journal,
    "a bit of nsqd.dat": _metadata,
    "a bit of nsquark.dat": _node,
    "a bit of a staged file": _staged,
    "a bit of app.json": _state,
    "a segment is gone": _missing,
}
ANOTHER_VERSION = "it was written by another version"
MAY_REFUSE = ("a bit of nsqd.dat", "a bit of app.json")  # nsqd would rather not start than guess


def try_damage(kind: str, original: Original, folder: Path, times: int, seed: int) -> Outcome:
    """Damage copies of a directory in one way, at places that the seed chooses, and look at each."""
    outcome = Outcome(kind)
    choice = random.Random(seed)
    for _ in range(times):
        path = folder / "copy"
        shutil.copytree(original.path, path)
        what = KINDS[kind](path, choice)
        outcome.tried += 1
        nsqd = Recovered(path, *FLAGS)
        before = len(outcome.faults)
        try:
            with nsqd:
                outcome.starts += 1
                _look(kind, what, original, nsqd, outcome)
            with Recovered(path, *FLAGS) as nsqd:  # what was put aside is so for good
                _check_log(kind, what + ", second start", original, nsqd, outcome, again=True)
        except NotStarted as error:
            fatal = [line.partition("FATAL: ")[2] for line in str(error).splitlines() if "FATAL" in line]
            outcome.refusals.update(each.replace(str(path), "")[:80] for each in fatal)
            # The digit of a magic may be the one that has changed: only an operator can tell.
            may_refuse = kind in MAY_REFUSE or ANOTHER_VERSION in str(error)
            if not may_refuse or len(fatal) != 1 or "Traceback" in str(error):
                outcome.faults.append(f"{what}: does not start: {str(error)[-800:]}")
        except (AssertionError, OSError) as error:
            outcome.faults.append(f"{what}: {error!r}")
        if b"Traceback" in nsqd.stderr and len(outcome.faults) == before:
            outcome.faults.append(f"{what}: {nsqd.stderr.decode(errors='replace')[-800:]}")
        shutil.rmtree(path)
    return outcome


def _check_log(
    kind: str, what: str, original: Original, nsqd: Recovered, outcome: Outcome, again: bool = False
) -> set[bytes]:
    """What of topic t can be read; nothing but that of one batch (or segment) may be missing."""
    found = [each.body for each in nsqd.log("t")]
    sent = {body for batch in original.batches for body in batch}
    allowed = sent | {b"new"} | {b"staged2.%d|" % each + b"y" * 200 for each in range(3)}
    if set(found) - allowed:
        outcome.faults.append(f"{what}: {(set(found) - allowed).pop()[:40]!r} was never published")
    lost = [batch for batch in original.batches if not set(batch) <= set(found)]
    most = 1 if kind in ("a bit of an older log", "a bit of the newest log") else 0
    if kind != "a segment is gone" and len(lost) > most:
        outcome.faults.append(f"{what}: {len(lost)} batches are lost")
    if not again:
        outcome.lost += len(sent - set(found))
    return set(found)


def _look(kind: str, what: str, original: Original, nsqd: Recovered, outcome: Outcome) -> None:
    found = _check_log(kind, what, original, nsqd, outcome)
    status, text = nsqd.request("GET", "/ping")
    outcome.told += status != 200
    lost = any(not set(batch) <= found for batch in original.batches)
    if lost and status == 200 and b"torn write" not in nsqd.errors():
        outcome.faults.append(f"{what}: messages are lost, and /ping says {text!r}")
    if "t" not in nsqd.stats() or "keep" not in [
        each["channel_name"] for each in nsqd.stats()["t"]["channels"]
    ]:
        outcome.faults.append(f"{what}: the channel keep is gone")
        return
    state = nsqd.channel("t", "keep")
    if state["paused"]:
        nsqd.request("POST", "/channel/unpause?topic=t&channel=keep")
    drained = {body for _, body in nsqd.drain("t", "keep", state["depth"])}
    if found - drained:
        outcome.faults.append(f"{what}: {len(found - drained)} are in the log and are not delivered")
    if kind not in ("a bit of the journal", "a bit of nsqd.dat"):
        state = nsqd.channel("t", "c")
        again = {body for _, body in nsqd.drain("t", "c", state["depth"])} & original.finished
        if again:
            outcome.faults.append(f"{what}: {len(again)} finished messages come again")
    status, answer = nsqd.request("POST", "/pub?topic=t", b"new")
    if status != 200:
        outcome.faults.append(f"{what}: /pub is answered {status} {answer!r}")
    if {each.id for each in nsqd.log("t") if each.body == b"new"} & original.ids:
        outcome.faults.append(f"{what}: an id is given twice")
    status, answer = nsqd.request("POST", "/staged/publish?app=nightly&batch=2", publication())
    expected = (200, 404, 409) if kind in ("a bit of a staged file", "a bit of app.json") else (200,)
    if status not in expected:
        outcome.faults.append(f"{what}: the staged batch is answered {status} {answer!r}")
    staged = sum(each.body.startswith(b"staged2.") for each in nsqd.log("t"))
    if staged != (3 if status == 200 and not json.loads(answer)["known"] else 0):
        outcome.faults.append(f"{what}: {staged} messages of a staged batch answered {status}")
    nsqd.request("POST", "/health/acknowledge")
    status, text = nsqd.request("GET", "/ping")
    if status != 200:
        outcome.faults.append(f"{what}: acknowledged, and /ping says {text!r}")
