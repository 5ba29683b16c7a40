"""What nsqd must know after a power cut, and whether it does."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nsquark.log import inspect_journal

from .load import CHANNELS, ORDERS, UNREAD, Promises, Publish
from .recovered import Recovered

_BATCH = struct.Struct(">4sIIIQQqq")  # magic, crc, length, count, position, first id, time, due
_FRAME = struct.Struct(">iiqH16s")
RESUMED_WITHIN = 20.0


@dataclass(slots=True)
class Known:
    """What is certain at a cut."""

    cut: int  # the number of calls before it
    time: int  # monotonic ns
    is_out: Callable[[object], bool]  # whether an answer (or None) was out
    answered_long_ago: Callable[[object], bool]  # so long that every setting has it synced
    every: bool  # an OK means that the disk has it: --sync-every=1
    sure: dict[str, dict[int, bytes]] = field(
        default_factory=dict
    )  # by topic and position, what the disk surely holds
    highest: dict[str, int] = field(default_factory=dict)  # by topic, a position that was given and synced
    finished: dict[tuple[str, str], set[bytes]] = field(
        default_factory=dict
    )  # by channel, as the disk surely knows


def read_sure(known: Known, remains: dict[str, bytes | None], folder: Path) -> None:
    """Find out what a disk has that keeps nothing but what was synced; `folder` is such a directory."""
    for path, content in remains.items():
        if content is not None and path.startswith("topics/") and path.endswith(".log"):
            topic = path.split("/")[1]
            known.sure.setdefault(topic, {}).update(_messages(content))
    for topic, channels in CHANNELS.items():
        state = inspect_journal(folder / "topics" / topic).state
        for channel in channels:
            found = state.channels.get(channel)
            if found is not None:
                known.finished[topic, channel] = {
                    body
                    for position, body in known.sure.get(topic, {}).items()
                    if (position < found.position or position in found.passed)
                    and position not in found.waiting
                }


def _messages(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _BATCH.size <= len(content):
        magic, _, length, count, position, _, _, _ = _BATCH.unpack_from(content, at)
        if magic != b"NQB1" or at + length > len(content):
            return
        frame = at + _BATCH.size
        for number in range(count):
            size = _FRAME.unpack_from(content, frame)[0]
            yield position + number, content[frame + _FRAME.size : frame + 4 + size]
            frame += 4 + size
        at += length


class Check:
    """Compares one nsqd with what must be. `faults` says what is wrong."""

    def __init__(self, promises: Promises, known: Known, extra: set[bytes]) -> None:
        """`extra` are bodies that may be there beside those of the promises."""
        self.faults: list[str] = []
        self.new: set[bytes] = set()
        self._promises = promises
        self._known = known
        self._extra = extra
        self._before = known.time
        self._sent = {body: each for each in promises.publishes for body in each.bodies}
        self._logs: dict[str, Counter[bytes]] = {}
        self._finishing = {
            (each.topic, each.channel, each.body)
            for each in promises.steps
            if each.finishes and each.sent < known.time
        }
        self._waiting = {
            (each.topic, each.channel, each.body)
            for each in promises.steps
            if not each.finishes and each.sent < known.time
        }

    def run(self, nsqd: Recovered) -> None:
        self._resume(nsqd)
        topics = nsqd.stats()
        for topic in topics:
            body = f"new-{topic}-{time.monotonic_ns()}".encode()
            self.new.add(body)
            status, answer = nsqd.request("POST", f"/pub?topic={topic}", body)
            if status != 200:
                self.faults.append(f"/pub to {topic} is answered {status} {answer!r}")
        ids: dict[bytes, bytes] = dict(self._promises.ids)
        for topic in topics:
            self._logs[topic] = Counter()
            for stored in nsqd.log(topic):
                self._logs[topic][stored.body] += 1
                if ids.setdefault(stored.id, stored.body) != stored.body:
                    self.faults.append(f"id {stored.id!r} is that of two messages")
                if stored.body in self.new and stored.position <= self._known.highest.get(topic, -1):
                    self.faults.append(f"position {stored.position} of {topic} is that of two messages")
        topics = nsqd.stats()  # once everything was read: damage counts in depths until then
        self._check_logs()
        self._check_batches()
        if not self._extra:  # else an nsqd before this one was told to deliver it
            self._check_pause(topics)
        for topic, channels in CHANNELS.items():
            states = {each["channel_name"]: each for each in topics.get(topic, {}).get("channels", ())}
            for channel in channels:
                if channel in states:
                    self._check_channel(nsqd, topic, channel, states[channel])
                elif self._known.every and any(
                    each.topic == topic and self._known.is_out(each.answer)
                    for each in self._promises.publishes
                ):
                    self.faults.append(f"{topic}/{channel} is gone, and its messages with it")

    def _resume(self, nsqd: Recovered) -> None:
        deadline = time.monotonic() + RESUMED_WITHIN
        while any(each["publishing_batch"] is not None for each in nsqd.get("/staged")["apps"]):
            if time.monotonic() > deadline:
                self.faults.append("a staged batch is not published")
                return
            time.sleep(0.005)

    # ---- logs

    def _lives_on(self, publish: Publish) -> bool:
        return not any(
            each.topic == publish.topic and each.life == publish.life and each.sent < self._before
            for each in self._promises.deletions
        )

    def _trimmed(self, topic: str, body: bytes) -> bool:
        """Whether every channel may have finished it, so that its segment may be gone."""
        channels = CHANNELS.get(topic, ())
        return bool(channels) and all((topic, channel, body) in self._finishing for channel in channels)

    def _required(self) -> Iterator[tuple[str, bytes, str]]:
        """What must be in the logs, and why."""
        known = self._known
        for publish in self._promises.publishes:
            if not self._lives_on(publish):
                continue
            if known.every and known.is_out(publish.answer):
                yield from ((publish.topic, body, "was answered OK") for body in publish.bodies)
            elif known.answered_long_ago(publish.answer):
                yield from ((publish.topic, body, "was answered OK long ago") for body in publish.bodies)
        for topic, messages in known.sure.items():
            for body in messages.values():
                sent = self._sent.get(body)
                if sent is None or self._lives_on(sent):
                    yield topic, body, "was synced"
        for batch in self._promises.batches:
            if known.is_out(batch.answer):
                for topic, bodies in batch.bodies.items():
                    yield from ((topic, body, f"is of the staged batch {batch.number}") for body in bodies)

    def _check_logs(self) -> None:
        allowed: set[bytes] = self.new | self._extra
        for publish in self._promises.publishes:
            gone = any(
                each.topic == publish.topic and each.life == publish.life and self._known.is_out(each.answer)
                for each in self._promises.deletions
            )
            if not gone:
                allowed.update(publish.bodies)
        for batch in self._promises.batches:
            allowed.update(*batch.bodies.values())
        for topic, log in self._logs.items():
            for body, count in log.items():
                if count > 1:
                    self.faults.append(f"{_short(body)} is {count} times in {topic}")
                if body not in allowed:
                    self.faults.append(f"{_short(body)} is in {topic}: deleted, or never published")
        for topic, body, why in dict.fromkeys(self._required()):
            if not self._count(topic, body) and not self._trimmed(topic, body):
                self.faults.append(f"{_short(body)} {why}, and is not in {topic}")

    def _count(self, topic: str, body: bytes) -> int:
        """How often this is in the log."""
        return self._logs[topic][body] if topic in self._logs else 0

    def _check_batches(self) -> None:
        for batch in self._promises.batches:
            bodies = [(topic, body) for topic, bodies in batch.bodies.items() for body in bodies]
            stored = [self._count(topic, body) or self._trimmed(topic, body) for topic, body in bodies]
            if any(stored) and not all(stored):
                self.faults.append(f"the staged batch {batch.number} is there in part")

    def _check_pause(self, topics: dict[str, dict[str, object]]) -> None:
        sent = [each for each in self._promises.pauses if each.sent < self._before]
        if sent and self._known.is_out(sent[-1].answer):
            for channel in topics.get(ORDERS, {}).get("channels", ()):  # type: ignore[attr-defined]
                if channel["channel_name"] == UNREAD and channel["paused"] != sent[-1].paused:
                    self.faults.append(f"the channel {UNREAD} is not paused as was answered")

    # ---- channels

    def _check_channel(self, nsqd: Recovered, topic: str, channel: str, state: dict[str, int]) -> None:
        if state["paused"]:
            nsqd.request("POST", f"/channel/unpause?topic={topic}&channel={channel}")
        where = f"{topic}/{channel}"
        drained = {body for _, body in nsqd.drain(topic, channel, state["depth"])}
        deferred = nsqd.channel(topic, channel)["deferred_count"]
        missing = 0
        for body in self._logs[topic]:
            sent = self._sent.get(body)
            if body in drained:
                if sent is not None and sent.deferred:
                    self.faults.append(f"{_short(body)} is delivered an hour too early by {where}")
                elif body in self._known.finished.get((topic, channel), ()):
                    self.faults.append(f"{_short(body)} was finished and synced, and comes again by {where}")
            elif (topic, channel, body) not in self._finishing:
                if (sent is not None and sent.deferred) or (topic, channel, body) in self._waiting:
                    missing += 1
                else:
                    self.faults.append(f"{_short(body)} is in the log, and {where} does not deliver it")
        if missing > deferred:
            self.faults.append(f"{where} has {deferred} deferred messages, not {missing}")
        for step in self._promises.steps:
            if (step.topic, step.channel) == (topic, channel) and step.body in drained:
                if self._known.answered_long_ago(step.answer):
                    self.faults.append(
                        f"{_short(step.body)} was finished or deferred long ago: {where} delivers it"
                    )


def _short(body: bytes) -> str:
    return body.partition(b"|")[0].decode(errors="replace")
