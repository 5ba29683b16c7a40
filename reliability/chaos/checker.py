"""A history in, findings out: whatever a replica group did that nothing explains.

The checker never claims more than a client can know. What a FIN or REQ did is certain in two steps. Its nsqd
has taken it when more messages come on the connection than RDY allows without it. It is on every member that
may lead when a later publish is answered OK by the same process: everything that a primary writes is one
stream, and an OK waits for all of the stream before it. The publish goes out on a connection that was there
before the FIN, since a connection does not outlive the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from . import history as h
from .accounts import Answer, Channel, Connection, Message, Publish, Topic
from .findings import (
    CAME_BACK,
    DIVERGED,
    EARLY,
    FELL,
    LOST,
    REFUSED_AND_STORED,
    SLOW,
    STORED_TWICE,
    STRANGE,
    STUCK,
    TOLERANCE,
    TWO_MEANINGS,
    UNDONE,
    Finding,
)


def check(history: h.History, longest_gap: float = float("inf")) -> list[Finding]:
    checker = Checker(longest_gap)
    for event in history:
        checker.feed(event)
    return checker.findings


class Checker:
    """Takes events one by one. `findings` are those so far; `gaps` are times without service, by fault."""

    def __init__(self, longest_gap: float = float("inf")) -> None:
        """`longest_gap` is how long nothing may be answered after the loss of the primary alone."""
        self.findings: list[Finding] = []
        self.gaps: list[tuple[h.PrimaryLost, float]] = []
        self._longest_gap = longest_gap
        self._round = self._number = 0
        self._topics: dict[str, Topic] = {}
        self._messages: dict[str, Message] = {}
        self._ids: dict[str, str] = {}  # id: key
        self._connections: dict[int, Connection] = {}
        self._publishes: dict[int, Publish] = {}
        self._orders: dict[int, h.Ordering] = {}
        self._doomed: dict[int, frozenset[str]] = {}  # epochs that were known when a deletion went out
        self._looks: dict[int, int] = {}
        self._ranges: dict[int, tuple[str, dict[str, int], frozenset[str]]] = {}
        self._taken: dict[str, deque[Answer]] = {}  # by member: answers that their nsqd has taken
        self._lost: tuple[int, h.PrimaryLost] | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            h.Round: self._new_round,
            h.PrimaryLost: self._primary_lost,
            h.Stuck: lambda event: self._found(STUCK, event.at, event.text),
            h.Diverged: lambda event: self._found(DIVERGED, event.at, event.text),
            h.Strange: lambda event: self._found(STRANGE, event.at, event.text),
            h.Connected: self._connected,
            h.Publishing: self._publishing,
            h.Published: self._published,
            h.Refused: self._refused,
            h.Unanswered: lambda event: None,
            h.Delivered: self._delivered,
            h.Finishing: self._finishing,
            h.Requeuing: self._requeuing,
            h.Ordering: self._ordering,
            h.Ordered: self._ordered,
            h.OrderUnanswered: self._order_unanswered,
            h.Looking: self._looking,
            h.Looked: self._looked,
            h.RangeAsked: self._range_asked,
            h.RangeTold: self._range_told,
            h.LogRead: self._log_read,
            h.Drained: self._drained,
        }

    def feed(self, event: h.Event) -> None:
        self._number += 1
        self._handlers[type(event)](event)

    def owing(self) -> list[tuple[str, str, int]]:
        """Topic, channel, and how many messages it owes."""
        return [
            (topic.name, channel.name, count)
            for topic in self._topics.values()
            for channel in topic.channels.values()
            if (count := len(channel.owed) + len(self._sought(topic, channel)))
        ]

    def _found(self, kind: str, at: float, text: str) -> None:
        self.findings.append(Finding(kind, self._round, at, text))

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(name)
        return topic

    # ---- the group

    def _new_round(self, event: h.Round) -> None:
        self._round = event.number

    def _primary_lost(self, event: h.PrimaryLost) -> None:
        self._lost = self._number, event

    def _serves_again(self, at: float, publish: Publish) -> None:
        if self._lost is None or publish.number < self._lost[0]:
            return
        lost = self._lost[1]
        self._lost = None
        gap = at - lost.at
        self.gaps.append((lost, gap))
        if lost.alone and gap > self._longest_gap:
            self._found(SLOW, at, f"{gap:.1f} s after {lost.fault}")

    def _connected(self, event: h.Connected) -> None:
        channel = self._topic(event.topic).channel(event.channel) if event.channel else None
        self._connections[event.connection] = Connection(self._number, event.member, channel, event.rdy)

    # ---- publishing

    def _publishing(self, event: h.Publishing) -> None:
        messages = []
        for key in event.keys:
            message = self._messages.get(key)
            if message is None:
                message = Message(key, event.topic, event.at + event.delay if event.delay else 0.0)
                self._messages[key] = message
            elif not event.batch:
                self._found(STRANGE, event.at, f"the history has {key} twice")
            messages.append(message)
        connection = self._connections.get(event.connection)
        self._publishes[event.operation] = Publish(self._number, messages, connection)

    def _published(self, event: h.Published) -> None:
        publish = self._publishes.pop(event.operation)
        self._serves_again(event.at, publish)
        for message in publish.messages:
            message.answered = True
            for channel in self._topic(message.topic).channels.values():
                if channel.owes(publish.number) and message.key not in channel.finished:
                    channel.owed[message.key] = message
        if publish.connection is not None:
            self._make_certain(publish, publish.connection)

    def _make_certain(self, publish: Publish, connection: Connection) -> None:
        """The answers that the same process took before the publish are on every member that may lead."""
        taken = self._taken.get(connection.member)
        while taken and taken[0].taken < publish.number:
            answer = taken.popleft()
            # If the connection is younger than the answer, it may be with another process.
            if connection.number < answer.number and not answer.channel.moved:
                answer.certain = self._number
                answer.channel.certain[answer.id] = answer

    def _refused(self, event: h.Refused) -> None:
        for message in self._publishes.pop(event.operation).messages:
            message.refused = True
            if message.seen:
                self._found(REFUSED_AND_STORED, event.at, f"{message.key} was {message.seen}")

    def _exists(self, at: float, key: str, message_id: str, topic: str, how: str) -> Message | None:
        meaning = self._ids.setdefault(message_id, key)
        if meaning != key:
            self._found(TWO_MEANINGS, at, f"the id {message_id} means {meaning} and {key}")
        message = self._messages.get(key)
        if message is None or message.topic != topic:
            self._found(STRANGE, at, f"{key} was {how} in {topic}, and was not published there")
            return None
        if message.id and message.id != message_id:
            self._found(STORED_TWICE, at, f"{key} has the ids {message.id} and {message_id}")
        message.id = message_id
        if message.refused and not message.seen:
            self._found(REFUSED_AND_STORED, at, f"{key} was {how}")
        message.seen = message.seen or how
        return message

    # ---- consuming

    def _delivered(self, event: h.Delivered) -> None:
        connection = self._connections[event.connection]
        channel = connection.channel
        assert channel is not None
        message = self._exists(event.at, event.key, event.id, channel.topic, "delivered")
        connection.delivered += 1
        while connection.answers and connection.delivered - connection.rdy > connection.taken:
            answer = connection.answers.popleft()
            connection.taken += 1
            answer.taken = self._number
            self._taken.setdefault(connection.member, deque()).append(answer)
        if message is None:
            return
        where = f"{event.key} in {channel}"
        if event.at < message.due - TOLERANCE:
            self._found(EARLY, event.at, f"{where}, {message.due - event.at:.3f} s before its time")
        answer = channel.certain.get(event.id)
        # A primary that was stopped may deliver for a moment what another one has seen finished.
        if answer is not None and (connection.number > answer.certain or connection is answer.connection):
            if answer.due is None:
                self._found(CAME_BACK, event.at, f"{where}, finished {event.at - answer.at:.3f} s before")
                del channel.certain[event.id]
            elif event.at < answer.due - TOLERANCE:
                self._found(EARLY, event.at, f"{where}, requeued until {answer.due - event.at:.3f} s later")
        if channel.paused and connection.number > channel.changed:
            self._found(UNDONE, event.at, f"{where}, which is paused")
        if channel.sought is not None and connection.number > channel.changed:
            channel.deliveries.append((event.at, message))

    def _answer(self, at: float, number: int, message_id: str, due: float | None) -> None:
        connection = self._connections[number]
        channel = connection.channel
        assert channel is not None
        channel.certain.pop(message_id, None)
        connection.answers.append(Answer(self._number, at, message_id, channel, connection, due))

    def _finishing(self, event: h.Finishing) -> None:
        self._answer(event.at, event.connection, event.id, None)
        channel = self._connections[event.connection].channel
        assert channel is not None
        key = self._ids.get(event.id, "")
        channel.owed.pop(key, None)
        channel.finished[key] = self._number

    def _requeuing(self, event: h.Requeuing) -> None:
        self._answer(event.at, event.connection, event.id, event.at + event.delay)

    # ---- operators

    def _ordering(self, event: h.Ordering) -> None:
        self._orders[event.operation] = event
        topic = self._topic(event.topic)
        channel = topic.channel(event.channel) if event.channel else None
        if event.action == "create":
            if channel is not None:
                channel.changed = self._number
                channel.there = True if channel.there else None
        elif event.action == "delete":
            for each in topic.channels.values() if channel is None else (channel,):
                each.clear(self._number)
            if channel is None:
                topic.deletions += 1
                self._doomed[event.operation] = frozenset(topic.ends)
        elif channel is not None:
            channel.changed = self._number
            if event.action == "seek":
                channel.move(self._number)
            else:
                channel.paused = None

    def _ordered(self, event: h.Ordered) -> None:
        order = self._orders.pop(event.operation)
        topic = self._topic(order.topic)
        channel = topic.channel(order.channel) if order.channel else None
        if order.action == "delete":
            for each in topic.channels.values() if channel is None else (channel,):
                each.clear(self._number)
                each.there = each.paused = False
            if channel is None:
                topic.dead.update(self._doomed.pop(event.operation))
        elif channel is not None:
            channel.changed = self._number
            if order.action == "create":
                if not channel.there:
                    channel.created, channel.there, channel.paused = self._number, True, False
            elif order.action == "seek":
                channel.sought, channel.since = event.position, self._number
            else:
                channel.paused = order.action == "pause"

    def _order_unanswered(self, event: h.OrderUnanswered) -> None:
        order = self._orders.pop(event.operation)
        topic = self._topic(order.topic)
        if order.channel:
            topic.channel(order.channel).changed = self._number

    def _looking(self, event: h.Looking) -> None:
        self._looks[event.operation] = self._number

    def _looked(self, event: h.Looked) -> None:
        asked = self._looks.pop(event.operation)
        for topic in self._topics.values():
            told = event.channels.get(topic.name, {})
            for channel in topic.channels.values():
                if channel.changed > asked:
                    continue
                if channel.there and channel.name not in told:
                    self._found(UNDONE, event.at, f"{channel} was created, and is not there")
                elif channel.there is False and channel.name in told:
                    self._found(UNDONE, event.at, f"{channel} was deleted, and is there")
                elif channel.there and channel.paused is not None and told[channel.name] != channel.paused:
                    self._found(UNDONE, event.at, f"{channel} is paused: {told[channel.name]}")

    # ---- readers of logs

    def _range_asked(self, event: h.RangeAsked) -> None:
        topic = self._topic(event.topic)
        self._ranges[event.operation] = event.topic, dict(topic.ends), frozenset(topic.dead)

    def _range_told(self, event: h.RangeTold) -> None:
        name, ends, dead = self._ranges.pop(event.operation)
        topic = self._topic(name)
        known = ends.get(event.epoch, 0)
        if event.next < known:
            self._found(FELL, event.at, f"that of {name} was {known}, and is {event.next}")
        self._epoch(event.at, topic, event.epoch)
        if event.epoch in dead:
            self._found(UNDONE, event.at, f"{name} was deleted, and has the epoch {event.epoch} again")
        topic.ends[event.epoch] = max(topic.ends.get(event.epoch, 0), event.next)

    def _epoch(self, at: float, topic: Topic, epoch: str) -> None:
        if epoch not in topic.ends:
            topic.ends[epoch] = 0
            if len(topic.ends) > topic.deletions + 1:
                self._found(LOST, at, f"{topic.name} has the epochs {sorted(topic.ends)}")
                topic.deletions = len(topic.ends)

    def _log_read(self, event: h.LogRead) -> None:
        topic = self._topic(event.topic)
        self._epoch(event.at, topic, event.epoch)
        for position, message_id, key in event.entries:
            meaning = topic.meanings.setdefault((event.epoch, position), (message_id, key))
            if meaning != (message_id, key):
                text = f"{topic.name} has {meaning} and {(message_id, key)} at {position}"
                self._found(TWO_MEANINGS, event.at, text)
            message = self._exists(event.at, key, message_id, topic.name, "read")
            if message is not None:
                if message.position not in (-1, position):
                    text = f"{key} is in {topic.name} at {message.position} and {position}"
                    self._found(STORED_TWICE, event.at, text)
                message.position = position
        if event.whole and not topic.deletions:
            self._whole_log(event, {key for _, _, key in event.entries})

    def _whole_log(self, event: h.LogRead, keys: set[str]) -> None:
        for message in self._messages.values():
            if message.topic != event.topic or message.key in keys:
                continue
            if message.answered:
                self._found(LOST, event.at, f"{message.key} was answered, and is not in the log")
            elif message.seen:
                self._found(LOST, event.at, f"{message.key} was {message.seen}, and is not in the log")

    # ---- the end

    def _sought(self, topic: Topic, channel: Channel) -> list[Message]:
        """What a channel owes after the last seek, as far as positions are known."""
        if channel.sought is None:
            return []
        return [
            message
            for message in self._messages.values()
            if message.topic == topic.name
            and message.position >= channel.sought
            and channel.finished.get(message.key, 0) < channel.sought_at
        ]

    def _drained(self, event: h.Drained) -> None:
        for topic in self._topics.values():
            for channel in topic.channels.values():
                for message in channel.owed.values():
                    self._found(LOST, event.at, f"{message.key} never came in {channel}")
                for message in self._sought(topic, channel):
                    text = f"{message.key} at {message.position} did not come after a seek of {channel}"
                    self._found(UNDONE, event.at, f"{text} to {channel.sought}")
                for at, message in channel.deliveries:
                    if channel.sought is not None and -1 < message.position < channel.sought:
                        text = f"{message.key} at {message.position} came after a seek of {channel}"
                        self._found(UNDONE, at, f"{text} to {channel.sought}")
