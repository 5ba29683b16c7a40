"""A history in, findings out: whatever nsqd did that nothing explains.

The checker never claims more than a client can know. Behind the last answer that was read, commands may or
may not have been taken note of when the process was killed. A delivery may have been on its way when an
operator emptied the channel. `checking` has what is known, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import history as h
from .checking.consuming import Consuming
from .checking.findings import LOST, STORED_TWICE, STRANGE, TWO_MEANINGS, Finding
from .checking.orders import Orders
from .checking.tracks import Message, Topic


def check(history: h.History) -> list[Finding]:
    checker = Checker()
    for event in history:
        checker.feed(event)
    return checker.findings


class Checker(Consuming, Orders):
    """Takes events one by one. `findings` are those so far."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[type, Callable[[Any], None]] = {
            h.Started: self._started,
            h.Killed: self._killed,
            h.Stopped: self._stopped,
            h.Publishing: self._publishing,
            h.Published: self._published,
            h.Subscribing: self._subscribing,
            h.Subscribed: self._subscribed,
            h.Disconnected: self._disconnected,
            h.Delivered: self._delivered,
            h.Finishing: self._finishing,
            h.Requeuing: self._requeuing,
            h.Touching: self._touching,
            h.AnswerFailed: self._answer_failed,
            h.Asking: self._asking,
            h.Answered: self._answered,
            h.Ordering: self._ordering,
            h.Ordered: self._ordered,
            h.OrderFailed: self._order_failed,
            h.Promised: self._promised,
            h.LogRead: self._log_read,
            h.Strange: self._strange,
            h.Drained: self._drained,
        }

    def feed(self, event: h.Event) -> None:
        self._number += 1
        self._handlers[type(event)](event)

    def owing(self) -> list[tuple[str, str]]:
        """Topic and channel of all that owe messages."""
        return [
            (topic.name, channel.name)
            for topic in self._topics.values()
            for channel in topic.channels.values()
            if channel.owed
        ]

    # ---- the process

    def _started(self, event: h.Started) -> None:
        self._round = event.round

    def _killed(self, event: h.Killed) -> None:
        self._end(killed=True)

    def _stopped(self, event: h.Stopped) -> None:
        self._end(killed=False)

    def _end(self, killed: bool) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        for order in self._orders.values():
            self._give_up(order)
        self._orders.clear()
        # A staged batch has the same operations when it is published again.
        self._publishes = {number: sent for number, sent in self._publishes.items() if sent and sent[0].batch}
        self._ends.append(killed)
        self._life += 1

    # ---- publishing

    def _publishing(self, event: h.Publishing) -> None:
        group = self._batches.setdefault(event.batch, []) if event.batch else []
        sent: list[Message] = []
        for key in event.keys:
            message = self._messages.get(key)
            if message is None:
                due = event.at + event.delay if event.delay else 0.0
                message = Message(key, event.topic, self._number, due, group, event.batch)
                self._messages[key] = message
                group.append(message)
            elif event.repeats:
                message.sends += 1
                # Only one of its copies is certain, and the answer to the repeat says which.
                message.group = group
                group.append(message)
            else:
                self._found(STRANGE, event.at, f"the history has {key} twice")
            sent.append(message)
        self._publishes[event.operation] = sent

    def _published(self, event: h.Published) -> None:
        for message in self._publishes.pop(event.operation, []):
            self._exists(message)
            self._must_be_in_log(message)

    # ---- looking

    def _log_read(self, event: h.LogRead) -> None:
        topic = self._topic(event.topic)
        if topic.epoch != event.epoch:
            gapless = event.start == event.origin
            if topic.epoch and topic.deleted == 0:
                self._found(LOST, event.at, f"{topic.name} has another epoch, and was not deleted")
            topic.epoch = event.epoch
            for message in topic.by_position.values():
                message.position = -1
            topic.by_position.clear()
        else:
            gapless = event.start <= topic.next
        for position, message_id, key in event.entries:
            self._log_entry(event, topic, position, message_id, key)
        if gapless:
            for message in topic.unread.values():
                self._found(
                    LOST,
                    event.at,
                    f"{message.key} was answered or seen, and is not in the log of {topic.name}",
                )
        topic.unread.clear()
        topic.next = event.next

    def _log_entry(self, event: h.LogRead, topic: Topic, position: int, message_id: str, key: str) -> None:
        meaning = topic.meanings.setdefault(position, (message_id, key))
        if meaning != (message_id, key):
            self._found(
                TWO_MEANINGS, event.at, f"{topic.name} has {meaning} and {(message_id, key)} at {position}"
            )
        message = self._messages.get(key)
        if message is None or message.topic != topic.name:
            self._found(STRANGE, event.at, f"{key} is in the log of {topic.name} and was not published there")
            return
        self._exists(message)
        self._check_id(event.at, message_id, topic.name, message)
        topic.unread.pop(key, None)
        message.positions.add(position)
        message.position = position
        topic.by_position[position] = message
        if len(message.positions) > message.sends:
            where = f" of the staged batch {message.batch}" if message.batch else ""
            self._found(
                STORED_TWICE, event.at, f"{key}{where} is in {topic.name} at {sorted(message.positions)}"
            )
            message.sends = len(message.positions)

    def _strange(self, event: h.Strange) -> None:
        self._found(STRANGE, event.at, event.text)

    def _drained(self, event: h.Drained) -> None:
        for topic in self._topics.values():
            for channel in topic.channels.values():
                for track in channel.owed:
                    part = f" of the staged batch {track.message.batch}" if track.message.batch else ""
                    self._found(LOST, event.at, f"a message{part} never came", track)
