"""Since when a channel is not read, and whether the log is kept for it all the same.

A channel is read while it has consumers, and while a client holds a lease on it. A commit and a seek count at
the moment they come. When the channel has not been read for its `hold_timeout`, the log is no longer kept for
it. The channel itself stays, and a reader that comes back goes on with the first message that is left.

The time in which nsqd did not run does not count, as the channel could not be read then. All times are ns by
the monotonic clock, so setting the clock lets nothing expire.
"""

from __future__ import annotations


class Readership:
    __slots__ = ("_began", "_read", "hold_timeout", "is_let_go", "is_saved")

    def __init__(self, now: int) -> None:
        self._began = now  # when this process has taken up the channel
        self._read = now  # until when it was read, or will be
        self.hold_timeout: int | None = None  # of this channel, where it is not --channel-hold-timeout
        self.is_let_go = False  # the log was not kept for it when that was last looked at
        self.is_saved = False  # `nsqd.dat` says that the channel is not read

    def read(self, until: int) -> None:
        """A reader is there until then."""
        self._read = max(self._read, until)

    def left(self, now: int) -> None:
        """A reader that had said it would stay longer has gone."""
        self._read = min(self._read, now)

    def restore(self, idle: int, now: int) -> None:
        """Take over from an earlier process for how long the channel has not been read."""
        self._read = now - idle

    def idle(self, now: int) -> int:
        """For how long the channel has not been read, if it has no consumers now."""
        return max(0, now - self._read)

    def has_expired(self, timeout: int, now: int) -> bool:
        """Whether the log need not be kept for the channel any more; 0 is no timeout."""
        return bool(timeout) and now - max(self._read, self._began) >= timeout
