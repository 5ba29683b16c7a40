"""`/log/read` for a client on nsqd's own machine: where the batches lie, in place of the batches.

A client that wants this names the boot of its machine (`local=`), which only a process under the same running
kernel knows. nsqd then answers with the names of files, and what identifies each one. The client opens them
itself, so the permissions of the data path decide whether it can. If it cannot, it asks without `local`.

What lies in a named range of a file does not change: nsqd only appends to a segment, and deletes whole files.
If a file is deleted before the client has opened it, the client misses its name, and asks again. Another file
may have taken its name and its inode meanwhile, as when a data path was emptied. So the answer has the header
of the last batch of each range, too: with its CRC, position and time, no other log has the same one.
"""

from __future__ import annotations

import hmac
import os

from nsquark.errors import LogCorrupt
from nsquark.http import Request, Response, pack_json, v1_body
from nsquark.log import LogReader, TopicLog
from nsquark.net.machine import boot_id

CONTENT_TYPE = "application/vnd.nsquark.log-files+json"
WORTH_OPENING = 64 << 10  # fewer bytes than this are sent: to open a file takes longer


def may_be_named(request: Request, log: TopicLog, max_bytes: int) -> bool:
    """Whether the log has files, and the client has shown that it runs on this machine."""
    given = request.query.get("local", "")
    return (
        given != ""
        and hmac.compare_digest(given.encode("utf-8", "backslashreplace"), boot_id().encode())
        and max_bytes >= WORTH_OPENING
        and log.directory is not None
    )


def answer(reader: LogReader, epoch: int) -> Response | None:
    """Where the bytes of a range lie, for a thread. The range is located, and all of it is in files.

    None if they do not read as batches. The bytes are then sent as they are, for the client to judge.
    """
    files = []
    for source, start, stop in reader.files:
        status = os.fstat(source.descriptor)
        try:
            last, header = source.last_header(stop)
        except LogCorrupt:
            return None
        files.append(
            {
                "path": os.path.abspath(source.name),
                "device": status.st_dev,
                "inode": status.st_ino,
                "start": start,
                "stop": stop,
                "last": last,
                "header": header.hex(),
            }
        )
    told = {"count": reader.count, "position": reader.start, "epoch": f"{epoch:016x}", "files": files}
    return v1_body(pack_json(told).encode("utf-8", "backslashreplace"), CONTENT_TYPE)
