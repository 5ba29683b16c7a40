"""How long a message may be: what the config says, or else what nsqd has said in its answer to IDENTIFY.

A message that is longer than nsqd takes is refused before it is sent, because nsqd would close the connection
over it. nsquark's nsqd tells its limits. Other nsqds do not; they decide for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsquark.errors import UsageError
from nsquark.wire.identify import IdentifyResponse

from ..config import DEFAULT_MAX_BODY_SIZE, Config

Body = bytes | bytearray | memoryview
LARGEST = 1 << 30  # no nsqd takes more than a frame can say


class SizeLimits:
    """The limits of one nsqd. `unchecked` is the length up to which a whole command needs no check."""

    __slots__ = ("max_body_size", "max_msg_size", "unchecked")

    def __init__(self, config: Config, told: IdentifyResponse) -> None:
        self.max_msg_size = _lower(config.max_msg_size, told.max_msg_size)
        self.max_body_size = _lower(config.max_body_size, told.max_body_size)
        self.unchecked = min(self.max_msg_size, self.max_body_size)

    def check(self, address: str, command: Sequence[bytes], bodies: Sequence[Body] | None) -> None:
        """Raise UsageError if nsqd would refuse a PUB, whose body comes last, or an MPUB of `bodies`."""
        longest = max(map(len, bodies if bodies is not None else command[-1:]))
        if longest > self.max_msg_size:
            raise UsageError(f"a body of {longest} bytes; {address} takes 1 to {self.max_msg_size}")
        if bodies is not None and (size := 4 + sum(4 + len(body) for body in bodies)) > self.max_body_size:
            raise UsageError(f"{size} bytes at once; an MPUB to {address} takes {self.max_body_size}")


def _lower(configured: int | None, told: int) -> int:
    return min(configured or LARGEST, told if told > 0 else LARGEST)


def split_size(config: Config, limits: Sequence[SizeLimits]) -> int:
    """The size of the MPUBs that a long list of messages is split into: each of the nsqds takes them."""
    known = [each.max_body_size for each in limits if each.max_body_size < LARGEST]
    return min(known, default=config.max_body_size or DEFAULT_MAX_BODY_SIZE)
