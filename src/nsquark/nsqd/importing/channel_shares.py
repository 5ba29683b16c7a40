"""Which messages of a log that is being imported are whose, as records of its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nsquark.log import JournalRecords

MOST_WITH_ATTEMPTS = 250_000  # messages of a channel: nsqd has an entry in memory for each of them


class ChannelShares:
    """Adds records to a journal: a channel has finished what another channel's queue alone held.

    `ranges` counts the records. `with_attempts` counts the messages of each channel, by its number, that were
    delivered before. Beyond a bound their attempts are not kept: `forgotten` counts those.
    """

    def __init__(self, journal: JournalRecords, numbers: Sequence[int], position: int) -> None:
        """The channels have these numbers. Messages are added from `position` on."""
        self.ranges = 0
        self.with_attempts: dict[int, int] = {}
        self.forgotten = 0
        self._journal = journal
        # Where a run of messages begins that are not the channel's. An owner of the last message has none.
        self._foreign_from = dict.fromkeys(numbers, position)
        self._owners: set[int] = set()
        self._retried: dict[int, tuple[int, int, int]] = {}  # a run with equal attempts: start, end, attempts
        self._end = position

    def add(self, position: int, owners: Mapping[int, int]) -> None:
        """The message at this position, the next one, is for these channels; the values are attempts."""
        foreign = self._foreign_from
        if owners.keys() != self._owners:
            for number in owners.keys() - self._owners:
                self._finish(number, foreign.pop(number), position)
            for number in self._owners - owners.keys():
                foreign[number] = position
            self._owners = set(owners)
        for number, attempts in owners.items():
            if attempts:
                self._retry(number, position, attempts)
        self._end = position + 1

    def _finish(self, number: int, start: int, end: int) -> None:
        if start < end:
            self._journal.finish(number, start, end)
            self.ranges += 1

    def _retry(self, number: int, position: int, attempts: int) -> None:
        count = self.with_attempts.get(number, 0)
        if count >= MOST_WITH_ATTEMPTS:
            self.forgotten += 1
            return
        self.with_attempts[number] = count + 1
        start, end, before = self._retried.get(number, (position, position, attempts))
        if end != position or before != attempts:
            self._journal.requeue(number, start, end, before, 0)
            start = position
        self._retried[number] = start, position + 1, attempts

    def flush(self) -> None:
        """Have the journal say everything about the messages so far."""
        for number, (start, stop, attempts) in self._retried.items():
            self._journal.requeue(number, start, stop, attempts, 0)
        self._retried.clear()
        for number, start in self._foreign_from.items():
            self._finish(number, start, self._end)
            self._foreign_from[number] = max(start, self._end)
