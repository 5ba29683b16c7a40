"""What a replica group promises, checked after every step of a schedule.

| invariant | here |
|---|---|
| an acknowledged publish is in the final log | `open`, `final` |
| a position never means two messages, and nothing readable is lost | `release` |
| one primary per term; what a term answered lies before the files of the next | `acquired`, `release` |
| every member of isr holds every committed byte; equal names are prefixes | `check_isr`, `append` |
| what leads is a directory that a killed primary could have left | `open` |

A salvage after a power loss and an operator's force may lose messages. They begin a new lineage with new
epochs.
"""

from __future__ import annotations

from collections.abc import Iterable

Entry = tuple[int, int]  # the term whose file it lies in, and the message


class Broken(Exception):
    """An invariant does not hold."""


class Promises:
    def __init__(self) -> None:
        self.committed: list[Entry] = []  # by position; readable, and answered
        self.answered: set[int] = set()  # messages whose publishers have their OK
        self.lineage = 0  # the term that began it
        self.term = 0
        self.lost = 0
        self._leaders: dict[int, str] = {}
        self._files: dict[tuple[int, int], int] = {}  # (term, position): message
        self._bases: list[tuple[int, list[Entry]]] = []  # what each term of the lineage began with

    def acquired(self, term: int, incarnation: str, lossy: bool, entries: list[Entry]) -> None:
        """Etcd has taken a campaign."""
        if term <= self.term or term in self._leaders:
            raise Broken(f"{incarnation} acquires term {term} after term {self.term}")
        self.term = term
        self._leaders[term] = incarnation
        if lossy:
            common = 0
            for mine, other in zip(self.committed, entries, strict=False):
                if mine != other:
                    break
                common += 1
            self.lost += len(self.committed) - common
            for _, message in self.committed[common:]:
                self.answered.discard(message)
            del self.committed[common:]
            self.lineage = term
            self._bases.clear()

    def opened(self, term: int, incarnation: str, settled: bool, entries: list[Entry]) -> None:
        """A primary has opened its directory."""
        if self._leaders.get(term) != incarnation:
            raise Broken(f"{incarnation} opens term {term} of {self._leaders.get(term)}")
        if term < self.term:
            return  # it slept until another led, and can answer nothing: `release` looks
        if not settled:
            raise Broken(f"{incarnation} opens a directory that is neither the old nor the new one")
        if entries[: len(self.committed)] != self.committed:
            raise Broken(f"{incarnation} opens term {term} without messages that were answered")
        self._bases.append((term, entries[:]))

    def append(self, term: int, position: int, message: int) -> None:
        """An entry is written to a file, by its primary or by a standby."""
        if self._files.setdefault((term, position), message) != message:
            raise Broken(f"two messages at {position} in the files of term {term}")

    def release(self, term: int, entries: list[Entry], end: int, answered: Iterable[int]) -> None:
        """A primary of `term` shows its entries before `end`, and answers publishers."""
        if term < self.lineage:
            return  # a force or a salvage has given it up
        committed = self.committed
        if end > len(entries):
            raise Broken(f"term {term} shows {end} of {len(entries)} entries")
        known = min(end, len(committed))
        if entries[:known] != committed[:known]:
            raise Broken(f"term {term} shows other messages than were shown before")
        for later, base in self._bases:
            if later > term and base[:end] != entries[:end]:
                raise Broken(f"term {term} answers what term {later} has begun without")
        committed.extend(entries[known:end])
        self.answered.update(answered)

    def check_isr(self, incarnation: str, entries: list[Entry]) -> None:
        if entries[: len(self.committed)] != self.committed:
            raise Broken(f"{incarnation} is in isr and lacks what is committed")

    def final(self, entries: list[Entry]) -> None:
        missing = self.answered - {message for _, message in entries}
        if missing:
            raise Broken(f"{len(missing)} acknowledged messages are lost")
