"""The compiled hot path and its pure twin; `NSQUARK_PURE=1` asks for the twin.

The kernel knows bytes and integers: runs of commands, runs of message frames, batches of the log; and the
short ways of a publish between a socket and the end of a log, and of messages from there to their takers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .pure import Batch, Buffer
from .pure_intake import Receipt

if TYPE_CHECKING:
    from .fast_poll import Poll

if os.environ.get("NSQUARK_PURE", "") in ("", "0"):
    try:
        from .fast import (
            BatchWriter,
            Delivery,
            count_column,
            crc32c,
            decode_batches,
            find_message,
            frame_ends,
            gather,
            index_frames,
            lay_dpubs,
            lay_mpub,
            pack_mpub,
            read_messages,
            scan_batches,
            scan_fins,
            scan_mpub,
            scan_oks,
            scan_pubs,
            stride_column,
            timestamps,
            with_attempts,
        )
        from .fast_delivery import Flight, Outlet, Taker
        from .fast_intake import Answer, AnswerQueue, Intake, Source, settle_all
        from .fast_log import Chunk, Committer, Extent, LogCursor, LogEnd, Records, Run, Tally

        COMPILED = True
    except ImportError:
        COMPILED = False
else:
    COMPILED = False

if not COMPILED:
    from .pure import (  # type: ignore[assignment]
        BatchWriter,
        Delivery,
        count_column,
        crc32c,
        decode_batches,
        find_message,
        frame_ends,
        gather,
        index_frames,
        lay_dpubs,
        lay_mpub,
        pack_mpub,
        read_messages,
        scan_batches,
        scan_fins,
        scan_mpub,
        scan_oks,
        scan_pubs,
        stride_column,
        timestamps,
        with_attempts,
    )
    from .pure_delivery import Flight, Outlet, Taker  # type: ignore[assignment]
    from .pure_intake import (  # type: ignore[assignment]
        Answer,
        AnswerQueue,
        Intake,
        Source,
        settle_all,
    )
    from .pure_log import (  # type: ignore[assignment]
        Chunk,
        Committer,
        Extent,
        LogCursor,
        LogEnd,
        Records,
        Run,
        Tally,
    )


def new_poll(shared: bytearray) -> Poll | None:
    """What reads the sockets of many connections at once, and uses `shared` for that.

    None where there is no such thing: then the event loop has to.
    """
    if not COMPILED:
        return None
    try:
        from .fast_poll import Poll
    except ImportError:  # epoll is Linux's
        return None
    return Poll(shared)


__all__ = [
    "COMPILED",
    "Answer",
    "AnswerQueue",
    "Batch",
    "BatchWriter",
    "Buffer",
    "Chunk",
    "Committer",
    "Delivery",
    "Extent",
    "Flight",
    "Intake",
    "LogCursor",
    "LogEnd",
    "Outlet",
    "Receipt",
    "Records",
    "Run",
    "Source",
    "Taker",
    "Tally",
    "count_column",
    "crc32c",
    "decode_batches",
    "find_message",
    "frame_ends",
    "gather",
    "index_frames",
    "lay_dpubs",
    "lay_mpub",
    "new_poll",
    "pack_mpub",
    "read_messages",
    "scan_batches",
    "scan_fins",
    "scan_mpub",
    "scan_oks",
    "scan_pubs",
    "settle_all",
    "stride_column",
    "timestamps",
    "with_attempts",
]
