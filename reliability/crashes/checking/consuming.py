"""Connections and deliveries: whether each delivery has a reason, and what becomes of each answer to it."""

from __future__ import annotations

from .. import history as h
from .findings import ATTEMPTS, CAME_BACK, EARLY, PAUSED, REFUSED, STRANGE, TOLERANCE, TWICE, TWO_MEANINGS
from .state import State
from .tracks import Channel, Connection, Flight, Message, Step


class Consuming(State):
    # ---- connections

    def _subscribing(self, event: h.Subscribing) -> None:
        channel = self._channel(event.topic, event.channel)
        channel.times_out = channel.times_out or event.timeout < 10.0
        if channel.life != self._life:
            channel.life, channel.closes_before = self._life, channel.closes
        self._connections[event.connection] = Connection(
            event.connection, channel, event.timeout, event.at, self._number
        )

    def _subscribed(self, event: h.Subscribed) -> None:
        connection = self._connections[event.connection]
        channel = connection.channel
        if channel.since is None and not channel.under_orders and channel.last_order < connection.since_event:
            channel.since = self._number

    def _disconnected(self, event: h.Disconnected) -> None:
        connection = self._connections.get(event.connection)
        if connection is not None:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        """The connection is gone: steps may have been lost on their way."""
        del self._connections[connection.number]
        connection.open = False
        channel = connection.channel
        channel.closes += 1
        for step in connection.unsure():
            track = step.flight.track
            if track.step is step:
                track.step = None
                track.not_before = track.kept_not_before
                track.story.append(f"#{connection.number} closed")
        if channel.ephemeral:
            channel.topic.channels.pop(channel.name, None)

    def _asking(self, event: h.Asking) -> None:
        connection = self._connections[event.connection]
        connection.asking = (self._number, event.at)
        connection.asked, connection.new = connection.new, []

    def _answered(self, event: h.Answered) -> None:
        connection = self._connections[event.connection]
        assert connection.asking is not None, "an answer to no question"
        connection.since_event, connection.since = connection.asking
        connection.asking = None
        for step in connection.answered_once:
            self._keep(step)
        connection.answered_once, connection.asked = connection.asked, []

    def _keep(self, step: Step) -> None:
        """nsqd has taken the step, and has written down what was to be."""
        track = step.flight.track
        if step.failed:
            return
        step.kept = True
        if step.command == "TOUCH":
            if not step.doubtful:  # else it may be this one that nsqd has refused
                step.flight.since = max(step.flight.since, step.at)
            return
        overtaken = track.channel.under_orders or track.channel.last_order > step.number
        if track.step is step:
            track.step = None
        if overtaken or step.doubtful:
            return  # an order has settled what the track is, or will; or nothing is known
        track.story.append(f"{step.command} kept")
        track.kept_at_least = max(track.kept_at_least, step.attempts)
        track.kept_not_before = step.not_before
        if step.command == "FIN":
            self._gone(track, "finished")

    # ---- deliveries

    def _delivered(self, event: h.Delivered) -> None:
        connection = self._connections[event.connection]
        channel = connection.channel
        message = self._message_of(event, channel)
        if message is None:
            return
        self._check_id(event.at, event.id, channel.topic.name, message)
        if self._timestamps.setdefault(event.id, event.timestamp) != event.timestamp:
            self._found(TWO_MEANINGS, event.at, f"{event.id} has two timestamps")
        self._exists(message)
        track = self._track(channel, message, event.id)
        track.story.append(f"round {self._round}: attempt {event.attempts} to #{connection.number}")
        flight = Flight(connection, track, connection.since, self._number)
        before = connection.flights.get(event.id)
        connection.flights[event.id] = flight
        if self._is_overtaken(flight, event):
            flight.void = True
            return
        self._check_delivery(flight, event)
        track.attempts = event.attempts if track.loose else max(track.attempts, event.attempts)
        track.at_least = event.attempts
        # nsqd may hear of a close later than it happened, so all of this life count.
        track.closes = channel.closes_before
        track.gone, track.loose = "", False
        track.holder, track.step = flight, None
        track.touched = self._number
        if channel.under_orders or channel.last_order > connection.since_event:
            track.loose = True  # it may have been on its way when the order came
            flight.void = True
            return
        if channel.times_out and before is not None and before.unsettled:
            # That delivery has timed out, and its answers may count for this one, or the one after.
            flight.void = True
            flight.answers = before.unsettled
            if any(each.command == "FIN" for each in flight.answers):
                return
        if not track.may_be_finished():
            channel.owed.add(track)

    def _message_of(self, event: h.Delivered, channel: Channel) -> Message | None:
        topic = channel.topic.name
        message = self._messages.get(event.key)
        if message is None:
            self._found(STRANGE, event.at, f"{event.key} came on {topic} and was never published")
            return None
        if event.died_in is None:
            if message.topic != topic:
                self._found(TWO_MEANINGS, event.at, f"{event.key} of {message.topic} came on {topic}")
                return None
            return message
        # A dead letter is a message of its own, which nsqd has published. It pays for the one that died.
        dead = self._channel(*event.died_in)
        for track in dead.tracks.values():
            if track.message is message:
                track.story.append("died")
                dead.owed.discard(track)
        key = f"letter {event.id}"
        letter = self._messages.get(key)
        if letter is None:
            letter = Message(key, topic, self._number, 0.0, [], exists=True)
            letter.group.append(letter)
            self._messages[key] = letter
        return letter

    def _is_overtaken(self, flight: Flight, event: h.Delivered) -> bool:
        """Whether the delivery was on its way when something happened that makes an end of it."""
        track, connection = flight.track, flight.connection
        if not track.gone and event.attempts > track.at_least:
            return False
        if track.channel.under_orders or track.channel.last_order > connection.since_event:
            return True
        return flight.may_have_expired(event.at, TOLERANCE)

    def _check_delivery(self, flight: Flight, event: h.Delivered) -> None:
        track, connection, at = flight.track, flight.connection, event.at
        channel, message = track.channel, track.message
        if track.gone:
            self._found(CAME_BACK, at, f"was {track.gone} and came back", track)
        elif event.attempts <= track.at_least:
            self._found(ATTEMPTS, at, f"attempt {event.attempts} behind {track.at_least}", track)
        holder = track.holder
        if holder is not None and holder.connection.open and not holder.void and not track.gone:
            if not holder.may_have_expired(at, TOLERANCE) and not channel.under_orders:
                if channel.last_order < holder.number:
                    self._found(TWICE, at, f"is in flight or finished at #{holder.connection.number}", track)
        not_before = track.not_before if at < track.excused_from - TOLERANCE else 0.0
        early = max(message.due, not_before) - at
        if early > TOLERANCE and not (channel.under_orders and message.due <= at):
            self._found(EARLY, at, f"{early:.3f} s too early", track)
        unseen = channel.closes - track.closes
        if not track.loose and not channel.times_out and not channel.under_orders:
            if event.attempts > track.attempts + 1 + unseen:
                self._found(ATTEMPTS, at, f"attempt {event.attempts} behind {track.attempts}", track)
        if channel.paused is not None and channel.paused < connection.since_event:
            self._found(PAUSED, at, "the channel is paused", track)
        if channel.topic.paused is not None and channel.topic.paused < message.sent:
            self._found(PAUSED, at, "the topic is paused", track)

    # ---- answers to deliveries

    def _step(self, command: str, event: h.Finishing | h.Requeuing | h.Touching) -> Step | None:
        connection = self._connections[event.connection]
        flight = connection.flights.get(event.id)
        if flight is None:
            return None
        track = flight.track
        step = Step(command, flight, self._number, event.at, track.at_least)
        step.was_owed = track in track.channel.owed
        connection.new.append(step)
        return step

    def _finishing(self, event: h.Finishing) -> None:
        """FIN goes out. The connection holds the message on, so that no other consumer may get it."""
        step = self._step("FIN", event)
        if step is not None:
            track = step.flight.track
            track.step = step
            step.flight.answers.append(step)
            track.fins.append(step)
            track.touched = self._number
            track.story.append(f"FIN of #{event.connection}")
            track.channel.owed.discard(track)
            if track.first is not None:
                track.channel.owed.discard(track.first)

    def _requeuing(self, event: h.Requeuing) -> None:
        """REQ goes out: the message may come to any consumer, but not too early."""
        step = self._step("REQ", event)
        if step is None:
            return
        flight, track = step.flight, step.flight.track
        if event.delay:
            step.not_before = event.at + event.delay
        track.story.append(f"REQ {event.delay} of #{event.connection}")
        track.step = step
        flight.answers.append(step)
        track.touched = self._number
        if track.holder is flight:
            track.excused_from = flight.since + flight.connection.timeout
            if not flight.void:
                track.not_before = step.not_before
            track.holder = None

    def _touching(self, event: h.Touching) -> None:
        self._step("TOUCH", event)

    def _answer_failed(self, event: h.AnswerFailed) -> None:
        connection = self._connections[event.connection]
        flight = connection.flights.get(event.id)
        steps = [
            step
            for step in connection.unsure()
            if step.command == event.command
            and flight is not None
            and step.flight.track is flight.track
            and not step.failed
        ]
        if not steps:
            return  # it was settled before
        step = steps[0]
        flight, track = step.flight, step.flight.track
        if len(steps) > 1:
            # The message has timed out here and has come again, and each delivery was answered.
            for each in steps:
                each.doubtful = True
            track.story.append(f"one {event.command} of #{event.connection} failed")
            track.channel.owed.discard(track)
            return
        step.failed = True
        explained = (
            flight.void
            or track.channel.times_out
            or track.channel.under_orders
            or track.channel.last_order > flight.number
            or flight.may_have_expired(event.at, TOLERANCE)
        )
        track.story.append(f"{event.command} of #{event.connection} failed")
        if not explained:
            self._found(REFUSED, event.at, f"{event.command} was refused", track)
        if track.step is step:
            track.step, track.touched = None, self._number
            track.not_before = track.kept_not_before
            overtaken = track.channel.under_orders or track.channel.last_order > step.number
            if step.was_owed and not overtaken and not track.may_be_finished(but=step):
                track.channel.owed.add(track)
