"""What nsqd did to its data directory, call by call, as `shim.c` has written it down."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#   0         4         8        16        24        32         40
#   | u32     | u32     | u64    | u64     | u64     | i64      | ...
#   | length  | length  | kind   | time ns | inode   | number   | path, data
#   | of path | of data |        |         |         |          |
_HEAD = struct.Struct("=IIQQQq")

(
    CREATE,
    TRUNCATE,
    WRITE,
    RENAME,
    LINK,
    UNLINK,
    MKDIR,
    RMDIR,
    SYNC_BEGINS,
    SYNC_ENDS,
    SYNC_FAILS,
    SEND,
) = range(1, 13)


class Call(NamedTuple):
    """One call that succeeded.

    `number` is the offset of a write, the size of a truncate, which fsync begins or ends, or how many bytes
    were sent so far on a connection. The ports of that are in `inode`: nsqd's in the upper bits, the client's
    in the lower 16. `data` is what was written, or the new path of a rename or a link.
    """

    kind: int
    time: int  # ns, as time.monotonic_ns() has it
    inode: int
    number: int
    path: str
    data: bytes

    @property
    def to(self) -> str:
        return self.data.decode()


def read_trace(path: Path) -> Iterator[Call]:
    """Every call of a trace. The last record may be cut short, if the process was killed."""
    with open(path, "rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            path_length, data_length, kind, time, inode, number = _HEAD.unpack(head)
            name, data = file.read(path_length), file.read(data_length)
            if len(data) < data_length:
                return
            yield Call(kind, time, inode, number, name.decode(), data)
