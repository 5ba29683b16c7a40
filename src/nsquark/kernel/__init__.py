"""The compiled hot path and its pure twin; `NSQUARK_PURE=1` asks for the twin.

The kernel knows bytes and integers only: runs of commands, runs of message frames, batches of the log.
"""

import os

from .pure import Batch, Buffer

if os.environ.get("NSQUARK_PURE", "") in ("", "0"):
    try:
        from .fast import (
            BatchWriter,
            Delivery,
            count_column,
            crc32c,
            decode_frames,
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
        decode_frames,
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

__all__ = [
    "COMPILED",
    "Batch",
    "BatchWriter",
    "Buffer",
    "Delivery",
    "count_column",
    "crc32c",
    "decode_frames",
    "find_message",
    "frame_ends",
    "gather",
    "index_frames",
    "lay_dpubs",
    "lay_mpub",
    "pack_mpub",
    "read_messages",
    "scan_batches",
    "scan_fins",
    "scan_mpub",
    "scan_oks",
    "scan_pubs",
    "stride_column",
    "timestamps",
    "with_attempts",
]
