"""`/log/read` for a client that reads the archive itself: which object has the batches, in place of these.

A client that wants this says `archive=1`. Where the position is only in the archive, nsqd names the object
and the bytes of it that hold the messages. The client opens it with credentials of its own. If it cannot,
it asks without `archive`, and nsqd fetches the segment.

What an object holds does not change: its name tells its positions and its CRC.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from nsquark.http import Response, pack_json, v1_body
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.topic import Topic

CONTENT_TYPE = "application/vnd.nsquark.log-archive+json"


def answer(broker: Broker, topic: Topic, start: int, end: int) -> Response | None:
    """Where the messages from `start` to at most `end` are; None if they are here."""
    if broker.archive is None or start >= end:
        return None
    segment = topic.log.segment_at(start)
    if segment is None or segment.store is None or not segment.base <= start < segment.end:
        return None
    archived = segment.archived
    assert archived is not None
    stop = min(end, archived.end)
    positions = [position for position, _ in archived.marks]
    first = archived.marks[bisect_right(positions, start) - 1][1]
    behind = bisect_left(positions, stop)
    last = archived.marks[behind][1] if behind < len(positions) else archived.stop
    told = {
        "count": stop - start,
        "position": start,
        "epoch": f"{topic.epoch:016x}",
        "url": broker.archive.store.url,
        "object": archived.key,
        "size": archived.size,
        "start": first - archived.start,
        "stop": last - archived.start,
    }
    return v1_body(pack_json(told).encode("utf-8", "backslashreplace"), CONTENT_TYPE)
