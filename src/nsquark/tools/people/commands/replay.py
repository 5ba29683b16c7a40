"""`nsquark replay`: a part of a topic's log, published again at a rate. It goes on where it was ended."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from typing import Any

import click

from nsquark.client import Producer
from nsquark.errors import ConnectionLost

from ...log_place import EARLIEST, LATEST, Place
from ...log_reader import LogReader, TopicNotFound
from ..cluster.daemons import Daemon
from ..cluster.nsqds import Cluster
from ..failures import Failure, not_answering, on_one_line, say
from ..flags import quantities
from ..flags.options import PLACE, TOPIC, Command, connecting, json_option
from ..flags.settings import Settings
from ..messages.publishing import Publishing
from ..output import print_json, progress
from ..running import run

_SAVE_EVERY = 0.5  # seconds


@click.command("replay", cls=Command)
@click.argument("topic", type=TOPIC)
@click.option("--into", type=TOPIC, required=True, metavar="TOPIC", help="The topic to publish to.")
@click.option("--from", "start", type=PLACE, default="earliest", show_default=True, help="The first message.")
@click.option("--to", "end", type=PLACE, default="latest", show_default=True, help="Behind the last message.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="At most so many messages a second.")
@click.option("--into-nsqd-tcp", metavar="ADDRESS", help="The nsqd to publish to, if it is another one.")
@click.option("--checkpoint", type=click.Path(dir_okay=False), help="File to go on from, and to go on in.")
@json_option
@connecting
def command(
    topic: str,
    into: str,
    start: Place,
    end: Place,
    rate: float | None,
    into_nsqd_tcp: str | None,
    checkpoint: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Publish messages of a TOPIC's log again, in their order.

    No channel of TOPIC notices. Places are earliest, latest, how long ago (10m, 2d), a position, or a time
    (2026-11-01T08:00); `latest` is the end of the log at the start. Bodies are published as they are, with
    new ids and times, deferred ones without their delay.

    When it is interrupted it says how to go on. With --checkpoint the same command goes on by itself, also
    after a kill; then the messages of the last moment may come twice.
    """
    replay = Replay(topic, into, rate or 0.0, checkpoint)
    run(replay.run(Cluster(settings), start, end, into_nsqd_tcp), replay.interrupted)
    if as_json:
        print_json(replay.as_json())
    else:
        say(replay.so_far())


class Replay:
    """How far a replay has come: [`first`, `end`) is all of it, everything before `position` is stored."""

    def __init__(self, topic: str, into: str, rate: float, checkpoint: str | None) -> None:
        self._topic = topic
        self._into = into
        self._rate = rate
        self._checkpoint = checkpoint
        self._reader: LogReader | None = None
        self._publishing: Publishing | None = None
        self._first = self._end = 0
        self._handed: deque[tuple[int, int]] = deque()  # the first position and the count of each run
        self._before = 0  # messages of runs that are stored as a whole
        self._reached = 0  # the position behind them
        self._lost = 0
        self._saved_at = 0.0

    # ---- what can be said of it

    @property
    def stored(self) -> int:
        return self._publishing.stored if self._publishing is not None else 0

    @property
    def position(self) -> int:
        while self._handed and self._before + self._handed[0][1] <= self.stored:
            position, count = self._handed.popleft()
            self._before += count
            self._reached = position + count
        if self._handed and self.stored > self._before:
            return self._handed[0][0] + self.stored - self._before
        return self._reached

    def so_far(self) -> str:
        gone = f"; {self._lost:,} were gone" if self._lost else ""
        return (
            f"replayed {quantities.messages(self.stored)} of topic {self._topic!r} into {self._into!r},"
            f" up to position {self.position} of {self._end}{gone}"
        )

    def interrupted(self) -> str:
        if self._reader is None or self._publishing is None:
            return "interrupted: nothing was replayed"
        self._save(at_once=True)
        again = (
            "the same command goes on"
            if self._checkpoint
            else f"go on with --from {self.position} --to {self._end}"
        )
        return f"interrupted: {self.so_far()}; {again}"

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "into": self._into,
            "replayed": self.stored,
            "gone": self._lost,
            "position": self.position,
            "end": self._end,
        }

    # ---- doing it

    async def run(self, cluster: Cluster, start: Place, end: Place, into_nsqd_tcp: str | None) -> None:
        nsqd = await self._source(cluster)
        settings = cluster.settings
        reader = nsqd.log_reader(self._topic)
        try:
            await self._find(reader, start, end)
            address = into_nsqd_tcp or await nsqd.tcp_address()
        except ConnectionLost as error:
            raise not_answering(nsqd.address, error) from None
        producer = Producer(
            address, config=settings.client_config(max_msg_size=1 << 28, max_body_size=1 << 29)
        )
        try:
            try:
                await producer.ping(settings.timeout)
            except (OSError, TimeoutError) as error:
                raise not_answering(address, error) from None
            self._reader = reader
            self._publishing = Publishing(producer, self._into, settings.timeout, rate=self._rate)
            with progress(f"{self._topic} → {self._into}", self._end - self._first) as update:
                await self._publish(reader, update)
        except ConnectionLost as error:
            raise Failure(f"{self.interrupted()} ({on_one_line(error)})") from None
        except Failure as error:
            raise Failure(f"{error}; {self.interrupted()}" if self._publishing else str(error)) from None
        finally:
            await producer.close(0.3)

    async def _source(self, cluster: Cluster) -> Daemon:
        nsqds = await cluster.nsqds(self._topic)
        found = await cluster.where_there(
            nsqds, lambda nsqd: nsqd.get("/log/range", topic=self._topic), f"topic {self._topic!r}"
        )
        if len(found) > 1:
            names = ", ".join(nsqd.address for nsqd, _ in found)
            raise Failure(
                f"topic {self._topic!r} is at {names}: replay one after the other, with --nsqd-http"
            )
        return found[0][0]

    async def _find(self, reader: LogReader, start: Place, end: Place) -> None:
        try:
            bounds = await reader.range()
            saved = self._load()
            if saved is not None:
                if saved["epoch"] != bounds.epoch:
                    raise Failure(
                        f"{self._checkpoint}: topic {self._topic!r} was deleted and created again since"
                    )
                self._first, self._end = saved["position"], saved["end"]
            else:
                self._first = bounds.first if start == EARLIEST else await reader.find(start)
                self._end = min(bounds.next, bounds.next if end == LATEST else await reader.find(end))
        except TopicNotFound as error:
            raise Failure(str(error)) from None
        self._reached = self._first

    async def _publish(self, reader: LogReader, update: Any) -> None:
        publishing = self._publishing
        assert publishing is not None
        self._save(at_once=True)
        # In pieces of a tenth of a second, so that the position follows a slow rate.
        at_once = max(1, min(100, int(self._rate / 10))) if self._rate else 100
        async for messages in reader.runs(self._first, self._end, lost=self._pass_over):
            for first in range(0, len(messages), at_once):
                piece = messages[first : first + at_once]
                self._handed.append((piece[0].position, len(piece)))
                await publishing.publish([message.body for message in piece])
                self._save()
                update(self.position - self._first, f"{publishing.stored:,}")
        await publishing.drain()
        self._reached = max(self.position, self._end)
        self._save(at_once=True)

    def _pass_over(self, start: int, end: int) -> None:
        end = min(end, self._end)
        self._lost += end - start
        say(f"the messages at positions {start} to {end - 1} are gone from the log")

    # ---- the checkpoint

    def _load(self) -> dict[str, Any] | None:
        if self._checkpoint is None:
            return None
        try:
            with open(self._checkpoint, encoding="utf-8") as file:
                saved = json.load(file)
            numbers = (saved["position"], saved["end"])
            if not all(type(each) is int and each >= 0 for each in numbers) or not isinstance(
                saved["epoch"], str
            ):
                raise ValueError
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Failure(f"checkpoint {self._checkpoint}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise Failure(f"{self._checkpoint} is no checkpoint of a replay") from None
        if (saved.get("topic"), saved.get("into")) != (self._topic, self._into):
            raise Failure(
                f"{self._checkpoint} is of a replay of {saved.get('topic')!r} into {saved.get('into')!r}"
            )
        return dict(saved)

    def _save(self, at_once: bool = False) -> None:
        """Write down how far it came, whole or not at all. Raises Failure."""
        now = time.monotonic()
        if self._checkpoint is None or (not at_once and now - self._saved_at < _SAVE_EVERY):
            return
        self._saved_at = now
        assert self._reader is not None
        document = {
            "topic": self._topic,
            "into": self._into,
            "nsqd": self._reader.address,
            "epoch": self._reader.epoch,
            "position": self.position,
            "end": self._end,
        }
        fresh = f"{self._checkpoint}.new"
        try:
            with open(fresh, "w", encoding="utf-8") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._checkpoint)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise Failure(f"checkpoint {self._checkpoint}: {error.strerror}") from None
