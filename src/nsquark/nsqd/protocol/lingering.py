"""Whether it pays to stay awake for a client's next request.

A client that waits for each answer sends its next request some microseconds after that. If the event loop
sleeps by then, the system has to wake it, which can take longer than the request itself. Staying awake costs
processor time instead, and gains nothing where requests come at a pace of their own.

So it is tried. Some requests are timed while the loop sleeps between them, and some while it stays awake. It
goes on staying awake only if requests come clearly faster that way.
"""

from __future__ import annotations

LONGEST = 60_000  # ns that the loop stays awake for one request
SLOW = 150_000  # ns from request to request: all that are further apart count as this
QUICK = 100_000  # ns: requests that are further apart on average are not waited for
ROUND = 16  # requests that are timed together
MOST_AWAKE = 64  # rounds, until the loop sleeps for one to compare again
FEWEST_RESTS, MOST_RESTS = 2, 256  # rounds without a trial behind one that gained nothing; they double


class Lingering:
    def __init__(self) -> None:
        self.awake = False  # it pays, as far as is known
        self.last = 0  # when a socket alone had something, in ns; 0 if several had
        self._count = 0
        self._sum = 0
        self._asleep = 0  # ns from request to request while the loop slept, on average
        self._rounds = 0  # that the loop still stays awake
        self._rests = 0  # rounds until the next trial
        self._next_rests = FEWEST_RESTS

    def came(self, now: int, ready: int) -> None:
        """So many sockets have something. The time is monotonic."""
        last, self.last = self.last, 0
        if ready != 1:
            return  # there is enough to do
        self.last = now
        if last:
            self._sum += min(now - last, SLOW)
            self._count += 1
            if self._count == ROUND:
                self._judge(self._sum // ROUND)
                self._count = self._sum = 0

    def _judge(self, average: int) -> None:
        if not self.awake:
            if self._rests > 0:
                self._rests -= 1
            elif average <= QUICK:
                self._asleep = average
                self._rounds = MOST_AWAKE
                self.awake = True
            return
        self._rounds -= 1
        if average * 5 > self._asleep * 4:  # a fifth is the least that has to be gained
            self.awake = False
            self._rests = self._next_rests
            self._next_rests = min(2 * self._next_rests, MOST_RESTS)
        elif self._rounds == 0:
            self.awake = False
            self._next_rests = FEWEST_RESTS
