"""The automaton's questions to etcd, asked; the answers go back to the automaton."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from nsquark.cli.flags import StartError
from nsquark.errors import UsageError
from nsquark.nsqd.options import Options

from ..automaton.actions import (
    Announce,
    Campaign,
    ChangeIsr,
    OpenSession,
    ReadGroup,
    Reclaim,
    RenewSession,
    Resign,
)
from ..automaton.automaton import Automaton
from ..automaton.group import BadGroup, GroupState, MemberKey
from .client import EtcdClient, EtcdError, LeaseNotFound
from .group_keys import GroupKeys
from .transactions import Transaction

logger = logging.getLogger(__name__)

TIMEOUT = 1.0  # seconds that etcd has for an answer

EtcdAction = OpenSession | RenewSession | Announce | ReadGroup | Campaign | ChangeIsr | Reclaim | Resign


def new_client(options: Options) -> EtcdClient:
    """The client that the flags describe. Raises StartError."""
    password = ""
    try:
        tls = _tls(options)
        if options.replica_etcd_password_file:
            password = Path(options.replica_etcd_password_file).read_text().strip()
        return EtcdClient(
            options.replica_etcd,
            timeout=TIMEOUT,
            username=options.replica_etcd_user,
            password=password,
            tls=tls,
        )
    except UsageError as error:
        raise StartError(f"--replica-etcd: {error}") from None
    except (OSError, ValueError, ssl.SSLError) as error:
        raise StartError(f"etcd cannot be reached as the flags say - {error}") from None


def _tls(options: Options) -> ssl.SSLContext | None:
    """What https needs, if an address of etcd begins so. Raises OSError and ValueError."""
    if not any(each.startswith("https://") for each in options.replica_etcd):
        return None
    tls = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
    if options.tls_cert:
        tls.load_cert_chain(options.tls_cert, options.tls_key or None)
    return tls


class EtcdActions:
    """Asks each question in a task. `problem` says why etcd has not answered the last."""

    def __init__(
        self,
        client: EtcdClient,
        keys: GroupKeys,
        lease: float,
        member_key: Callable[[], MemberKey],
        perform: Callable[[], None],
    ) -> None:
        """`perform` is called after each answer, to do what the automaton wants then."""
        self.problem = ""
        self._client = client
        self._keys = keys
        self._lease = lease
        self._member_key = member_key
        self._perform = perform
        self._tasks: set[asyncio.Task[None]] = set()

    def reload(self, options: Options) -> None:
        """Read the certificates again. If they are wrong, those that are known stay."""
        try:
            tls = _tls(options)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            logger.error("REPLICA: the certificates for etcd stay, the new ones are no good: %s", error)
            return
        if tls is not None:
            self._client.use_tls(tls)

    async def found(self, state: GroupState) -> bool:
        """Found the group, unless etcd knows it. Whether it was founded now. Raises EtcdError."""
        return (await self._client.commit(self._keys.bootstrap(state))).succeeded

    def ask(self, automaton: Automaton, action: EtcdAction) -> None:
        task = asyncio.create_task(self._ask(automaton, action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, automaton: Automaton, action: EtcdAction) -> None:
        now = asyncio.get_running_loop().time
        try:
            if isinstance(action, OpenSession):
                lease = await self._client.grant(self._lease)
                opening = self._keys.open_session(self._member_key(), lease, action.seen)
                answer = await self._client.commit(opening)
                if answer.succeeded:
                    automaton.session_opened(now(), action.number, lease, answer.revision)
                else:
                    automaton.request_failed(now(), action.number)
                    automaton.group_read(now(), 0, self._keys.parse(answer))
            elif isinstance(action, RenewSession):
                if await self._client.keep_alive(action.lease):
                    automaton.session_renewed(now(), action.number)
                else:
                    automaton.session_lost(now(), action.number)
            elif isinstance(action, Announce):
                await self._client.commit(self._keys.announce(self._member_key(), action.lease))
            elif isinstance(action, ReadGroup):
                answer = await self._client.range(self._keys.root)
                automaton.group_read(now(), action.number, self._keys.parse(answer))
            else:
                answer = await self._client.commit(self._transaction(action))
                view = None if answer.succeeded else self._keys.parse(answer)
                automaton.transaction_answered(now(), action.number, answer.succeeded, answer.revision, view)
            self.problem = ""
        except Exception as error:
            # Whatever it is, the automaton hears that there is no answer: it waits for each.
            if not isinstance(error, EtcdError | BadGroup):
                logger.exception("REPLICA: a question to etcd has failed")
            elif not self.problem:
                logger.warning("REPLICA: %s", error)
            self.problem = str(error)
            if isinstance(action, RenewSession) and isinstance(error, LeaseNotFound):
                automaton.session_lost(now(), action.number)
            elif not isinstance(action, Announce):
                automaton.request_failed(now(), action.number)
        self._perform()

    def _transaction(self, action: Campaign | ChangeIsr | Reclaim | Resign) -> Transaction:
        if isinstance(action, Campaign):
            return self._keys.campaign(action)
        if isinstance(action, ChangeIsr):
            return self._keys.change_isr(action)
        if isinstance(action, Reclaim):
            return self._keys.reclaim(action)
        return self._keys.resign(action)

    async def close(self, lease: int) -> None:
        """End the session, so that others need not wait for it to end by itself."""
        for task in list(self._tasks):
            task.cancel()
        if lease:
            try:
                async with asyncio.timeout(TIMEOUT):
                    await self._client.revoke(lease)
            except (EtcdError, TimeoutError) as error:
                logger.warning("REPLICA: the session with etcd was not ended: %s", error)
        self._client.close()
