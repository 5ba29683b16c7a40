"""A publish to a replica group until its outcome is known, and what the error of another says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nsquark.errors import GROUP_REFUSES, DpubFailed, MpubFailed, ProtocolError, PubFailed

from ..size_limits import Body

# nsqd could not store the publish: the same or another member may take it later.
NOT_STORED = (PubFailed, MpubFailed, DpubFailed)


class QueuedPublish:
    """One PUB, DPUB or MPUB. `future` gets its outcome."""

    __slots__ = ("bodies", "command", "deadline", "future", "maybe_stored", "repeats", "size")

    def __init__(
        self,
        command: Sequence[bytes],
        size: int,
        bodies: Sequence[Body] | None,
        deadline: float,
        repeats: float,
        future: asyncio.Future[bytes],
    ) -> None:
        self.command = command
        self.size = size
        self.bodies = bodies  # of an MPUB
        self.deadline = deadline
        self.repeats = repeats  # how often it may be sent again though its outcome is unknown
        self.future = future
        self.maybe_stored = False  # it was sent once, and there was no answer


def ends_what_is_behind(error: ProtocolError) -> bool:
    """Whether nsqd has stored nothing of what was sent behind a command that it answered with `error`.

    nsqd closes the connection with an error and carries out none of the commands behind it. But when a disk
    fails, that shows only when several publishes are written, and those to another topic may be stored.
    """
    return not isinstance(error, NOT_STORED) or refused_by_group(error)


def refused_by_group(error: ProtocolError) -> bool:
    """Whether a member refuses all publishes for now: it lacks copies, or another member takes over."""
    return GROUP_REFUSES.encode() in error.description
