"""`/log/read?archive=1`: the object that has the messages, in place of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.log.contents import body_of, split_batches
from tests.nsqd.archive.archived import ArchivingNsqd, bodies

COUNT = 200


async def test_the_part_of_an_object_has_the_messages_that_are_asked_for(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        for number in range(COUNT):  # a batch each
            await nsqd.mpub("t", bodies(1, number))
        await nsqd.post("/channel/empty?topic=t&channel=c")
        await nsqd.emptied()
        log = await nsqd.range()

        async def named(start: int, end: int) -> Any:
            path = f"/log/read?topic=t&index=0&archive=1&from={start}&to={end}"
            status, answer = await nsqd.http("GET", path)
            assert status == 200
            return json.loads(answer)

        position = 0
        while position < log["local_first"]:
            for end in (position + 1, position + 20, COUNT):
                told = await named(position, end)
                assert (told["position"], told["epoch"]) == (position, log["epoch"])
                assert told["url"] == f"file://{nsqd.store}"
                data = (nsqd.store / told["object"]).read_bytes()
                assert len(data) == told["size"]
                batches = split_batches(data[told["start"] : told["stop"]])
                found = [body_of(frame) for batch in batches for frame in batch.frames]
                assert 1 <= told["count"] <= end - position
                assert set(bodies(told["count"], position)) <= set(found)
                assert len(found) <= told["count"] + 2 * 4  # of two marks' distance
            position += told["count"] - 3 if told["count"] > 3 else told["count"]
        status, answer = await nsqd.http(
            "GET", f"/log/read?topic=t&index=0&archive=1&from={log['local_first']}"
        )
        assert (status, answer[:4]) == (200, b"NQR1")
        assert (await nsqd.http("GET", "/log/read?topic=t&from=0&archive=1"))[1][:4] == b"NQR1"
        assert (await nsqd.http("GET", "/log/read?topic=t&index=0&archive=2"))[0] == 400
