"""The messages of one channel that were delivered as often as they may be.

They are on their way to the dead letters (`dead_letters`), and the channel still owes them: they are finished
when they are on the disk there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsquark.errors import LogCorrupt
from nsquark.log import NotIndexed, Run

from .redelivery import RequeuedQueue

if TYPE_CHECKING:
    from .channel import Channel

RETRY_NS = 1_000_000_000


class DeadLettering(RequeuedQueue):
    """Those messages, and what becomes of them."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def send_range(self, position: int, number: int, attempts: int) -> int:
        """Send these to the dead letters, as far as they can be read now; returns how many."""
        done = 0
        while done < number:
            try:
                run = self._channel.read_at(position + done, number - done)
            except (LogCorrupt, NotIndexed, OSError):
                break  # their next delivery takes care of the error
            if run is None or run.position != position + done:
                break
            self.send(run, attempts)
            done += run.count
        return done

    def send(self, run: Run, attempts: int) -> None:
        """Send a run to the dead letters."""
        self.push(run.position, run.count, attempts, 0)
        self._channel.topic.bury(self._channel, run, attempts)

    def arrived(self, position: int, number: int) -> None:
        """These are among the dead letters, and on the disk there."""
        if self._leave(position, number):
            self._channel.finished(position, position + number)
            self._channel.dead_count += number

    def failed(self, position: int, number: int, attempts: int, now: int) -> None:
        """These could not be stored among the dead letters: they wait a little, and it is tried again."""
        if self._leave(position, number):
            self._channel.defer(position, number, attempts, now + RETRY_NS)

    def _leave(self, position: int, number: int) -> bool:
        """Forget these. False if they have been moved or dropped in the meantime."""
        before = self.count
        self.drop(position, position + number)
        return self.count < before and not self._channel.exiting
