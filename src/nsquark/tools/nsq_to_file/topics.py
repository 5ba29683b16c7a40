"""Which topics are archived: those of the command line, or those that the nsqlookupds list.

Each topic has a `TopicWriter` in a task of its own. The first that fails ends them all.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nsquark.client import Config, Event
from nsquark.client.events import Connected, ConnectionRefused
from nsquark.errors import NsquarkError, ProtocolError
from nsquark.http.client.protocol import nsq_headers, parse_json
from nsquark.http.client.single_request import ask
from nsquark.names import is_valid_name

from ..command.running import ToolError
from .encoding import Encoder, Gzip, Plain, Zstd, jsonl_lines, plain_lines
from .errors import Fatal
from .leftovers import move_leftovers
from .options import Options, compile_topic_pattern, file_names
from .rotation import Archive, ArchiveSettings
from .topic_writer import Subscription, TopicWriter

logger = logging.getLogger(__name__)

_THREADS = 16  # topics that the disk works for at the same time


class Topics:
    """All topics that are archived."""

    def __init__(self, options: Options, config: Config) -> None:
        self._options = options
        self._config = config
        self._settings = _settings(options)
        self._pattern = compile_topic_pattern(options.topic_pattern) if options.topic_pattern else None
        self._threads = ThreadPoolExecutor(_THREADS, "archive")
        self._writers: dict[str, TopicWriter] = {}
        self._skipped: set[str] = set()
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, stop: asyncio.Event) -> None:
        """Archive until `stop`. Raises Fatal."""
        try:
            async with asyncio.TaskGroup() as group:
                refusal = group.create_task(_failed(self._refused))
                self._add(group, self._options.topic)
                refresh = None if self._options.topic else group.create_task(self._refresh(group))
                await stop.wait()
                refusal.cancel()
                if refresh is not None:
                    refresh.cancel()
                for writer in self._writers.values():
                    writer.stop()
        except BaseExceptionGroup as errors:
            known = errors.subgroup(NsquarkError)
            if known is None:
                raise
            error: BaseException = known
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise Fatal(str(error), self._options.log_prefix) from error
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
        logger.info("%s", self._summary())

    def reopen(self) -> None:
        for writer in self._writers.values():
            writer.reopen()

    def _summary(self) -> str:
        writers = self._writers.values()
        archived = sum(writer.archived for writer in writers)
        late = sum(writer.late for writer in writers)
        text = f"archived {archived} messages of {len(writers)} topics in"
        text += f" {sum(writer.archive.files for writer in writers)} files"
        return text + (f"; {late} of them too late: they will come again" if late else "")

    # ---- topics

    def _add(self, group: asyncio.TaskGroup, topics: Iterable[str]) -> None:
        for topic in topics:
            if topic in self._writers or topic in self._skipped:
                continue
            if self._pattern is not None and not self._pattern.search(topic):
                logger.info(
                    "skipping topic %s (doesn't match pattern %s)", topic, self._options.topic_pattern
                )
                self._skipped.add(topic)
                continue
            try:
                self._begin(group, topic)
            except ToolError as error:  # the checks of the command line have raised it for its own topics
                logger.error("skipping topic %s: %s", topic, error)
                self._skipped.add(topic)

    def _begin(self, group: asyncio.TaskGroup, topic: str) -> None:
        options, settings = self._options, self._settings
        if not is_valid_name(topic):
            raise ToolError("it is no valid name")
        names = file_names(options, topic)
        label = f"[{topic}/{options.channel}]"
        source = Subscription(
            topic,
            options.channel,
            options.nsqd_tcp_address,
            options.lookupd_http_address,
            self._config,
            self._watch_first_connection(label),
        )
        writer = TopicWriter(
            source,
            Archive(label, names, settings),
            jsonl_lines if options.format == "jsonl" else plain_lines,
            options.sync_interval,
            self._threads,
        )
        self._writers[topic] = writer
        prepare = partial(move_leftovers, label, names, settings) if settings.moves else None
        group.create_task(writer.run(prepare), name=label)

    def _watch_first_connection(self, label: str) -> Callable[[Event], None] | None:
        """An nsqd that is not there is tried again. One that is there and refuses will do so for ever."""
        if not self._options.nsqd_tcp_address:
            return None
        connected = False

        def watch(event: Event) -> None:
            nonlocal connected
            if isinstance(event, Connected):
                connected = True
            elif isinstance(event, ConnectionRefused) and not connected and not self._refused.done():
                if isinstance(event.error, ProtocolError) or getattr(event.error, "permanent", False):
                    self._refused.set_exception(NsquarkError(f"{label} {event.error}"))

        return watch

    # ---- discovery

    async def _refresh(self, group: asyncio.TaskGroup) -> None:
        while True:
            try:
                self._add(group, await self._listed())
            except NsquarkError as error:
                logger.error("could not retrieve topic list: %s", error)
            await asyncio.sleep(self._options.topic_refresh)

    async def _listed(self) -> list[str]:
        """The topics of all nsqlookupds. Raises NsquarkError if one of them cannot be asked."""
        answers = await asyncio.gather(
            *map(self._ask, self._options.lookupd_http_address), return_exceptions=True
        )
        topics: set[str] = set()
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            topics.update(answer)
        return sorted(topics)

    async def _ask(self, lookupd: str) -> list[str]:
        config, options = self._config, self._options
        url = (lookupd if "://" in lookupd else f"http://{lookupd}").rstrip("/") + "/topics"
        _, response = await ask(
            "GET",
            url,
            headers=nsq_headers(config.auth_secret if config.lookupd_authorization else None),
            timeout=options.http_client_request_timeout,
            connect_timeout=options.http_client_connect_timeout,
            tls=config.ssl_context,
        )
        document = parse_json(url, response.body)
        if isinstance(document, dict) and isinstance(document.get("data"), dict):
            document = document["data"]  # the envelope of NSQ before 1.0
        topics = document.get("topics") if isinstance(document, dict) else None
        if not isinstance(topics, list):
            raise NsquarkError(f"{url}: the answer has no list of topics")
        return [str(topic) for topic in topics]


def _settings(options: Options) -> ArchiveSettings:
    def encoder() -> Encoder:
        if options.gzip:
            return Gzip(options.gzip_level)
        return Zstd(options.zstd_level) if options.zstd else Plain()

    return ArchiveSettings(
        output_dir=os.path.abspath(options.output_dir),
        work_dir=os.path.abspath(options.work_dir if options.moves else options.output_dir),
        encoder=encoder,
        compressed=options.compressed,
        rotate_size=options.rotate_size,
        rotate_interval=options.rotate_interval,
        skip_empty_files=options.skip_empty_files,
        cut_torn_json=options.format == "jsonl" and not options.compressed,
    )


async def _failed(refused: asyncio.Future[None]) -> None:
    await refused
