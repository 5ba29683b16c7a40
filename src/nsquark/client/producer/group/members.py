"""The addresses of a replica group's members: those given, and with a name those that the nodes tell.

Any nsqlookupd will do: it lists the nodes, and each node's `GET /replica` tells its group and the group's
members. A member that is no primary is registered at no nsqlookupd, so members found once are asked as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nsquark.errors import NsquarkError, UsageError
from nsquark.net.addresses import join_address

from ...addresses import split_address
from ...config import Config
from ...events import DiscoveryFailed, Event
from ...http_api import NsqdHttp, NsqlookupdHttp

logger = logging.getLogger(__name__)

_AT_ONCE = 16  # nodes that are asked at the same time
_ANSWER_WITHIN = 2.0  # seconds for a node
_FORGET_OTHERS = 60.0  # seconds after which a node of another group, or of none, is asked again


class GroupMembers:
    """`addresses` are the TCP addresses known now; `on_change` is called when there are more."""

    def __init__(
        self,
        given: Sequence[str],
        group: str | None,
        lookupds: Sequence[str],
        config: Config,
        emit: Callable[[Event], None],
    ) -> None:
        if lookupds and not group:
            raise UsageError("lookupd finds a replica group by its name: group is missing")
        self.group = group
        self.on_change: Callable[[], None] = lambda: None
        self._given = given
        self._emit = emit
        secret = config.auth_secret
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        headers = self._headers if config.lookupd_authorization else {}
        limit = config.lookupd_poll_timeout or 60.0
        self._tls = config.ssl_context() if lookupds else None
        self._lookupds = {
            each: NsqlookupdHttp(each, timeout=limit, tls=self._tls, headers=headers) for each in lookupds
        }
        self._found: tuple[str, ...] = ()
        self._http: tuple[str, ...] = ()  # the HTTP addresses of members
        self._others: dict[
            str, float
        ] = {}  # HTTP addresses of other nodes, and until when they are left alone

    def __str__(self) -> str:
        if self.group:
            return f"replica group {self.group!r}"
        return f"the replica group of {', '.join(self._given)}"

    @property
    def discovers(self) -> bool:
        return bool(self._lookupds)

    @property
    def addresses(self) -> list[str]:
        return list(dict.fromkeys((*self._given, *self._found)))

    @property
    def sources(self) -> str:
        """Where the members were looked for, for an error without members."""
        return ", ".join(self._lookupds)

    async def refresh(self) -> None:
        """Ask the nsqlookupds and the nodes. If no member answers, the known addresses stay as they are."""
        loop = asyncio.get_running_loop()
        nodes = await self._nodes()
        now = loop.time()
        self._others = {address: until for address, until in self._others.items() if until > now}
        asked = [each for each in dict.fromkeys((*self._http, *nodes)) if each not in self._others]
        gate = asyncio.Semaphore(_AT_ONCE)
        told: list[tuple[list[str], list[str]]] = []

        async def ask(address: str) -> None:
            async with gate:
                answer = await self._replica(address)
            if answer is None:
                return
            if answer.get("group") != self.group:
                self._others[address] = loop.time() + _FORGET_OTHERS
                return
            tcp, http = _addresses(answer, "tcp_address"), _addresses(answer, "http_address")
            told.append((tcp, [*http, address]))
            self._learn((*self._found, *tcp))  # at once: another node may take its time

        await asyncio.gather(*map(ask, asked))
        if told:
            self._learn(address for tcp, _ in told for address in tcp)
            self._http = tuple(dict.fromkeys(address for _, http in told for address in http))

    def _learn(self, addresses: Iterable[str]) -> None:
        before = set(self._found)
        self._found = tuple(dict.fromkeys(addresses))
        if not before.issuperset(self._found):
            self.on_change()

    async def _nodes(self) -> list[str]:
        """The HTTP addresses of all nodes."""
        answers = await asyncio.gather(
            *(each.nodes() for each in self._lookupds.values()), return_exceptions=True
        )
        nodes: list[str] = []
        for lookupd, answer in zip(self._lookupds, answers, strict=True):
            if isinstance(answer, NsquarkError | OSError | UnicodeError):
                logger.warning("nsqlookupd %s: %s", lookupd, answer)
                self._emit(DiscoveryFailed(lookupd, answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                try:
                    nodes += [
                        join_address(str(each["broadcast_address"]), int(each["http_port"]))
                        for each in answer
                    ]
                except (KeyError, TypeError, ValueError, OverflowError) as error:
                    self._emit(DiscoveryFailed(lookupd, error))
        return nodes

    async def _replica(self, address: str) -> dict[str, Any] | None:
        """A node's GET /replica; empty if it has none, None if it could not be asked."""
        try:
            http = NsqdHttp(address, timeout=_ANSWER_WITHIN, tls=self._tls, headers=self._headers)
            return await http.replica()
        except (NsquarkError, OSError, UnicodeError) as error:  # the last: a host name that is none
            logger.debug("%s: %s", address, error)
            return {} if getattr(error, "status", 0) == 404 else None


def _addresses(answer: dict[str, Any], key: str) -> list[str]:
    """The addresses in an answer of GET /replica, without what is none."""
    found = []
    for member in (answer.get("primary"), *(answer.get("members") or ())):
        address = member.get(key) if isinstance(member, dict) else None
        if isinstance(address, str):
            try:
                split_address(address)
            except UsageError:
                continue
            found.append(address)
    return found
