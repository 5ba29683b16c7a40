"""The channel of a streaming query at all nsqds that have one of its logs.

QueryChannel knows at which nsqd each log is now. It creates the channel and holds its lease, asks the nsqds
for the ends of their logs, and acknowledges what Spark has done. It decides nothing about offsets: that is
LogStream's part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from ..errors import RequestRefused, Unreachable
from ..http import fetch_json
from ..parallel import MAX_THREADS
from .bounds import EARLIEST
from .channel_lease import ChannelLease
from .directory import Directory, Node
from .logs import (
    LogKey,
    LogRange,
    ask_log_range,
    present,
    reading_through,
    try_log_ranges,
    warn_of_gone_beginning,
)
from .offsets import LogPosition, Offset
from .options import StreamOptions

logger = logging.getLogger(__name__)


class QueryChannel:
    def __init__(self, options: StreamOptions, directory: Directory) -> None:
        self._options = options
        self._name = options.channel
        self._access = options.addresses.access
        self._directory = directory
        self._lease = ChannelLease(options.channel, self._access)
        self._nodes: dict[LogKey, Node] = {}  # where each log is now
        self._away: set[Node] = set()  # the nsqds whose absence was logged
        self._pool = ThreadPoolExecutor(MAX_THREADS, "nsqd")

    def check_lease(self) -> None:
        """Raise ChannelInUse if another query has taken the channel."""
        self._lease.check()

    def end_lease(self) -> None:
        self._lease.end()

    # ---- creating and committing

    def create(self, log: LogRange, **begin: object) -> LogPosition:
        """Hold the lease, and create the channel at the position that `begin` says.

        Returns the channel's cursor. A channel that exists keeps its cursor, whatever `begin` says.
        Raises ChannelInUse, Unreachable, RequestRefused.
        """
        self._lease.hold(log.topic, log.node)
        query = {"topic": log.topic, "channel": self._name, "epoch": log.epoch, **begin}
        created = fetch_json(log.node.url, self._access, "/channel/create", query, "POST")
        self.note(log)
        if created.get("created"):
            self._warn_of_gone_beginning(log, begin)
        return LogPosition(
            log.epoch, log.node.name, int(created["position"]), self._name, int(created.get("moves", 0))
        )

    @staticmethod
    def _warn_of_gone_beginning(log: LogRange, begin: dict[str, object]) -> None:
        if begin.get("from") == EARLIEST:
            warn_of_gone_beginning(log)

    def commit(self, offset: Offset) -> None:
        """Move the cursors to an offset. A fault is logged: the next commit makes up for it."""
        for key, place in offset.items():
            node = self._nodes.get(key)
            if node is not None:
                self._log_failure(lambda key=key, node=node, place=place: self._commit(key, node, place))  # type: ignore[misc]

    def _commit(self, key: LogKey, node: Node, place: LogPosition) -> None:
        query = {"topic": key[0], "channel": self._name, "to": place.position, "epoch": place.epoch}
        if place.channel == self._name:
            query["moves"] = place.moves
        try:
            fetch_json(node.url, self._access, "/channel/commit", query, "POST")
        except RequestRefused as error:
            if error.message != "CHANNEL_MOVED":  # the next offset follows the channel
                raise

    # ---- where the logs are

    def note(self, log: LogRange) -> None:
        """Remember where a log is."""
        self._nodes[log.key] = log.node

    def _look_for_logs(self) -> None:
        """Find logs that are new, and logs whose nsqd has another address now."""
        try:
            found = self._directory.find()
        except Unreachable as error:
            logger.warning("%s", error)
            return
        known = {(key[0], node) for key, node in self._nodes.items()}
        pairs = [
            (topic, node) for topic, nodes in found.items() for node in nodes if (topic, node) not in known
        ]
        for log in present(try_log_ranges(self._directory, pairs)):
            self.note(log)

    def url_of(self, key: LogKey, nsqd: str) -> str:
        """The URL of the nsqd that has a log. Raises Unreachable; the error calls the nsqd `nsqd`."""
        if key not in self._nodes:
            self._find(key, nsqd)
        return self._nodes[key].url

    def find_cursor(self, key: LogKey, nsqd: str) -> LogRange:
        """The range of a log with the channel's cursor. Raises Unreachable."""
        return self._find(key, nsqd, channel=self._name)

    def _find(self, key: LogKey, nsqd: str, **query: Any) -> LogRange:
        fetch = self._options.fetch
        for tries in range(fetch.retries + 1):
            if tries:
                time.sleep(fetch.retry_interval * 2 ** (tries - 1))
            if key not in self._nodes:
                self._look_for_logs()
            node = self._nodes.get(key)
            if node is None:
                continue
            try:
                return ask_log_range(node, self._access, key[0], **reading_through(self._name), **query)
            except Unreachable:
                self._nodes.pop(key)
            except RequestRefused as error:
                if error.status != 404:
                    raise
                self._nodes.pop(key)
        raise Unreachable(
            f"topic {key[0]!r}: the batch needs nsqd {nsqd} ({key[1]}), which cannot be reached"
        )

    # ---- the ends of the logs

    def ask_ends(self, since: Offset, wait: float) -> dict[LogKey, LogRange]:
        """The range of every log whose nsqd answers. Commits `since` on the way, unless `ackMode` is engine.

        If no log has news beyond `since`, the nsqds wait up to `wait` seconds for some.
        """
        if self._directory.due or not self._nodes:
            self._look_for_logs()
        asked = dict(self._nodes)
        if len(asked) == 1:
            return self._ask_all(asked, since, True, wait)
        logs = self._ask_all(asked, since, True, 0.0)
        if wait and logs and not any(_has_news(log, since) for log in logs.values()):
            there = {key: node for key, node in asked.items() if key in logs}
            logs |= self._ask_all(there, since, False, wait)
        return logs

    def _ask_all(
        self, asked: dict[LogKey, Node], since: Offset, acknowledge: bool, wait: float
    ) -> dict[LogKey, LogRange]:
        """Ask for all logs at the same time. With `wait`, return as soon as one log has news."""
        if len(asked) == 1:
            ((key, node),) = asked.items()
            log = self._ask(key, node, since.get(key), acknowledge, wait)
            return {} if log is None else {log.key: log}
        logs: dict[LogKey, LogRange] = {}
        futures = [
            self._pool.submit(self._ask, key, node, since.get(key), acknowledge, wait)
            for key, node in asked.items()
        ]
        for future in as_completed(futures):
            log = future.result()
            if log is not None:
                logs[log.key] = log
                if wait and _has_news(log, since):
                    break
        return logs

    def _ask(
        self, key: LogKey, node: Node, place: LogPosition | None, acknowledge: bool, wait: float
    ) -> LogRange | None:
        """None if the nsqd is away."""
        try:
            log = self._ask_node(key, node, place, acknowledge, wait)
        except (Unreachable, RequestRefused) as error:
            if isinstance(error, RequestRefused) and error.status not in (404, 500, 503):
                raise
            if node not in self._away:
                self._away.add(node)
                logger.warning("nsqd %s, topic %s: %s; it stays where it was", node.name, key[0], error)
            return None
        self._away.discard(node)
        if log.nsqd_id != key[1]:  # another nsqd has the address now
            self._nodes.pop(key, None)
        self._nodes[log.key] = node
        return log if log.nsqd_id == key[1] else None

    def _ask_node(
        self, key: LogKey, node: Node, place: LogPosition | None, acknowledge: bool, wait: float
    ) -> LogRange:
        query: dict[str, Any] = {}
        if place is not None:
            query["from"] = place.position
            if acknowledge:
                self._lease.hold(key[0], node)
                query["epoch"] = place.epoch
                if self._options.eager:
                    query["commit"] = place.position
                    if place.channel == self._name:
                        query["moves"] = place.moves  # a channel that was moved meanwhile stays where it is
        query |= {"channel": self._name} if place is not None else reading_through(self._name)
        try:
            return ask_log_range(node, self._access, key[0], wait, **query)
        except RequestRefused as error:
            if error.message == "CHANNEL_NOT_FOUND" and place is not None:
                self._restore(key, node, place)
            elif error.message not in ("EPOCH_CHANGED", "POSITION_NOT_REACHED"):
                raise
        return ask_log_range(node, self._access, key[0], **reading_through(self._name))

    def _restore(self, key: LogKey, node: Node, place: LogPosition) -> None:
        """Create the channel again after a user has deleted it, at the query's position if the log has it."""
        logger.warning("nsqd %s: channel %s of topic %s is new", node.name, self._name, key[0])
        query = {"topic": key[0], "channel": self._name, "from": place.position, "epoch": place.epoch}
        self._log_failure(lambda: fetch_json(node.url, self._access, "/channel/create", query, "POST"))

    @staticmethod
    def _log_failure(work: Callable[[], object]) -> None:
        try:
            work()
        except (Unreachable, RequestRefused) as error:
            logger.warning("%s", error)


def _has_news(log: LogRange, since: Offset) -> bool:
    place = since.get(log.key)
    if place is None or place.epoch != log.epoch or place.position != log.next:
        return True
    return log.moves > place.moves
