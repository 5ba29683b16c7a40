"""An application that stages batches as a Spark driver and its tasks do, and replays what has no answer."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable

from tests.daemon import Closed

from . import history as h
from .record import ORDERS, SIZES, SLOW, App, Record, Row, body_of, mpub_body

Post = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]  # raises Closed when nsqd is gone


class Stager:
    def __init__(
        self, app: App, record: Record, rng: random.Random, post: Post, unexpected: Callable[[str], None]
    ) -> None:
        self._app = app
        self._record = record
        self._rng = rng
        self._post = post
        self._unexpected = unexpected

    async def run(self) -> None:
        """Stage and publish one batch after the other until nsqd is gone."""
        app, rng = self._app, self._rng
        try:
            while True:
                if not app.rows:
                    self._next_batch()
                wanted = []
                for partition, rows in enumerate(app.rows):
                    if rng.random() < 0.2:  # one that fails half-way, or is too slow
                        await self._put(partition, f"lost{rng.randrange(1 << 60):x}", rows)
                    attempt = f"a{rng.randrange(1 << 60):x}"
                    await self._put(partition, attempt, rows)
                    wanted.append({"partition": partition, "attempt": attempt, "messages": len(rows)})
                await self._publish(wanted)
                if rng.random() < 0.4:  # its answer was lost, as far as the driver knows
                    self._record.counts["staged batches published again"] += 1
                    await self._publish(wanted)
                app.batch += 1
                app.rows, app.operations = [], []
                await asyncio.sleep(rng.uniform(0.0, 0.02))
        except Closed:
            pass

    def _next_batch(self) -> None:
        app, rng = self._app, self._rng
        for partition in range(rng.choice((1, 2, 3))):
            rows = []
            topic, defer = ORDERS, 0
            for number in range(rng.choice((0, 1, 10, 30))):
                if number % 8 == 0:
                    topic, defer = rng.choice((ORDERS, SLOW)), rng.choice((0, 0, 0, 40))
                key = f"{app.name}-{app.batch}-{partition}-{number}"
                rows.append((topic, defer, key, body_of(key, rng.choice(SIZES))))
            app.rows.append(rows)

    async def _put(self, partition: int, attempt: str, rows: list[Row]) -> None:
        app = self._app
        seq = 0
        while rows:
            topic, defer = rows[0][:2]
            put = [row for row in rows[:8] if row[:2] == (topic, defer)]
            rows = rows[len(put) :]
            path = (
                f"/staged/put?app={app.name}&batch={app.batch}&partition={partition}"
                f"&attempt={attempt}&seq={seq}&topic={topic}&defer={defer}"
            )
            status, answer = await self._post(path, mpub_body([body for _, _, _, body in put]))
            self._record.counts["staged puts"] += 1
            if status != 200:
                self._unexpected(f"{path} was answered {status} {answer[:200]!r}")
                raise Closed
            if json.loads(answer)["known"]:
                return
            seq += 1

    async def _publish(self, wanted: list[dict[str, object]]) -> None:
        app = self._app
        topics: dict[tuple[str, int], list[str]] = {}
        for rows in app.rows:
            for topic, defer, key, _ in rows:
                topics.setdefault((topic, defer), []).append(key)
        if not app.operations:
            for (topic, defer), keys in topics.items():
                app.operations.append(self._record.operation())
                self._record.add(
                    h.Publishing(
                        time.time(),
                        app.operations[-1],
                        topic,
                        tuple(keys),
                        defer / 1000,
                        f"{app.name}-{app.batch}",
                    )
                )
        path = f"/staged/publish?app={app.name}&batch={app.batch}"
        body = json.dumps({"partitions": wanted}).encode()
        status, answer = await self._post(path, body)
        if status == 404:
            # Its stages are gone, so it was published before: that is how the next answer must put it.
            status, answer = await self._post(path, body)
        if status != 200:
            self._unexpected(f"{path} was answered {status} {answer[:200]!r}")
            raise Closed
        self._record.counts["staged batches answered"] += 1
        for operation in app.operations:
            self._record.add(h.Published(time.time(), operation))
