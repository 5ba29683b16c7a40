"""The broker: all topics of a node, and what they share.

Knows nothing of sockets: connections and HTTP handlers come to it, and it gives them topics. It owns the data
directory's content, the timers, the thread that waits for the disk, and the health of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nsquark import changes
from nsquark.log import OPEN_FILES, RECENT_READS, WRITTEN_FILES, Record, Store, acknowledge
from nsquark.names import is_ephemeral, to_file_name
from nsquark.net.tls_handshake import Handshakes
from nsquark.nsqd.cluster.lookup import Lookup
from nsquark.nsqd.core.chores import Chores
from nsquark.nsqd.core.commit_gate import CommitGate
from nsquark.nsqd.core.dead_letters import DeadLetters
from nsquark.nsqd.core.timers import Timers
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.core.turn import Turn
from nsquark.nsqd.protocol.certificates import Certificates
from nsquark.nsqd.replica.changes.recorder import Recorder
from nsquark.nsqd.staged.staging import SWEEP_INTERVAL, Staging
from nsquark.nsqd.stats.health import WRITE, Health, Thing
from nsquark.nsqd.stats.memory import Reserve, give_back_memory
from nsquark.nsqd.stats.pipeline_reports import PipelineReports
from nsquark.nsqd.storage import metadata
from nsquark.nsqd.storage.disk_reads import DiskReads
from nsquark.nsqd.storage.inspection import DELETED, DataRefused, deleted_end, deleted_name, inspect_data
from nsquark.nsqd.storage.metadata_saving import MetadataSaving
from nsquark.nsqd.storage.node import TOPICS, Node
from nsquark.nsqd.storage.syncer import Syncer
from nsquark.nsqd.storage.trial_write import TrialWrite

from .options import Options

if TYPE_CHECKING:
    from nsquark.nsqd.archive.archive import Archive
    from nsquark.nsqd.protocol.auth.auth_servers import AuthServers
    from nsquark.nsqd.protocol.auth.client_auth import ClientAuth
    from nsquark.nsqd.protocol.connection import Connection
    from nsquark.nsqd.protocol.socket_poll import SocketPoll

logger = logging.getLogger(__name__)

TRIM_INTERVAL = 1.0
WORTH_GIVING_BACK = 16 << 20  # bytes of memory that were let go
MEMORY_LOOK = 10.0
BEGIN_JOURNALS = 0.05  # seconds between two looks at the journals that are still those of an earlier process
CLOCK_LOOK = 1.0  # how late a deferred message is at most after the clock was set forward


class Broker:
    def __init__(
        self,
        options: Options,
        loop: asyncio.AbstractEventLoop,
        certificates: Certificates | None = None,
        handshakes: Handshakes | None = None,
    ) -> None:
        """Raises DataRefused and BadMetadata, and has changed nothing then."""
        self.options = options
        self.certificates = certificates or Certificates(options)
        self.handshakes = handshakes or Handshakes()
        self.auth_servers: AuthServers | None = None
        if options.auth_http_address:
            from nsquark.nsqd.protocol.auth.auth_servers import AuthServers

            self.auth_servers = AuthServers(options, self.certificates)
        self.start_time = time.time()
        self.hostname = os.uname().nodename
        self.tcp_port = self.http_port = self.https_port = 0
        self.topics: dict[str, Topic] = {}
        self.reports = PipelineReports()
        self.connections: set[Connection] = set()
        self._health = Health(self._problems_changed)
        self.problems = self._health.problems
        self.turn = Turn(loop.call_soon)
        self.timers = Timers(loop, time.monotonic_ns)
        self.due_timers = Timers(loop, time.time_ns, CLOCK_LOOK)
        self.chores = Chores(loop)
        self.syncer = Syncer(loop)
        self._reserve = Reserve()
        self.reads = DiskReads(loop)
        self.dead_letters = DeadLetters(self)
        self.draining = False  # consumers answer what they have, and get no more
        self.stopping: bool = False
        self.poll: SocketPoll | None = None  # what reads the sockets of the clients, if not the event loop
        self.loop = loop
        self._path = Path(options.data_path or ".")
        self._trial = TrialWrite(self._path, self.syncer, self.healthy)
        self._periodic: list[asyncio.TimerHandle] = []
        self._freed = 0  # bytes of memory that idle topics have let go and the system has not got back
        found = inspect_data(self._path)  # before anything is written
        self._metadata, self._inspected = found
        self.node = Node(self._path, options.node_id)
        for record in self.node.damage:
            self.unhealthy(str(record), ("/node", record.path.name))
        self.saving = MetadataSaving(self, self._path)
        self.data_path = self._path
        self.recorder = Recorder(self._path, self.node.term, loop)
        self.gate: CommitGate | None = None
        # What the member of a replica group says of itself: for /stats as JSON, for /metrics as text.
        self.group_status: Callable[[], dict[str, object]] | None = None
        self.group_metrics: Callable[[], str] | None = None
        if options.replica_group:
            self.gate = CommitGate(self.recorder.schedule, self.recorder.flush)
        self.staging = Staging(self, self._path, loop)
        self.lookup = Lookup(self)
        self.archive: Archive | None = None
        self.segment_store: Store | None = None
        if options.archive_url:
            from nsquark.nsqd.archive.archive import Archive

            self.archive = Archive(self, self._path)
            self.segment_store = self.archive.fetched

    # ---- the data directory

    def load(self) -> None:
        """Take up every topic that `nsqd.dat` or the disk knows. Raises BadMetadata and DataRefused."""
        known = self._metadata
        folder = self._path / TOPICS
        folder.mkdir(mode=0o700, exist_ok=True)
        self._finish_deletions([each for each in os.listdir(folder) if each.startswith(DELETED)])
        unread = [name for name, (log, _) in self._inspected.items() if log.archived]
        if unread and self.archive is None:
            logger.warning(
                "without --archive-url, logs lack what the archive has of %d topics, such as %s",
                len(unread),
                unread[0],
            )
        for name in self._inspected:
            known.setdefault(name, metadata.TopicMetadata(origin=None))
        for leftover in self._path.glob("nsq*.dat.*.tmp"):  # a crash came while it was written
            leftover.unlink(missing_ok=True)
        now = time.time_ns()
        for name, entry_ in known.items():
            try:
                topic = self._open(name)
            except OSError as error:  # such as a full disk: then nothing is repaired, and nothing lost
                raise DataRefused(f"topic {name} cannot be opened: {error}") from None
            topic.retain(entry_.retention)
            if entry_.origin is not None:
                topic.origin = entry_.origin
            topic.restore(list(entry_.channels), entry_.paused, now)
            for channel_name, told in entry_.channels.items():
                channel = topic.channels[channel_name]
                channel.paused, channel.max_attempts = told.paused, told.max_attempts
                channel.readership.hold_timeout = told.hold_timeout
                if told.idle_since is not None:
                    idle = max(0, now - told.idle_since * 1_000_000_000)
                    channel.readership.restore(idle, topic.monotonic())
        self.saving.write()
        self.staging.load()
        self._begin_journals([each for each in self.topics.values() if each.journal.from_before])
        self._every(self.options.sync_timeout, lambda: self.chores.start("sync", self._sync))
        self._every(TRIM_INTERVAL, lambda: self.chores.start("trim", self._trim))
        self._every(SWEEP_INTERVAL, lambda: self.staging.sweep(time.time()))
        self._every(MEMORY_LOOK, lambda: self.loop.run_in_executor(None, self._reserve.look))
        if self.archive is not None:
            self.archive.start()

    def _begin_journals(self, topics: list[Topic]) -> None:
        """Begin the journals of an earlier process anew, as fast as the disk takes them.

        Nothing waits for that: what those journals lack is written when it happens.
        """
        while topics and not self.stopping and self.syncer.has_room_for_a_journal:
            topic = topics.pop()
            if topic.journal.from_before and not topic.exiting:
                topic.journaling.rewrite()
        if topics and not self.stopping:
            self.loop.call_later(BEGIN_JOURNALS, self._begin_journals, topics)

    def _finish_deletions(self, deleted: list[str]) -> None:
        """Delete the folders of topics that an earlier process was deleting at its end. Raises DataRefused.

        The earlier process may have ended before the node's file knew of their positions. The names of the
        folders tell them.
        """
        if not deleted:
            return
        try:
            self.node.raise_floor(max(map(deleted_end, deleted)))
            self.node.save()
        except OSError as error:
            raise DataRefused(f"deleted topics cannot be deleted for good: {error}") from None
        self.syncer.delete([self._path / TOPICS / each for each in deleted])

    def _open(self, name: str) -> Topic:
        directory = None if is_ephemeral(name) else self._path / TOPICS / to_file_name(name)
        topic = Topic(self, name, directory, self._inspected.pop(name, None))
        self.topics[name] = topic
        return topic

    def _every(self, seconds: float, work: Callable[[], object]) -> None:
        slot = len(self._periodic)

        def run() -> None:
            if not self.stopping:
                self._periodic[slot] = self.loop.call_later(seconds, run)
                work()

        self._periodic.append(self.loop.call_later(seconds, run))

    def _sync(self) -> Iterator[None]:
        for topic in list(self.topics.values()):
            if (topic.log.unsynced or topic.journal.unsynced) and not topic.exiting:
                self.syncer.request(topic)  # does not raise
            yield

    def _trim(self) -> Iterator[None]:
        OPEN_FILES.close_unused()
        RECENT_READS.forget_unused()
        if WRITE in self.problems:
            self._trial.begin()
        yield from WRITTEN_FILES.shrink()
        now = time.time()
        freed = 0
        for topic in list(self.topics.values()):
            yield
            # a journal that could not be written is written again, whether anything happens or not
            wanted = topic.active or topic.log.trimmable or topic.journal.overgrown
            if (wanted or topic.log.expires(now)) and not topic.exiting:
                try:
                    freed += yield from topic.trimming.steps(now)
                except OSError as error:
                    logger.error("topic %s could not be trimmed: %s", topic.name, error)
                    self.unhealthy(str(error), (topic.name, "trim"))
                else:
                    self.healthy((topic.name, "trim"))
        self._freed += freed
        if self._freed >= WORTH_GIVING_BACK and freed < WORTH_GIVING_BACK:  # the last of it is freed, too
            self._freed = 0
            self.loop.run_in_executor(None, give_back_memory)

    def trim_files(self, topic: Topic) -> None:
        """Trim the files of a topic that grows fast, soon: the next look at all topics would find many."""
        if not self.stopping:
            self.loop.call_soon(self.chores.start, f"trim {topic.name}", partial(self._trim_files_of, topic))

    def _trim_files_of(self, topic: Topic) -> Iterator[None]:
        if self.stopping:
            return  # the log may be closed
        try:
            yield from topic.trimming.steps_of_files(time.time())
        except OSError as error:  # the next look at all topics tells if it lasts
            logger.warning("topic %s could not be trimmed: %s", topic.name, error)

    # ---- topics

    def topic(self, name: str) -> Topic:
        """The topic of this name, created if it is not there."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self._open(name)
            topic.journaling.rewrite()
            if topic.gate is not None:
                topic.unconfirmed.add(topic)
                topic.gate.then(partial(topic.unconfirmed.discard, topic))
            logger.info("TOPIC(%s): created", name)
            self.changed(topic.ephemeral)
            self.lookup.created(topic)
        return topic

    def delete_topic(self, name: str) -> None:
        """Raises KeyError if there is none of this name. Gone for good once the metadata is saved."""
        topic = self.topics[name]
        if not topic.ephemeral:
            # First of all, so that whatever fails later leaves no half of a topic behind. Raises OSError.
            old = self._path / TOPICS / to_file_name(name)
            end = topic.log.end + topic.log.pending
            gone = self._path / TOPICS / deleted_name(end)
            with contextlib.suppress(FileNotFoundError):
                os.rename(old, gone)
                changes.tell_renamed(old, gone)
            self.saving.deleted.append(gone)
            self.node.raise_floor(end)
        del self.topics[name]
        logger.info("TOPIC(%s): deleting", name)
        topic.exit()
        self.healthy((name,))
        self.changed(topic.ephemeral)
        self.announce(name)

    def announce(self, topic: str, channel: str = "") -> None:
        """Tell the lookupds that a topic or a channel has come or gone."""
        self.reports.forget(topic, channel)
        self.lookup.changed(topic, channel)

    # ---- clients

    def client_auth(self, expire: Callable[[], None]) -> ClientAuth | None:
        """The authorization of a new connection; None where no auth server is configured."""
        if self.auth_servers is None:
            return None
        from nsquark.nsqd.protocol.auth.client_auth import ClientAuth

        return ClientAuth(self.auth_servers, expire)

    # ---- metadata

    def changed(self, ephemeral: bool) -> None:
        """Topics or channels have come or gone: the file will be written, soon and once for many changes."""
        if not ephemeral:
            self.saving.changed()

    async def save_metadata(self) -> None:
        """Return when everything up to now is in the file and on disk. Raises OSError."""
        await self.saving.save()

    # ---- health

    async def acknowledge(self, topics: Sequence[Topic], others: bool) -> list[Record]:
        """An operator has seen what was damaged: it is told no more, not after a restart either.

        Of these topics, and what belongs to none. Raises OSError.
        """
        done: list[Record] = []
        for topic in topics:
            seen: list[Record] = []

            def work(topic: Topic = topic, seen: list[Record] = seen) -> None:
                seen += topic.health.acknowledge()

            await self.syncer.run(work)
            topic.health.acknowledged(seen)
            done += seen
        if others:
            node, self.node.damage = self.node.damage, []
            await self.syncer.run(lambda: done.extend(map(acknowledge, node)))
            self.healthy(("/node",))
            done += await self.staging.folder.acknowledge()
        return done

    @property
    def health(self) -> str:
        """`OK`, or `NOK - ` and the latest of what does not work."""
        return self._health.text

    @property
    def not_ready(self) -> str:
        """Why clients should rather go to another nsqd; empty if they need not."""
        if self.draining or self.stopping:
            return "stopping"
        return self.problems.get(WRITE, "")

    def healthy(self, what: Thing = WRITE) -> None:
        if self._health.problems:
            self._health.works(what)

    def unhealthy(self, reason: str, what: Thing = WRITE) -> None:
        self._health.failed(what, reason)

    def _problems_changed(self) -> None:
        for topic in self.topics.values():
            topic.problems_changed()

    # ---- the end

    async def stop_saving(self) -> None:
        """Let the metadata be written no more but by `close`."""
        self.stopping = True
        if self.archive is not None:
            self.archive.close()
        await self.staging.stop()
        await self.saving.finish()
        await asyncio.sleep(0)  # connections that were closed just now hear of it

    def close(self) -> bool:
        """Store everything and let go of the files. The connections are closed already.

        Returns whether the disk holds everything; what it does not is logged, and keeps nothing else from it.
        """
        self.stopping = True
        if self.archive is not None:
            self.archive.close()
        for handle in self._periodic:
            handle.cancel()
        self.chores.close()
        self.syncer.stop()
        self.turn.run()
        topics = list(self.topics.values())
        for topic in topics:
            self._stored(f"topic {topic.name}", topic.settle)  # which may be news for others
        self.turn.run()
        stored = True
        for topic in topics:
            stored &= self._stored(f"topic {topic.name}", topic.close)
        stored &= self._stored(metadata.FILE_NAME, self.saving.write)
        stored &= self._stored("the node's file", self.node.save)
        self.timers.close()
        self.due_timers.close()
        self.reads.close()
        self.syncer.close()
        return stored

    @staticmethod
    def _stored(what: str, store: Callable[[], object]) -> bool:
        try:
            store()
        except OSError as error:
            logger.error("%s could not be stored: %s", what, error)
            return False
        except Exception:
            logger.exception("%s could not be stored", what)
            return False
        return True
