"""What nsqd owes: every message, and what is certain about it.

Publishers and consumers enter what they send and get, as it happens; the ledger knows what may not happen
any more and fails as soon as it does. It never claims more than a client can know: behind the last answer
that was read, commands may or may not have been taken note of when the process was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.daemon import Message

TOLERANCE = 0.002  # seconds; the system's clock may be set while we look


@dataclass(slots=True, eq=False)
class Sent:
    """A message that a client published, or tried to."""

    body: bytes
    topic: str
    due: float
    group: list[Sent] = field(repr=False)  # those of the same command: stored together or not at all
    exists: bool = False  # it was answered, or seen


@dataclass(slots=True, eq=False)
class Track:
    """A message on a channel. `kept_…` is what a crash does not change."""

    channel: str
    body: bytes = field(repr=False)
    attempts: int = 0  # the most that were seen
    at_least: int = 0  # deliveries that nsqd knows of
    kept_at_least: int = 0
    not_before: float = 0.0
    kept_not_before: float = 0.0
    finished: bool = False  # and sure to be journaled
    holder: Holder | None = field(default=None, repr=False)  # has it in flight, or sent its FIN
    step: Step | None = field(default=None, repr=False)  # what was done with it last
    history: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Step:
    """A FIN or a REQ."""

    track: Track
    finishes: bool
    attempts: int
    not_before: float

    def keep(self) -> None:
        track = self.track
        track.history.append("kept")
        track.finished = track.finished or self.finishes
        track.kept_at_least = max(track.kept_at_least, self.attempts)
        track.kept_not_before = self.not_before


class Holder:
    """A consumer's connection, and its steps that are not sure to be kept yet.

    A step is kept once two round trips have begun and ended behind it: the first answer may leave in the turn
    of the event loop that takes the step, the second one comes from a later turn, and each turn ends with a
    write.
    """

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.open = True
        self._new: list[Step] = []
        self._asked: list[Step] = []
        self._answered_once: list[Step] = []

    def add(self, step: Step) -> None:
        self._new.append(step)

    def asking(self) -> None:
        """A command that will be answered goes out behind all steps so far."""
        self._asked += self._new
        self._new = []

    def answered(self) -> None:
        for step in self._answered_once:
            step.keep()
        self._answered_once, self._asked = self._asked, []

    @property
    def unsure(self) -> list[Step]:
        return self._answered_once + self._asked + self._new


class Ledger:
    def __init__(self, channels: Mapping[str, Iterable[str]]) -> None:
        """`channels` are those of each topic, which get everything published to it."""
        self._channels = {topic: tuple(names) for topic, names in channels.items()}
        # what must be delivered (again), by channel
        self.owed: dict[str, set[Track]] = {
            name: set() for names in self._channels.values() for name in names
        }
        self._sent: dict[bytes, Sent] = {}
        self._tracks: dict[tuple[str, bytes], Track] = {}
        self._bodies: dict[bytes, bytes] = {}  # by message id
        self._heads: dict[bytes, tuple[bytes, int]] = {}  # id and timestamp by body
        self._life = 1
        self._losses = 0  # connections that may have taken deliveries with them that nobody saw

    def __len__(self) -> int:
        return len(self._sent)

    # ---- publishing

    def publishing(self, topic: str, bodies: Iterable[bytes], due: float = 0.0) -> Sent:
        """A command goes out; returns one of its messages, for `published`."""
        group: list[Sent] = []
        group += [Sent(body, topic, due, group) for body in bodies]
        self._sent.update((each.body, each) for each in group)
        return group[0]

    def published(self, sent: Sent) -> None:
        """The answer was OK, or one of the command's messages was seen: all of them are there."""
        for each in sent.group:
            if not each.exists:
                each.exists = True
                for channel in self._channels[each.topic]:
                    self._tracks[channel, each.body] = track = Track(channel, each.body)
                    self.owed[track.channel].add(track)

    # ---- consuming

    def delivered(self, holder: Holder, message: Message, now: float) -> Track:
        sent = self._sent.get(message.body)
        assert sent is not None, f"never published: {message}"
        self.published(sent)
        self._check_head(message)
        track = self._tracks[holder.channel, message.body]
        what = f"attempt {message.attempts} in life {self._life} of {track}, due {sent.due}"
        assert not track.finished, f"was finished and came back: {what}"
        assert track.holder is None or not track.holder.open, f"is in flight or finished elsewhere: {what}"
        early = max(sent.due, track.not_before) - now
        assert early <= TOLERANCE, f"{early:.3f} s too early: {what}"
        assert track.at_least < message.attempts <= track.attempts + 1 + self._losses, what
        track.history.append(f"life {self._life}: delivered as {message.attempts} to {id(holder):x}")
        track.at_least = message.attempts
        track.attempts = max(track.attempts, message.attempts)
        track.holder = holder
        self.owed[track.channel].add(track)
        return track

    def _check_head(self, message: Message) -> None:
        body = self._bodies.setdefault(message.id, message.body)
        assert body == message.body, f"{message.id!r} is the id of {body!r} and of {message.body!r}"
        head = self._heads.setdefault(message.body, (message.id, message.timestamp))
        assert head == (message.id, message.timestamp), f"{message} had {head} before"

    def finishing(self, holder: Holder, track: Track) -> None:
        """FIN goes out. The connection holds the message on, so that nobody else may get it."""
        self._step(holder, Step(track, True, track.at_least, 0.0))
        self.owed[track.channel].discard(track)

    def requeuing(self, holder: Holder, track: Track, not_before: float) -> None:
        """REQ goes out: the message may come to anybody, but not too early."""
        self._step(holder, Step(track, False, track.at_least, not_before))
        track.not_before = not_before
        track.holder = None

    @staticmethod
    def _step(holder: Holder, step: Step) -> None:
        step.track.step = step
        step.track.history.append("FIN" if step.finishes else f"REQ {step.not_before}")
        holder.add(step)

    # ---- ends

    def closed(self, holder: Holder) -> None:
        """The connection is gone while the process lives: steps may have been lost on their way."""
        holder.open = False
        self._losses += 1
        for step in holder.unsure:
            if step.track.step is step:
                step.track.not_before = step.track.kept_not_before
                step.track.history.append(f"{id(holder):x} closed")

    def killed(self) -> None:
        """The process is gone; every connection was closed before."""
        self._life += 1
        for track in self._tracks.values():
            track.at_least = track.kept_at_least
            track.not_before = track.kept_not_before

    def stopped(self) -> None:
        """The process ended in order: it has written down what was in flight and how often."""
        self._life += 1
        for track in self._tracks.values():
            track.kept_at_least = track.at_least
            track.not_before = track.kept_not_before
