"""Functions on raw bytes, compiled, and their twins in plain Python; `NSQUARK_PURE=1` asks for the twins.

The kernel knows bytes and integers: runs of commands, runs of message frames, batches and blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from .pure import Batch, Buffer
from .single_source import import_sources_only, not_compiled

PURE_ASKED_FOR = os.environ.get("NSQUARK_PURE", "") not in ("", "0")
# Why everything runs uncompiled where that was not asked for: these modules have no extension module.
NOT_COMPILED = [] if PURE_ASKED_FOR else not_compiled(os.path.join(os.path.dirname(__file__), "..", ".."))

if not PURE_ASKED_FOR and not NOT_COMPILED:
    try:
        from .fast import (
            BatchReader,
            BatchWriter,
            BlockWriter,
            Delivery,
            LargePub,
            begin_large_pub,
            command_line,
            count_column,
            crc32c,
            decode_batches,
            find_message,
            frame_ends,
            gather,
            index_frames,
            keep_freed_memory,
            lay_dpubs,
            lay_mpub,
            next_fins,
            pack_mpub,
            read_messages,
            scan_batches,
            scan_fins,
            scan_mpub,
            scan_oks,
            scan_pubs,
            scan_reqs,
            stride_column,
            timestamps,
            unfinished_command,
            with_attempts,
            write_some,
        )

        COMPILED = True
    except ImportError:
        COMPILED = False
else:
    COMPILED = False

if not COMPILED:
    from .pure import (  # type: ignore[assignment]
        BatchReader,
        BatchWriter,
        BlockWriter,
        Delivery,
        LargePub,
        begin_large_pub,
        command_line,
        count_column,
        crc32c,
        decode_batches,
        find_message,
        frame_ends,
        gather,
        index_frames,
        keep_freed_memory,
        lay_dpubs,
        lay_mpub,
        next_fins,
        pack_mpub,
        read_messages,
        scan_batches,
        scan_fins,
        scan_mpub,
        scan_oks,
        scan_pubs,
        scan_reqs,
        stride_column,
        timestamps,
        unfinished_command,
        with_attempts,
        write_some,
    )

KERNEL = "compiled" if COMPILED else "pure"
"""Which of the twins is in use, for `/info`, `/stats`, `/metrics` and the log."""


def choose_sources(path: Iterable[str]) -> None:
    """Where the kernel is pure, the modules of the package with this `__path__` run uncompiled as well.

    A package that has modules compiled from their own `.py` calls this before it imports any of them.
    """
    if not COMPILED:
        import_sources_only(path)


def in_use() -> str:
    """Which kernel runs here, and why if it is not the compiled one."""
    if COMPILED:
        return "compiled kernel"
    if PURE_ASKED_FOR:
        return "kernel in plain Python: NSQUARK_PURE is set"
    if NOT_COMPILED:
        return f"kernel in plain Python: {len(NOT_COMPILED)} modules are not compiled"
    return "kernel in plain Python: the compiled one cannot be loaded"


__all__ = [
    "COMPILED",
    "KERNEL",
    "NOT_COMPILED",
    "PURE_ASKED_FOR",
    "Batch",
    "BatchReader",
    "BatchWriter",
    "BlockWriter",
    "Buffer",
    "Delivery",
    "LargePub",
    "begin_large_pub",
    "choose_sources",
    "command_line",
    "count_column",
    "crc32c",
    "decode_batches",
    "find_message",
    "frame_ends",
    "gather",
    "in_use",
    "index_frames",
    "keep_freed_memory",
    "lay_dpubs",
    "lay_mpub",
    "next_fins",
    "pack_mpub",
    "read_messages",
    "scan_batches",
    "scan_fins",
    "scan_mpub",
    "scan_oks",
    "scan_pubs",
    "scan_reqs",
    "stride_column",
    "timestamps",
    "unfinished_command",
    "with_attempts",
    "write_some",
]
