"""nsqd as a member of a replica group: the automaton's actions are done here, and their outcome is reported.

A member begins as a standby. When the automaton has it lead, the data directory is opened as at any start.
A primary that may not lead any more replaces its process with a new one, which begins as a standby.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsquark.cli.flags import StartError
from nsquark.errors import GROUP_REFUSES
from nsquark.net.addresses import join_address
from nsquark.nsqd.options import Options, TlsRequired
from nsquark.nsqd.stats.histogram import Histogram
from nsquark.nsqd.storage import node as node_file

from ..automaton import actions
from ..automaton.automaton import Automaton
from ..automaton.group import BadGroup, GroupState, MemberKey, Progress, check_incarnation, member_of
from ..automaton.leading import Leading
from ..automaton.states import Settings, State
from ..changes.access import ReplicaAccess
from ..changes.follower_routes import ReplicaApi
from ..changes.stream import FollowerStream
from ..copy.standby import Standby
from ..copy.warm_copy import FsyncFailed, open_to_sync, rewrite, sync, sync_everything
from ..etcd.client import EtcdError
from ..etcd.etcd_actions import EtcdActions, new_client
from ..etcd.group_keys import GroupKeys
from .group_routes import GroupApi, metrics, summary
from .member_file import MemberFile, progress_of

if TYPE_CHECKING:
    from nsquark.nsqd.server import Server

logger = logging.getLogger(__name__)

TICK = 0.1  # seconds between two looks of the automaton at the clock
FOUND_AGAIN = 1.0  # seconds until etcd is asked again to found the group
SYNC_AGAIN = 1.0  # seconds until what failed at the disk is tried again
HANDOVER = 10.0  # seconds that a stopping primary gives another member to take over


class Member:
    """One process of a member. `server` is the nsqd that it becomes when it leads."""

    def __init__(self, options: Options, server: Server) -> None:
        """Raises StartError."""
        self.options = options
        self.server = server
        self.file = MemberFile.open(options)
        self.directory = Path(options.data_path or ".")
        self.acknowledgement_times = Histogram()
        self.failure: StartError | None = None  # why the directory could not be opened
        self.ended = asyncio.Event()  # the member has handed over and stops, or has failed
        self.stopping = False  # the process ends: what would be a new process ends it, too
        self._loop = asyncio.get_running_loop()
        self._progress: Progress = ()
        self.addresses = self._own_addresses()
        self._access = ReplicaAccess(options)
        keys = GroupKeys(options.replica_group, options.replica_member, self.addresses)
        self.etcd = EtcdActions(
            new_client(options), keys, options.replica_lease, self._member_key, self.perform
        )
        settings = Settings(
            lease=options.replica_lease,
            replica_timeout=options.replica_timeout,
            min_copies=options.min_copies,
            synced=options.replica_ack == "synced",
        )
        self.automaton = Automaton(settings, self.file.directory(), self._loop.time())
        self.standby = Standby(options, self.automaton.me, self, self.file.stored.doubtful)
        self._doubtful: set[str] = set()  # files whose fsync has failed in this process
        self._syncing: asyncio.Task[None] | None = None
        self._flushed_at: deque[tuple[int, float]] = deque(maxlen=1000)  # what waits to be acknowledged
        self._performing = False
        self._tick_timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._leads_from_files = False  # the directory is open
        self._giving_up: asyncio.Task[None] | None = None
        self._open_to_clients = False

    def _own_addresses(self) -> Mapping[str, str]:
        """Where others find this member: clients at `tcp` and `http`, members at the URL `replica`."""
        options, server = self.options, self.server
        host = options.broadcast_address
        http = join_address(host, options.broadcast_http_port)
        if options.tls_required == TlsRequired.EVERYBODY:
            url = f"https://{options.replica_advertise or join_address(host, server.https_port)}"
        else:
            url = f"http://{options.replica_advertise or http}"
        return {"tcp": join_address(host, options.broadcast_tcp_port), "http": http, "replica": url}

    # ---- life

    async def run(self) -> None:
        """Be a member until `stop`, or until the directory cannot be opened."""
        self._progress = await asyncio.to_thread(progress_of, self.directory)
        await self.server.serve_http(GroupApi(self, self._access).router())
        # Where etcd has lost the group, another member may have more than this one: an operator decides.
        if self.options.replica_bootstrap and not self.file.has_group:
            await self._found()
        logger.info("REPLICA: member %s of group %s", self.automaton.me, self.options.replica_group)
        self._tick()
        await self.ended.wait()

    async def _found(self) -> None:
        """Found the group, unless it is there. Until etcd has answered, nothing else is done."""
        state = GroupState(self.options.node_id, self.file.term, self.automaton.me, (self.automaton.me,))
        while not self.ended.is_set():
            try:
                if await self.etcd.found(state):
                    logger.info("REPLICA: the group %s is founded", self.options.replica_group)
                return
            except EtcdError as error:
                self.etcd.problem = str(error)
                logger.warning("REPLICA: the group cannot be founded yet: %s", error)
                await asyncio.sleep(FOUND_AGAIN)

    async def stop(self) -> bool:
        """Hand over if this member leads, and end; returns whether everything could be stored."""
        self.stopping = True
        leads = self.leading is not None and self.leading.serving
        if leads and self.automaton.state is State.PRIMARY and self.hand_over():
            logger.info("REPLICA: handing over")
            try:
                async with asyncio.timeout(HANDOVER):
                    await self.ended.wait()
            except TimeoutError:
                logger.warning("REPLICA: no other member has taken over")
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        lease = self.automaton.lease
        stored = await self._store()
        await self.etcd.close(lease)
        return stored

    async def _store(self) -> bool:
        """Close the directory, and note it if the disk holds everything; returns whether it does."""
        leads = hasattr(self.server, "broker")
        try:
            if leads:
                if not await self.server.stop():
                    return False
            else:
                self.server.close_listeners()
                self.server.close_http()
                await self.standby.close()
            if not self._doubtful:
                # Also what an earlier process wrote, which may be in the memory of the system alone.
                await asyncio.to_thread(sync_everything, self.directory)
                self.file.stop_cleanly()
                return True
        except FsyncFailed as error:
            logger.error("REPLICA: not everything could be stored: %s", error)
            self._doubtful |= error.paths
        except OSError as error:
            logger.error("REPLICA: not everything could be stored: %s", error)
            return False
        with contextlib.suppress(OSError):
            (self.file.doubt if leads else self.file.distrust)(self._doubtful)
        return False

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(TICK, self._tick)
        self._begin_anew()
        self.automaton.tick(self._loop.time())
        self._check_node()
        self.perform()

    def _check_node(self) -> None:
        state = self.automaton.view.state
        if state is not None and state.node != self.options.node_id and self.failure is None:
            self._fail(
                StartError(
                    f"--node-id is {self.options.node_id}, and the group {self.options.replica_group} is node"
                    f" {state.node}"
                )
            )

    def _fail(self, error: StartError) -> None:
        self.failure = error
        self.ended.set()

    @property
    def leading(self) -> Leading | None:
        return self.automaton.leading

    @property
    def serving(self) -> bool:
        """Whether clients find everything here that nsqd has."""
        return self.automaton.state is State.PRIMARY and self._open_to_clients

    # ---- what the automaton wants

    def perform(self) -> None:
        """Do everything that the automaton wants, in order."""
        automaton = self.automaton
        if not automaton.wanted or self._performing or self.ended.is_set():
            return
        self._performing = True
        try:
            while automaton.wanted:
                for action in automaton.take():
                    self._perform(action)
        except Exception:
            # The automaton counts on what it asked for being done. A new process begins with what is on disk.
            logger.exception("REPLICA: what the automaton wants cannot be done")
            self._fence(actions.Fence("an action has failed"))
        finally:
            self._performing = False

    def _perform(self, action: actions.Action) -> None:
        handler = _HANDLERS.get(type(action))
        if handler is not None:
            handler(self, action)
        elif not isinstance(action, actions.SendHeartbeat):  # the recorder sends these
            self.etcd.ask(self.automaton, action)  # type: ignore[arg-type]  # all others are etcd's

    def _member_key(self) -> MemberKey:
        stored = self.file.stored
        return MemberKey(stored.incarnation, stored.settled, self._progress, self.addresses)

    # ---- a standby

    def _connect(self, action: actions.Connect) -> None:
        view = self.automaton.view
        primary, member = view.primary, view.members.get(action.member)
        address = ""
        if primary is not None and member_of(primary.incarnation) == action.member:
            address = primary.addresses.get("replica", "")
        elif member is not None:
            address = member.addresses.get("replica", "")
        self.standby.connect(address, action.term)

    def _drop_stream(self, action: actions.DropStream) -> None:
        self.standby.drop()

    def _unsettle(self, action: actions.Unsettle) -> None:
        self._note_settled(False)

    def _settle(self, action: actions.Settle) -> None:
        self._note_settled(True)

    def _note_settled(self, settled: bool) -> None:
        try:
            self.file.settle(settled, self.automaton.directory.term)
        except OSError as error:
            # What the disk says of the directory would be wrong from here on.
            self._fence(actions.Fence(f"{self.file.path} cannot be written: {error}"))

    def _fetch(self, action: actions.Fetch) -> None:
        self.standby.fetch()

    def _acknowledge(self, action: actions.Acknowledge) -> None:
        self.standby.acknowledge(action.term, action.written, action.synced)

    # Reports of the stream.

    @property
    def settled(self) -> bool:
        return self.file.stored.settled

    def stream_refused(self) -> None:
        self.automaton.stream_refused(self._loop.time())
        self.perform()

    def stream_lost(self) -> None:
        self.automaton.stream_lost(self._loop.time())
        self.perform()

    def manifest_received(self, term: int, sequence: int, alters: bool) -> None:
        self.automaton.manifest_received(self._loop.time(), term, sequence, alters)
        self.perform()

    def fetched(self, term: int, sequence: int) -> None:
        self.automaton.fetched(self._loop.time(), term, sequence)
        self.perform()

    def heard(self, term: int) -> None:
        self.automaton.heartbeat_received(self._loop.time(), term)
        self.perform()

    def frames_written(self, term: int, first: int, last: int) -> None:
        now = self._loop.time()
        for sequence in range(first, last + 1):
            self.automaton.frame_written(now, term, sequence)
        wanted = self.automaton.wanted
        if len(wanted) > 1:
            # Acknowledgements are cumulative: the last one says it all.
            told = [at for at, each in enumerate(wanted) if isinstance(each, actions.Acknowledge)]
            for at in reversed(told[:-1]):
                del wanted[at]
        self.perform()

    def frame_synced(self, term: int, sequence: int) -> None:
        self.automaton.frame_synced(self._loop.time(), term, sequence)
        self.perform()

    def fsync_failed(self, paths: frozenset[str]) -> None:
        """These files may not be on the disk, whatever the next fsync says: nothing of them counts any more.

        A standby begins a new incarnation and fetches them. A member that has won its campaign stores them
        anew before it leads. One that leads by then gives up as if it had written them itself.
        """
        logger.error("REPLICA: an fsync has failed, for %s", ", ".join(sorted(paths)[:10]))
        self._doubtful |= paths
        self._begin_anew()
        self._give_up_if_leading()

    def _give_up_if_leading(self) -> None:
        if self._doubtful and self._leads_from_files and self._giving_up is None:
            self._giving_up = asyncio.create_task(self._give_up(frozenset(self._doubtful)))

    def _begin_anew(self) -> None:
        """Be another process and incarnation, if an fsync has failed. Until that is noted, do nothing."""
        if not self._doubtful or self.leading is not None or self.automaton.state is State.CAMPAIGN:
            return
        self.automaton.leave()
        self.perform()
        try:
            self.file.distrust(self._doubtful)
        except OSError as error:  # the next tick tries again
            logger.error("REPLICA: %s cannot be written: %s", self.file.path, error)
        else:
            self._fence(actions.Fence("its files are in doubt, since an fsync has failed"))

    def handover_received(self, term: int) -> None:
        self.automaton.handover_received(self._loop.time(), term)
        self.perform()

    # ---- a primary

    def _open_directory(self, action: actions.OpenDirectory) -> None:
        self._opening = asyncio.create_task(self._open(action))

    async def _open(self, action: actions.OpenDirectory) -> None:
        logger.info("REPLICA: leading term %d", action.term)
        try:
            # What a killed nsqd has left is not synced either before it is opened.
            await self.standby.close(sync_files=self.options.replica_ack == "synced")
            await self._store_doubtful()
            raise_term(self.directory, action.term)
            self.file.settle(True, action.term)
            self.server.load()
            broker = self.server.broker
            broker.group_status, broker.group_metrics = partial(summary, self), partial(metrics, self)
            if action.new_epochs:
                for topic in broker.topics.values():
                    topic.begin_epoch()
                logger.warning("REPLICA: messages may have been lost, so every log has a new epoch")
            if self.options.replica_ack == "synced":
                await asyncio.to_thread(sync_everything, self.directory)
        except StartError as error:
            self._fail(error)
            return
        except Exception as error:
            # Whatever it is: a primary that cannot serve must not keep the others from it.
            if not isinstance(error, OSError):
                logger.exception("REPLICA: the directory cannot be opened")
            self._fail(StartError(f"the directory cannot be opened to lead the group - {error}"))
            return
        self._leads_from_files = True
        self._give_up_if_leading()
        if self.automaton.state is not State.PRIMARY:
            return
        broker.recorder.record_always(
            self._flushed, touched=self.options.replica_ack == "synced", wake=broker.turn.copies_wait
        )
        broker.turn.send_copies = broker.recorder.flush_if_changed
        api = GroupApi(self, self._access).router()
        self._replica_api().add_to(api)
        await self.server.serve_http(api)
        self.automaton.directory_opened(self._loop.time())
        self.perform()

    async def _store_doubtful(self) -> None:
        """Store the files whose fsync has failed anew, with what they read now. Raises OSError."""
        if self._doubtful:
            self.file.doubt(self._doubtful)
        if self.file.stored.doubtful:
            known = set(self._doubtful)
            await asyncio.to_thread(rewrite, self.directory, self.file.stored.doubtful)
            self._doubtful -= known

    def _replica_api(self) -> ReplicaApi:
        broker = self.server.broker
        return ReplicaApi(broker.recorder, broker.data_path, self._access, broker.node.uuid, self)

    def _serve(self, action: actions.Serve) -> None:
        self._opening = asyncio.create_task(self._begin_serving())

    async def _begin_serving(self) -> None:
        api = self.server.api()
        GroupApi(self, self._access).add_to(api)
        self._replica_api().add_to(api)
        try:
            await self.server.serve_http(api)
            await self.server.serve_tcp()
        except OSError as error:
            self._fail(StartError(f"clients cannot be served - {error}"))
            return
        self._open_to_clients = True
        logger.info("REPLICA: serving term %d", self.automaton.leading.term if self.automaton.leading else 0)

    def _flushed(self, sequence: int) -> None:
        """The recorder has sent everything up to `sequence`."""
        leading, gate = self.leading, self.server.broker.gate
        if leading is None or gate is None:
            return
        gate.sent(sequence)
        if sequence > leading.written:
            self._flushed_at.append((sequence, self._loop.time()))
            self.automaton.written(self._loop.time(), sequence)
            if self.options.replica_ack == "synced" and self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
            self.perform()

    async def _sync(self) -> None:
        """Bring what was written to the disk, as long as there is something."""
        recorder = self.server.broker.recorder
        touched = recorder.touched
        assert touched is not None
        try:
            while touched:
                sequence = recorder.sequence
                paths = {touched.popleft() for _ in range(len(touched))}
                try:
                    await asyncio.to_thread(sync, open_to_sync(self.directory, paths))
                except FsyncFailed as error:
                    logger.error("REPLICA: what was written is not on the disk: %s", error)
                    await self._give_up(error.paths)
                    return
                except OSError as error:
                    logger.error("REPLICA: what was written cannot be synced: %s", error)
                    touched.extend(paths)
                    await asyncio.sleep(SYNC_AGAIN)
                    continue
                self.automaton.synced(self._loop.time(), sequence)
                self.perform()
        finally:
            self._syncing = None

    async def _give_up(self, doubtful: frozenset[str]) -> None:
        """An fsync of the primary has failed: another one would prove nothing, so nothing counts as synced.

        Another member leads, if one can. If not, a new process stores the files anew, and leads again.
        """
        while True:
            try:
                self.file.doubt(doubtful)
                break
            except OSError as error:
                logger.error("REPLICA: %s cannot be written: %s", self.file.path, error)
                await asyncio.sleep(SYNC_AGAIN)
        while self.automaton.hand_over(self._loop.time(), drain=False):
            self.perform()
            await asyncio.sleep(SYNC_AGAIN)
        self._fence(actions.Fence("an fsync has failed"))

    def _release(self, action: actions.Release) -> None:
        gate, now = self.server.broker.gate, self._loop.time()
        while self._flushed_at and self._flushed_at[0][0] <= action.sequence:
            self.acknowledgement_times.observe(round((now - self._flushed_at.popleft()[1]) * 1e9))
        if gate is not None:
            gate.commit(action.sequence)

    def _refuse_publishes(self, action: actions.RefusePublishes) -> None:
        logger.warning("REPLICA: publishes are refused: %s", action.reason)
        self._set_refusing(action.reason)

    def _accept_publishes(self, action: actions.AcceptPublishes) -> None:
        logger.info("REPLICA: publishes are taken")
        self._set_refusing("")

    def _set_refusing(self, reason: str) -> None:
        broker = getattr(self.server, "broker", None)
        if broker is None or broker.gate is None:
            return  # the directory is being opened; the gate of a new broker refuses publishes by itself
        broker.gate.refusing = reason and GROUP_REFUSES + reason
        for topic in broker.topics.values():
            topic.publishing_changed()

    def _send_handover(self, action: actions.SendHandover) -> None:
        self.server.broker.recorder.send_handover()

    def _disconnect(self, action: actions.Disconnect) -> None:
        for stream in self.streams():
            if stream.incarnation == action.incarnation:
                stream.drop(action.reason)

    def _fence(self, action: actions.Fence) -> None:
        """Be another process. Its clients are closed by the kernel, unanswered."""
        if self.stopping:
            self.ended.set()
            return
        logger.warning("REPLICA: this process leads no more: %s", action.reason)
        for handler in logging.getLogger().handlers:
            handler.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    # What the followers say.

    def streams(self) -> list[FollowerStream]:
        if not hasattr(self.server, "broker"):
            return []
        return [each for each in self.server.broker.recorder.followers if isinstance(each, FollowerStream)]

    def admit(self, incarnation: str, term: int) -> bool:
        """Whether a follower that asks for the stream of `term` gets it. Raises BadGroup for no member."""
        check_incarnation(incarnation)
        if member_of(incarnation) == self.options.replica_member:
            raise BadGroup(f"{incarnation} is the primary itself")
        if not self.automaton.follower_joined(self._loop.time(), incarnation, term):
            return False
        for stream in self.streams():
            if member_of(stream.incarnation) == member_of(incarnation):
                stream.drop("the member has connected anew")
        return True

    def follower_answered(self, stream: FollowerStream, term: int) -> None:
        turn = self.server.broker.turn
        turn.hold()
        try:
            self.automaton.acknowledged(
                self._loop.time(), stream.incarnation, term, stream.written, stream.synced
            )
            self.perform()
        finally:  # what is committed now is delivered and answered at once
            turn.run()

    def follower_gone(self, stream: FollowerStream) -> None:
        if not any(each.incarnation == stream.incarnation for each in self.streams()):
            self.automaton.follower_left(self._loop.time(), stream.incarnation)
            self.perform()

    # ---- operators

    def hand_over(self) -> bool:
        self._write_everything()
        done = self.automaton.hand_over(self._loop.time())
        self.perform()
        return done

    def _write_everything(self) -> None:
        """Have everything that was published until now in a frame, so that the next primary gets it."""
        broker = self.server.broker
        broker.turn.run()
        broker.recorder.flush()

    def force(self) -> str:
        """Lead with what this directory has. Returns why not, or nothing."""
        why_not = self.automaton.force(self._loop.time())
        self.perform()
        return why_not


def raise_term(directory: Path, term: int) -> None:
    """Have the node's file say that files of `term` are begun from now on. Raises OSError and StartError."""
    path = directory / node_file.FILE_NAME
    try:
        name, blocks, floor, _ = node_file.parse(path.read_bytes())
    except FileNotFoundError:
        if any((directory / node_file.TOPICS).glob("*")):
            raise StartError(f"{directory} holds topics and no node") from None
        name, blocks, floor = os.urandom(16).hex(), 0, 0
    except node_file.UNREADABLE as error:
        raise StartError(f"{path} does not read - {error!r}") from None
    node_file.write_atomically(path, node_file.pack(name, blocks, floor, term))


_HANDLERS: dict[type, Callable[[Member, Any], None]] = {
    actions.Connect: Member._connect,
    actions.DropStream: Member._drop_stream,
    actions.Unsettle: Member._unsettle,
    actions.Fetch: Member._fetch,
    actions.Settle: Member._settle,
    actions.Acknowledge: Member._acknowledge,
    actions.OpenDirectory: Member._open_directory,
    actions.Serve: Member._serve,
    actions.SendHandover: Member._send_handover,
    actions.Disconnect: Member._disconnect,
    actions.Release: Member._release,
    actions.RefusePublishes: Member._refuse_publishes,
    actions.AcceptPublishes: Member._accept_publishes,
    actions.Fence: Member._fence,
}
