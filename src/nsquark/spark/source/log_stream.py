"""A streaming query over logs: offsets, acknowledgements, partitions. Lives in the query's own process.

What Spark does and what follows from it:

- `commit` comes a batch late and for the last batch never, so `latestOffset(start)` acknowledges `start`,
  on the request that asks for the tail: Spark asks for the next offset when the batch before is in its log.
- `initialOffset` is asked again if the first batch is replayed. What it said is the channel's cursor, which
  stays until that batch is acknowledged.
- An exception from any of these methods fails the query. An nsqd that is away therefore is no error: it stays
  where it was until it is back. A batch that must be replayed and needs it is one, after a few tries.
- A log that is found on the way is put down first, with its cursor and no rows; the next batch reads it. So a
  batch has rows only between positions that are in Spark's log, and is the same in every replay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from ..errors import DataLost, OptionError, Refused, Unreachable
from ..http import fetch
from ..options import EARLIEST, Bound, StreamOptions
from .admission import Least, admit
from .channel_lease import Lease
from .directory import Directory, Log, Node, ask_log
from .offsets import Key, Place, Places, Span, between, pack, parse
from .partitions import LogPartition, cut
from .span_reader import data_lost

logger = logging.getLogger(__name__)

_AT_ONCE = 16
_FROM = {-2: "earliest", -1: "latest"}


class LogStream:
    def __init__(self, options: StreamOptions, directory: Directory) -> None:
        self._options = options
        self._access = options.addresses.access
        self._directory = directory
        self._lease = Lease(options.channel, self._access)
        self._least = Least(options)
        self._where: dict[Key, Node] = {}
        self._away: set[Node] = set()
        self._latest: Places | None = None
        self._target: Places | None = None  # of Trigger.AvailableNow
        self._pool = ThreadPoolExecutor(_AT_ONCE, "nsqd")

    # ---- what Spark asks for

    def initial(self) -> dict[str, Any]:
        logs = self._directory.logs()
        self._check_names(logs)
        return pack({log.key: self._begin(log, self._options.starting) for log in logs})

    def prepare_available_now(self) -> None:
        self._target = {}
        for log in self._directory.logs():
            self._where[log.key] = log.node
            self._target[log.key] = Place(log.epoch, log.node.name, log.next)

    def latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._lease.check()
        since = parse(start)
        logs = self._tails(since)
        self._latest = {
            **since,
            **{key: Place(log.epoch, log.node.name, log.next) for key, log in logs.items()},
        }
        places, counts = dict(since), {}
        for key, log in logs.items():
            place = since.get(key)
            if place is None or not self._goes_on(log, place):
                # a restart under AvailableNow must come to its end, whatever turns up meanwhile
                if self._target is None or key in self._target:
                    try:
                        places[key] = self._begin(log, Bound(EARLIEST))
                    except (Unreachable, Refused) as error:
                        logger.warning("%s; it is tried again", error)
                continue
            counts[key] = max(0, self._end(log) - place.position)
        if self._target is None and places == since and self._least.waits(sum(counts.values())):
            return start
        for key, count in admit(counts, logs, limit).items():
            if count:
                log = logs[key]
                places[key] = Place(log.epoch, log.node.name, since[key].position + count)
        return pack(places)

    def report_latest(self) -> dict[str, Any] | None:
        return None if self._latest is None else pack(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        since, until = parse(start), parse(end)
        for key, place in until.items():
            if key not in since or since[key].epoch != place.epoch:
                # the query's first offset is in no log of Spark's: what it was is what the channel says
                log = self._find(key, place, channel=self._options.channel)
                if log.epoch == place.epoch and log.cursor is not None:
                    since[key] = place._replace(position=min(log.cursor, place.position))
        spans = cut(between(since, until), self._options.min_partitions, self._options.max_records)
        for span in {(span.topic, span.id): span for span in spans}.values():
            if (span.topic, span.id) not in self._where:
                self._find((span.topic, span.id), Place(span.epoch, span.nsqd, span.end))
        return [LogPartition(span, self._where[span.topic, span.id].url) for span in spans]

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.eager:
            return
        for key, place in parse(end).items():
            node = self._where.get(key)
            if node is not None:
                self._quietly(lambda key=key, node=node, place=place: self._commit(key, node, place))  # type: ignore[misc]

    def stop(self) -> None:
        self._lease.end()

    # ---- logs that begin

    def _check_names(self, logs: list[Log]) -> None:
        for topic, nsqds in (self._options.starting.positions or {}).items():
            known = {name for log in logs if log.topic == topic for name in (log.id, log.node.name)}
            for nsqd in nsqds:
                if nsqd not in known:
                    raise OptionError("startingOffsets", f"topic {topic!r} is not at nsqd {nsqd!r}")

    def _begin(self, log: Log, bound: Bound) -> Place:
        """The channel's cursor, which is put there if it is new: once said, it holds."""
        self._lease.hold(log.topic, log.node)
        given = (bound.positions or {}).get(log.topic, {})
        position = given.get(log.id, given.get(log.node.name))
        query: dict[str, object] = {"topic": log.topic, "channel": self._options.channel, "epoch": log.epoch}
        if bound.time_ms is not None:
            query["timestamp_ms"] = bound.time_ms
        else:
            query["from"] = bound.word if position is None else _FROM.get(position, position)
        try:
            told = fetch(log.node.url, self._access, "/channel/create", query, "POST")
        except Refused as error:
            if error.message not in ("POSITION_GONE", "POSITION_NOT_REACHED") or position is None:
                raise
            lost = data_lost(
                Span(log.topic, log.id, log.node.name, log.epoch, position, position), error.details
            )
            if self._options.fetching.fail_on_data_loss:
                raise DataLost(f"option 'startingOffsets': {lost}") from None
            logger.warning("%s", lost)
            return self._begin(log, Bound(EARLIEST))
        self._where[log.key] = log.node
        return Place(log.epoch, log.node.name, int(told["position"]))

    # ---- logs that go on

    def _goes_on(self, log: Log, place: Place) -> bool:
        """Whether the log is still the one in which the query has a place. Raises DataLost."""
        bounds: dict[str, object] = {"epoch": log.epoch, "first": log.first, "next": log.next}
        if log.epoch == place.epoch and log.first <= place.position <= log.next:
            return True
        lost = data_lost(
            Span(log.topic, log.id, place.nsqd, place.epoch, place.position, place.position), bounds
        )
        if self._options.fetching.fail_on_data_loss:
            raise lost
        logger.warning("%s", lost)
        return log.epoch == place.epoch and place.position < log.first

    def _end(self, log: Log) -> int:
        if self._target is None:
            return log.next
        target = self._target.get(log.key)
        return target.position if target is not None and target.epoch == log.epoch else 0

    # ---- asking nsqds

    def _tails(self, since: Places) -> dict[Key, Log]:
        """What every nsqd that is there says, with `since` acknowledged; waits a little for news."""
        if self._directory.due or not self._where:
            self._look_around()
        wait = self._options.poll_wait if self._target is None else 0.0
        asked = dict(self._where)
        if len(asked) == 1:
            return self._ask_all(asked, since, True, wait)
        logs = self._ask_all(asked, since, True, 0.0)
        if wait and logs and not any(self._is_news(log, since) for log in logs.values()):
            there = {key: node for key, node in asked.items() if key in logs}
            logs |= self._ask_all(there, since, False, wait)
        return logs

    @staticmethod
    def _is_news(log: Log, since: Places) -> bool:
        place = since.get(log.key)
        return place is None or place.epoch != log.epoch or place.position != log.next

    def _ask_all(
        self, asked: dict[Key, Node], since: Places, acknowledge: bool, wait: float
    ) -> dict[Key, Log]:
        """Ask them at the same time; once one has news, those that are still waiting are not waited for."""
        work: Callable[[Key, Node], Log | None] = lambda key, node: self._ask(  # noqa: E731
            key, node, since.get(key), acknowledge, wait
        )
        if len(asked) == 1:
            ((key, node),) = asked.items()
            log = work(key, node)
            return {} if log is None else {log.key: log}
        logs: dict[Key, Log] = {}
        futures = [self._pool.submit(work, key, node) for key, node in asked.items()]
        for future in as_completed(futures):
            log = future.result()
            if log is not None:
                logs[log.key] = log
                if wait and self._is_news(log, since):
                    break
        return logs

    def _ask(self, key: Key, node: Node, place: Place | None, acknowledge: bool, wait: float) -> Log | None:
        """None if it is not there now."""
        try:
            log = self._ask_there(key, node, place, acknowledge, wait)
        except (Unreachable, Refused) as error:
            if isinstance(error, Refused) and error.status not in (404, 500, 503):
                raise
            if node not in self._away:
                self._away.add(node)
                logger.warning("nsqd %s, topic %s: %s; it stays where it was", node.name, key[0], error)
            return None
        self._away.discard(node)
        if log.id != key[1]:  # another nsqd has its address now
            self._where.pop(key, None)
        self._where[log.key] = node
        return log if log.id == key[1] else None

    def _ask_there(self, key: Key, node: Node, place: Place | None, acknowledge: bool, wait: float) -> Log:
        query: dict[str, Any] = {}
        if place is not None:
            query["from"] = place.position
            if acknowledge:
                self._lease.hold(key[0], node)
                query["epoch"] = place.epoch
                if self._options.eager:
                    query |= {"channel": self._options.channel, "commit": place.position}
        try:
            return ask_log(node, self._access, key[0], wait, **query)
        except Refused as error:
            if error.message == "CHANNEL_NOT_FOUND" and place is not None:
                self._restore_channel(key, node, place)
            elif error.message not in ("EPOCH_CHANGED", "POSITION_NOT_REACHED"):
                raise
        return ask_log(node, self._access, key[0])

    def _restore_channel(self, key: Key, node: Node, place: Place) -> None:
        """Somebody has deleted the channel: the query goes on where it was, if that is still there."""
        logger.warning("nsqd %s: channel %s of topic %s is new", node.name, self._options.channel, key[0])
        query = {
            "topic": key[0],
            "channel": self._options.channel,
            "from": place.position,
            "epoch": place.epoch,
        }
        self._quietly(lambda: fetch(node.url, self._access, "/channel/create", query, "POST"))

    def _look_around(self) -> None:
        """Find nsqds and topics that are new, and those that are elsewhere now."""
        try:
            found = self._directory.find()
        except Unreachable as error:
            logger.warning("%s", error)
            return
        known = {(key[0], node) for key, node in self._where.items()}
        pairs = [
            (topic, node) for topic, nodes in found.items() for node in nodes if (topic, node) not in known
        ]
        answers = self._directory.every(lambda pair: ask_log(pair[1], self._access, pair[0]), pairs)
        for log in self._directory.present(answers):
            self._where[log.key] = log.node

    def _find(self, key: Key, place: Place, channel: str = "") -> Log:
        """A log that a batch needs. Raises Unreachable if it cannot be found now."""
        fetching = self._options.fetching
        query: dict[str, Any] = {"channel": channel} if channel else {}
        for tries in range(fetching.retries + 1):
            if tries:
                time.sleep(fetching.retry_interval * 2 ** (tries - 1))
            if key not in self._where:
                self._look_around()
            node = self._where.get(key)
            if node is None:
                continue
            try:
                return ask_log(node, self._access, key[0], **query)
            except Unreachable:
                self._where.pop(key)
            except Refused as error:
                if error.status != 404:
                    raise
                self._where.pop(key)
        raise Unreachable(
            f"topic {key[0]!r}: the batch needs nsqd {place.nsqd} ({key[1]}), which cannot be reached"
        )

    def _commit(self, key: Key, node: Node, place: Place) -> None:
        query = {
            "topic": key[0],
            "channel": self._options.channel,
            "to": place.position,
            "epoch": place.epoch,
        }
        fetch(node.url, self._access, "/channel/commit", query, "POST")

    @staticmethod
    def _quietly(work: Callable[[], object]) -> None:
        try:
            work()
        except (Unreachable, Refused) as error:
            logger.warning("%s", error)
