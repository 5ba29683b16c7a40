"""What operators have done to topics and channels, and what follows for the messages.

A message is *quiet* if nothing was under way with it while an order was: then the order has settled what
becomes of it. Of any other message nothing is known until it is delivered again, or finished.
"""

from __future__ import annotations

from .. import history as h
from .state import State
from .tracks import Channel, Message, Order, Topic, Track


class Orders(State):
    def _promised(self, event: h.Promised) -> None:
        self._channel(event.topic, event.channel).since = self._number

    def _ordering(self, event: h.Ordering) -> None:
        topic = self._topic(event.topic)
        channel = self._channel(event.topic, event.channel) if event.channel else None
        order = Order(event.action, topic, channel, self._number, event.position)
        self._orders[event.operation] = order
        if event.action in ("pause", "unpause"):
            (channel or topic).paused = None
            if channel is None:
                topic.flows = False
        elif order.moves:
            if channel is not None:
                channel.ordering += 1
            elif event.action == "delete":
                topic.deleting += 1
            else:  # what is emptied of a topic is its own queue, which no channel has yet
                for each in topic.channels.values():
                    each.ordering += 1
        if event.action == "delete":
            for each in [channel] if channel is not None else list(topic.channels.values()):
                each.since = None

    def _close_order(self, order: Order) -> list[Channel]:
        """The order is over; returns the channels it was about."""
        topic, channel = order.topic, order.channel
        if not order.moves:
            return []
        if channel is None and order.action == "delete":
            topic.deleting -= 1
            topic.deleted = self._number
            topic.unread.clear()
            return list(topic.channels.values())
        channels = [channel] if channel is not None else list(topic.channels.values())
        for each in channels:
            each.ordering = max(0, each.ordering - 1)
            each.ordered = self._number
        return channels

    def _give_up(self, order: Order) -> None:
        """The process ended before the answer: the order was carried out, or not."""
        for channel in self._close_order(order):
            for track in channel.tracks.values():
                self._settle(track)
                if order.action == "seek":
                    track.gone = ""
                before = self._is_before(track.message, order.topic, order.position)
                if order.action != "commit" or before is not False:
                    self._unknown(track)

    def _order_failed(self, event: h.OrderFailed) -> None:
        order = self._orders.pop(event.operation, None)
        if order is not None:
            self._give_up(order)

    def _ordered(self, event: h.Ordered) -> None:
        order = self._orders.pop(event.operation, None)
        if order is None:
            return
        topic, channel = order.topic, order.channel
        if order.action in ("pause", "unpause"):
            (channel or topic).paused = self._number if order.action == "pause" else None
            if channel is None:
                topic.flows = order.action == "unpause"
            return
        if order.action == "create" and channel is not None:
            if channel.since is None and not channel.under_orders and channel.last_order < order.begun:
                channel.since = self._number
            return
        channels = self._close_order(order)
        if order.action == "seek":
            self._sought(order, event.position)
        elif order.action == "commit":
            self._committed(order)
        elif channel is None and order.action == "empty":
            # It may have dropped what was published while the topic was paused, or had no channel.
            for each in channels:
                for track in list(each.owed):
                    if not track.attempts:
                        self._settle(track)
                        self._unknown(track)
        else:
            for each in channels:
                self._dropped(order, each)
        if channel is None and order.action == "delete":
            for message in topic.by_position.values():
                message.position = -1
            topic.by_position.clear()
            topic.epoch = ""
            topic.paused, topic.flows = None, True
        if order.action == "delete":
            for each in channels:
                each.paused = None

    def _is_quiet(self, track: Track, order: Order) -> bool:
        """Nothing was under way with the message while the order was."""
        return track.touched < order.begun and track.step is None and track.message.sent < order.begun

    def _dropped(self, order: Order, channel: Channel) -> None:
        """Everything of the channel is gone; what was going on meanwhile may be."""
        for track in channel.tracks.values():
            self._settle(track)
            quiet = self._is_quiet(track, order) and track.message.exists and track.message.sends == 1
            # What a topic holds back while it is paused is not the channel's yet. A crash behind an unpausing
            # without an answer gives it back to the topic, too.
            held_back = track.at_least == 0 and order.channel is not None and not channel.topic.flows
            self._unknown(track)
            if track.holder is not None:
                track.holder.void = True
            if held_back:
                continue
            if quiet and not track.gone:
                self._gone(track, "deleted" if order.action == "delete" else "emptied")

    def _sought(self, order: Order, position: int) -> None:
        """Everything from `position` on is delivered as if it never was. Everything before is finished."""
        channel = order.channel
        assert channel is not None
        topic = channel.topic
        for message in topic.by_position.values():
            self._track(channel, message, "")
        for track in channel.tracks.values():
            self._settle(track)
            quiet = self._is_quiet(track, order) and track.message.exists and track.message.sends == 1
            self._unknown(track)
            track.gone = ""
            if track.holder is not None:
                track.holder.void = True
            if quiet and (where := self._is_before(track.message, topic, position)) is not None:
                if where:
                    self._gone(track, "passed by a seek")
                else:
                    channel.owed.add(track)

    def _committed(self, order: Order) -> None:
        """Everything before the position is finished, whichever consumer has it."""
        channel = order.channel
        assert channel is not None
        for track in channel.tracks.values():
            where = self._is_before(track.message, channel.topic, order.position)
            if where is False:
                continue
            self._settle(track)
            if where is None:
                self._unknown(track)
            elif not track.gone and track.message.sends == 1:
                if track.holder is not None:
                    track.holder.void = True
                self._gone(track, "committed")
            else:
                channel.owed.discard(track)

    @staticmethod
    def _is_before(message: Message, topic: Topic, position: int) -> bool | None:
        """Whether a message lies before a position; None where that cannot be known."""
        if message.sends > 1:  # each copy has its own
            return None
        if message.position >= 0:
            return message.position < position
        if message.key in topic.unread and position <= topic.next:
            return False  # it was published behind what was read
        return None
