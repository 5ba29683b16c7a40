"""A member that has won a term: its directory is opened as at any start of nsqd, and then served."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nsquark.cli.flags import StartError
from nsquark.nsqd.storage import node as node_file

from ..automaton import actions
from ..automaton.states import State
from ..changes.access import ReplicaAccess
from ..changes.follower_routes import ReplicaApi
from ..copy.warm_copy import sync_everything
from .group_routes import GroupApi, metrics, summary

if TYPE_CHECKING:
    from .member import Member

logger = logging.getLogger(__name__)


class Opening:
    """Opens the directory of a member, first to the other members, then to clients."""

    def __init__(self, member: Member, access: ReplicaAccess) -> None:
        self.to_clients = False  # they find everything here that nsqd has
        self._member = member
        self._access = access
        self._task: asyncio.Task[None] | None = None

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def open_directory(self, action: actions.OpenDirectory) -> None:
        self._task = asyncio.create_task(self._open(action))

    async def _open(self, action: actions.OpenDirectory) -> None:
        member = self._member
        server, synced = member.server, member.options.replica_ack == "synced"
        logger.info("REPLICA: leading term %d", action.term)
        try:
            # What a killed nsqd has left is not synced either before it is opened.
            await member.standby.close(sync_files=synced)
            await member.doubts.store()
            raise_term(member.directory, action.term)
            member.file.settle(True, action.term)
            server.load()
            broker = server.broker
            broker.group_status, broker.group_metrics = partial(summary, member), partial(metrics, member)
            if action.new_epochs:
                for topic in broker.topics.values():
                    topic.begin_epoch()
                logger.warning("REPLICA: messages may have been lost, so every log has a new epoch")
            if synced:
                await asyncio.to_thread(sync_everything, member.directory)
        except StartError as error:
            member.fail(error)
            return
        except Exception as error:
            # Whatever it is: a primary that cannot serve must not keep the others from it.
            if not isinstance(error, OSError):
                logger.exception("REPLICA: the directory cannot be opened")
            member.fail(StartError(f"the directory cannot be opened to lead the group - {error}"))
            return
        member.doubts.directory_opened()
        if member.automaton.state is not State.PRIMARY:
            return
        broker.recorder.record_always(member.leadership.flushed, touched=synced, wake=broker.turn.copies_wait)
        broker.turn.send_copies = broker.recorder.flush_if_changed
        api = GroupApi(member, self._access).router()
        self._replica_api().add_to(api)
        await server.serve_http(api)
        member.automaton.directory_opened(asyncio.get_running_loop().time())
        member.perform()

    def _replica_api(self) -> ReplicaApi:
        broker = self._member.server.broker
        return ReplicaApi(
            broker.recorder, broker.data_path, self._access, broker.node.uuid, self._member.leadership
        )

    def serve(self, _action: actions.Serve) -> None:
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        member = self._member
        api = member.server.api()
        GroupApi(member, self._access).add_to(api)
        self._replica_api().add_to(api)
        try:
            await member.server.serve_http(api)
            await member.server.serve_tcp()
        except OSError as error:
            member.fail(StartError(f"clients cannot be served - {error}"))
            return
        self.to_clients = True
        logger.info("REPLICA: serving term %d", member.leading.term if member.leading else 0)


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
