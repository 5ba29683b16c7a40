"""nsqd as a member of a replica group: the automaton's actions are done here, and their outcome is reported.

A member begins as a standby. When the automaton has it lead, the data directory is opened as at any start.
A primary that may not lead any more replaces its process with a new one, which begins as a standby.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsquark.cli.flags import StartError
from nsquark.net.addresses import join_address
from nsquark.nsqd.options import Options, TlsRequired

from ..automaton import actions
from ..automaton.automaton import Automaton
from ..automaton.group import GroupState, MemberKey, Progress
from ..automaton.leading import Leading
from ..automaton.states import Settings, State
from ..changes.access import ReplicaAccess
from ..copy.standby import Standby
from ..copy.warm_copy import FsyncFailed, sync_everything
from ..etcd.client import EtcdError
from ..etcd.etcd_actions import EtcdAction, EtcdActions, new_client
from ..etcd.group_keys import GroupKeys
from .doubts import Doubts
from .group_routes import GroupApi
from .leadership import Leadership
from .member_file import MemberFile, progress_of
from .obstacles import Obstacles
from .opening import Opening
from .performing import Performing
from .stream_reports import StreamReports

if TYPE_CHECKING:
    from nsquark.nsqd.server import Server

logger = logging.getLogger(__name__)

TICK = 0.1  # seconds between two looks of the automaton at the clock
FOUND_AGAIN = 1.0  # seconds until etcd is asked again to found the group
HANDOVER = 10.0  # seconds that a stopping primary gives another member to take over


class Member:
    """One process of a member. `server` is the nsqd that it becomes when it leads."""

    def __init__(self, options: Options, server: Server) -> None:
        """Raises StartError."""
        self.options = options
        self.server = server
        self.file = MemberFile.open(options)
        self.directory = Path(options.data_path or ".")
        self.failure: StartError | None = None  # why the directory could not be opened
        self.ended = asyncio.Event()  # the member has handed over and stops, or has failed
        self.stopping = False  # the process ends: what would be a new process ends it, too
        self._loop = asyncio.get_running_loop()
        self._progress: Progress = ()
        self.addresses = self._own_addresses()
        self._access = access = ReplicaAccess(options)
        keys = GroupKeys(options.replica_group, options.replica_member, self.addresses)
        settings = Settings(
            lease=options.replica_lease,
            replica_timeout=options.replica_timeout,
            min_copies=options.min_copies,
            synced=options.replica_ack == "synced",
        )
        self.automaton = Automaton(settings, self.file.directory(), self._loop.time())
        self.obstacles = Obstacles(self.automaton, options.replica_group, options.replica_lease)
        performing = Performing(self.automaton, self.ended, self.fence)
        self.perform = performing.perform
        self.etcd = EtcdActions(
            new_client(options), keys, options.replica_lease, self._member_key, self.perform
        )
        stream = StreamReports(self)
        self.standby = Standby(
            options, self.automaton.me, stream, self.file.stored.doubtful, torn=self.file.stored.torn
        )
        self.doubts = Doubts(self)
        self.leadership = leadership = Leadership(self)
        self.opening = opening = Opening(self, access)
        self._tick_timer: asyncio.TimerHandle | None = None
        handlers: dict[type, Callable[[Any], None]] = {
            actions.Connect: stream.connect,
            actions.DropStream: stream.drop,
            actions.Fetch: stream.fetch,
            actions.Acknowledge: stream.acknowledge,
            actions.Unsettle: lambda _: self._note_settled(False),
            actions.Settle: lambda _: self._note_settled(True),
            actions.OpenDirectory: opening.open_directory,
            actions.Serve: opening.serve,
            actions.SendHeartbeat: lambda _: None,  # the recorder sends them
            actions.SendHandover: leadership.send_handover,
            actions.Disconnect: leadership.disconnect,
            actions.Release: leadership.release,
            actions.RefusePublishes: leadership.refuse_publishes,
            actions.AcceptPublishes: leadership.accept_publishes,
            actions.Fence: self.fence,
        }
        performing.handle(handlers, self._ask)

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
                    self._note_founded()
                return
            except EtcdError as error:
                if str(error) != self.etcd.problem:
                    logger.warning("REPLICA: the group cannot be founded yet: %s", error)
                self.etcd.problem = str(error)
                await asyncio.sleep(FOUND_AGAIN)

    def _note_founded(self) -> None:
        self.automaton.directory.belongs = True
        try:
            self.file.belong()
        except OSError as error:
            self.fail(StartError(f"{self.file.path} cannot be written - {error}"))

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
        await self.opening.cancel()
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
            if not self.doubts.paths:
                # Also what an earlier process wrote, which may be in the memory of the system alone.
                await asyncio.to_thread(sync_everything, self.directory)
                self.file.stop_cleanly()
                return True
        except FsyncFailed as error:
            logger.error("REPLICA: not everything could be stored: %s", error)
            self.doubts.paths |= error.paths
        except OSError as error:
            logger.error("REPLICA: not everything could be stored: %s", error)
            return False
        self.doubts.note_at_stop(leads=leads)
        return False

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(TICK, self._tick)
        self.doubts.begin_anew()
        now = self._loop.time()
        self.automaton.tick(now)
        self.obstacles.look(now)
        self._check_node()
        self.perform()

    def _ask(self, action: EtcdAction) -> None:
        """Ask etcd, unless the group is another node: then this member must not lead it."""
        self._check_node()
        if self.failure is not None:
            return
        if isinstance(action, actions.Campaign):
            try:
                self.file.write()
            except OSError as error:
                # A winner that cannot write could not open its directory, and no other member could lead.
                now = self._loop.time()
                text = f"{self.file.path} cannot be written, so this member does not lead: {error}"
                self.obstacles.tell(text, now)
                self.automaton.transaction_answered(now, action.number, False, 0)
                return
        self.etcd.ask(self.automaton, action)

    def _check_node(self) -> None:
        state = self.automaton.view.state
        if state is not None and state.node != self.options.node_id and self.failure is None:
            self.fail(
                StartError(
                    f"--node-id is {self.options.node_id}, and the group {self.options.replica_group} is node"
                    f" {state.node}"
                )
            )

    def fail(self, error: StartError) -> None:
        self.failure = error
        self.ended.set()

    @property
    def leading(self) -> Leading | None:
        return self.automaton.leading

    @property
    def serving(self) -> bool:
        """Whether clients find everything here that nsqd has."""
        return self.automaton.state is State.PRIMARY and self.opening.to_clients

    # ---- what the automaton wants

    def _member_key(self) -> MemberKey:
        stored = self.file.stored
        settled = stored.settled and stored.belongs  # only these salvage
        return MemberKey(stored.incarnation, settled, self._progress, self.addresses)

    def _note_settled(self, settled: bool) -> None:
        try:
            self.file.settle(settled, self.automaton.directory.term)
        except OSError as error:
            # What the disk says of the directory would be wrong from here on.
            self.fence(actions.Fence(f"{self.file.path} cannot be written: {error}"))

    def fence(self, action: actions.Fence) -> None:
        """Be another process. Its clients are closed by the kernel, unanswered."""
        if self.stopping:
            self.ended.set()
            return
        logger.warning("REPLICA: this process leads no more: %s", action.reason)
        _flush_log()
        try:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        except OSError as error:  # of a program that was moved away by an upgrade, for one
            logger.critical("REPLICA: %s cannot be started anew: %s", sys.executable, error)
            _flush_log()
            os._exit(1)

    # ---- operators

    def hand_over(self) -> bool:
        self.leadership.write_everything()
        done = self.automaton.hand_over(self._loop.time())
        self.perform()
        return done

    def force(self) -> str:
        """Lead with what this directory has. Returns why not, or nothing."""
        why_not = self.automaton.force(self._loop.time())
        self.perform()
        return why_not


def _flush_log() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
