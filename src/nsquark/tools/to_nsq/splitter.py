"""Cutting a stream of bytes into pieces at a delimiter, and how many pieces may go in a second."""

from __future__ import annotations


class Splitter:
    """Cuts what it is fed. It holds the beginning of one piece at the most, of `max_size` bytes and one feed.

    A piece longer than `max_size` sets `too_long`; the stream is of no use behind it.
    """

    def __init__(self, delimiter: bytes, max_size: int) -> None:
        self.too_long = False
        self._delimiter = delimiter
        self._max_size = max_size
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces that end in `data`, without delimiters, empty ones too; only those before a long one."""
        held, max_size = self._held, self._max_size
        pieces = data.split(self._delimiter)
        rest = pieces.pop()
        if pieces and held:
            held += pieces[0]
            pieces[0] = bytes(held)
            held.clear()
        held += rest
        if len(held) > max_size:
            self.too_long = True
        # No piece but the first is longer than `data`.
        if pieces and max(len(pieces[0]), len(data)) > max_size:
            for index, piece in enumerate(pieces):
                if len(piece) > max_size:
                    self.too_long = True
                    return pieces[:index]
        return pieces

    def rest(self) -> bytes:
        """The last piece of a stream that does not end with the delimiter: all of its bytes, maybe none."""
        return bytes(self._held)


class Throttle:
    """NSQ's token counter: it starts at 1, gains `rate` a second, and holds a second's worth at the most.

    Without a rate (less than 1) everything goes at once. `now` is in seconds, by any clock.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._tokens = 1.0
        self._at = now

    def take(self, wanted: int, now: float) -> int:
        """How many of the pieces may go now."""
        if self._rate < 1:
            return wanted
        self._tokens = min(float(self._rate), self._tokens + (now - self._at) * self._rate)
        self._at = now
        taken = min(wanted, int(self._tokens + 1e-6))
        self._tokens -= taken
        return taken

    def wait(self) -> float:
        """Seconds after which `take` gives one more."""
        return max(0.0, (1.0 - self._tokens) / self._rate)
