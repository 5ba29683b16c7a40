"""What a stopped nsqd still owes: the unfinished messages of a topic, and whose they are.

The journal is read as a start of nsqd reads it (`Topic.restore`), and nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nsquark.log import ChannelState, inspect_journal, records
from nsquark.log.recovery import Survey, survey
from nsquark.log.segment import INDEX_STRIDE, WINDOW, segment_name, segments_in

from .dump import StoredMessage, messages_between

OWN_QUEUE = ""  # in place of a channel's name: messages that are not passed on to the channels yet


class Owed(NamedTuple):
    message: StoredMessage
    attempts: dict[str, int]  # by channel, or OWN_QUEUE: deliveries so far
    due_ns: int  # the latest due time of its channels; 0: it was not deferred


class UnfinishedMessages:
    """The unfinished messages of a topic's directory, in the order of the log.

    `channels` are the names of its channels. `lost` counts messages that are damaged in the log: no channel
    gets them any more. It is known when all messages were read.
    """

    def __init__(self, directory: Path, named: Sequence[str], paused: bool) -> None:
        """`named` are the channels that nsqd.dat knows. Raises OSError and UnknownVersion."""
        self.lost = 0
        self._directory = directory
        self._records = records(directory)
        terms = dict(segments_in(os.listdir(directory)))
        self._terms, self._bases = terms, list(terms)
        self._newest = self._survey(self._bases[-1], None) if self._bases else None
        first, self._end = (self._bases[0], self._newest.end) if self._newest is not None else (0, 0)
        state = inspect_journal(directory).state
        line = first if state.pumped is None else max(first, min(state.pumped, self._end))
        self.channels = list(dict.fromkeys([*state.channels, *named]))
        self._line = line if paused or not self.channels else self._end
        self._states = {
            name: state.channels.get(name) or ChannelState(0, min(line, self._line)) for name in self.channels
        }
        for each in self._states.values():
            each.settle(self._end)

    def __iter__(self) -> Iterator[Owed]:
        """Raises OSError, UnknownVersion and LogCorrupt."""
        low = self._low()
        for base, following in zip(self._bases, [*self._bases[1:], None], strict=True):
            if following is not None and following <= low:
                continue
            found = self._newest if following is None else self._survey(base, following)
            assert found is not None
            self.lost += sum((each.end or 0) - (each.first or 0) for each in found.damages)
            if following is not None:
                self.lost += following - found.end
            path = self._path(base)
            with open(path, "rb", buffering=0) as file:
                for piece in found.pieces:
                    for message in messages_between(file.fileno(), str(path), piece.start, piece.stop, low):
                        if (owed := self._owed(message)) is not None:
                            yield owed

    def _path(self, base: int) -> Path:
        return self._directory / segment_name(base, self._terms[base])

    def _survey(self, base: int, following: int | None) -> Survey:
        """What is whole of a segment."""
        path = self._path(base)
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            known = [each.damage for each in self._records if each.file == path.name]
            return survey(file.fileno(), str(path), 0, size, base, following, WINDOW, INDEX_STRIDE, known)

    def _low(self) -> int:
        """Everything before this position is finished."""
        low = self._line
        for each in self._states.values():
            low = min(low, each.position, min(each.waiting, default=each.position))
        return low

    def _owed(self, message: StoredMessage) -> Owed | None:
        position, due = message.position, message.due_ns
        attempts: dict[str, int] = {}
        fresh = 0
        for name, state in self._states.items():
            waiting = state.waiting.get(position)
            if waiting is not None:
                attempts[name] = waiting[0]
                due = max(due, waiting[1])
            elif position >= state.position and position not in state.passed:
                attempts[name] = 0
                fresh += 1
        if position >= self._line and fresh == len(self._states):
            return Owed(message, {OWN_QUEUE: 0}, due)
        return Owed(message, attempts, due) if attempts else None
