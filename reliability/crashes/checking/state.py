"""The state of the checker: what is known so far, and the moves that change it from several sides."""

from __future__ import annotations

from .findings import STORED_TWICE, TWO_MEANINGS, Finding
from .tracks import Channel, Connection, Message, Order, Topic, Track


class State:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._number = 0  # of the event
        self._round = 0
        self._life = 0
        self._ends: list[bool] = []  # of each life: whether it was a kill
        self._topics: dict[str, Topic] = {}
        self._messages: dict[str, Message] = {}
        self._batches: dict[str, list[Message]] = {}
        self._publishes: dict[int, list[Message]] = {}  # that are not answered
        self._orders: dict[int, Order] = {}
        self._connections: dict[int, Connection] = {}
        self._ids: dict[str, tuple[str, str]] = {}  # topic and key
        self._timestamps: dict[str, int] = {}  # by id

    def _found(self, kind: str, at: float, text: str, track: Track | None = None) -> None:
        if track is not None:
            where = f"{track.channel.topic.name}/{track.channel.name}"
            text = f"{text}: {track.message.key} on {where}; " + ", ".join(track.story[-12:])
        self.findings.append(Finding(kind, self._round, at, text))

    def _settle(self, track: Track) -> None:
        """Apply the ends of the process that came since the track was last looked at."""
        track.fins.clear()  # nsqd reads nothing more of those connections
        while track.life < self._life:
            if self._ends[track.life]:
                track.at_least = track.kept_at_least
            else:  # it has written down what was in flight and how often
                track.kept_at_least = track.at_least
            track.not_before = track.kept_not_before
            track.life += 1
            track.story.append("killed" if self._ends[track.life - 1] else "stopped")

    # ---- topics, channels, messages

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(name)
        return topic

    def _channel(self, topic: str, name: str) -> Channel:
        channels = self._topic(topic).channels
        channel = channels.get(name)
        if channel is None:
            channel = channels[name] = Channel(self._topic(topic), name)
        return channel

    def _exists(self, message: Message) -> None:
        """The answer was OK, or one of the command's messages was seen: all of them are there."""
        if message.exists:
            return
        for each in message.group:
            if not each.exists:
                each.exists = True
                self._owe(each)
                if not each.batch:  # the rest of a staged batch may come later
                    self._must_be_in_log(each)

    def _must_be_in_log(self, message: Message) -> None:
        topic = self._topic(message.topic)
        if message.position < 0 and not topic.deleting and topic.deleted < message.sent:
            topic.unread[message.key] = message

    def _owe(self, message: Message) -> None:
        for channel in self._topic(message.topic).channels.values():
            track = self._track(channel, message, "")
            since = channel.since
            if since is not None and since < message.sent:
                if not channel.under_orders and channel.last_order < message.sent and not channel.ephemeral:
                    channel.owed.add(track)

    def _track(self, channel: Channel, message: Message, message_id: str) -> Track:
        """A repeated publish may be there twice: then each copy has a track, and one that stands for both."""
        key = message.key
        track = channel.tracks.get(key)
        if track is None:
            track = channel.tracks[key] = Track(channel, message, self._number, self._life)
        if message.sends > 1 and message_id:
            first, key = track, f"{key} {message_id}"
            track = channel.tracks.get(key)
            if track is None:
                track = Track(channel, message, self._number, self._life, loose=True, first=first)
                channel.tracks[key] = track
        if track.life < self._life:
            self._settle(track)
        return track

    def _check_id(self, at: float, message_id: str, topic: str, message: Message) -> None:
        meaning = self._ids.setdefault(message_id, (topic, message.key))
        if meaning != (topic, message.key):
            self._found(
                TWO_MEANINGS, at, f"{message_id} is the id of {meaning} and of {(topic, message.key)}"
            )
        message.ids.add(message_id)
        if len(message.ids) > message.sends:
            where = f" of the staged batch {message.batch}" if message.batch else ""
            self._found(
                STORED_TWICE, at, f"{message.key}{where} in {topic} has the ids {sorted(message.ids)}"
            )
            message.sends = len(message.ids)

    # ---- tracks

    def _gone(self, track: Track, reason: str) -> None:
        track.gone, track.gone_since = reason, self._number
        track.channel.owed.discard(track)

    def _unknown(self, track: Track) -> None:
        track.channel.owed.discard(track)
        track.loose = True
        track.at_least = track.kept_at_least = 0
        track.not_before = track.kept_not_before = 0.0
        track.story.append("unknown")
