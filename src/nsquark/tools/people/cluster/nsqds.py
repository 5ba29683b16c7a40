"""The nsqds that a command is about: those given by address, or those that the nsqlookupds know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from nsquark.errors import NsquarkError
from nsquark.http.client.protocol import BadStatus
from nsquark.net.addresses import join_address

from ..failures import Failure, Partial, say
from ..flags.settings import Settings
from .daemons import Daemon

_T = TypeVar("_T")


class Cluster:
    """Answers from many daemons. `troubles` has what some of them did not do, while others did."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lookupds = [Daemon("nsqlookupd", address, settings) for address in settings.lookupd_http]
        self.troubles: list[str] = []
        self._told: set[str] = set()
        # By node: what the nsqlookupds say of its TCP address.
        self._tcp: dict[str, str] = {}

    def trouble(self, error: object) -> None:
        """Tell it at once, and once."""
        text = str(error)
        if text not in self._told:
            self._told.add(text)
            self.troubles.append(text)
            say(f"nsquark: {text}")

    def end(self) -> None:
        """At the end of a command: raises Partial if some daemons have not done their part."""
        if self.troubles:
            raise Partial("; ".join(self.troubles))

    async def nsqds(self, topic: str | None = None) -> list[Daemon]:
        """The nsqds given, or with nsqlookupds those that have the topic, or all. Raises Failure if none."""
        settings = self.settings
        if settings.nsqd_http:
            return [Daemon("nsqd", address, settings) for address in settings.nsqd_http]
        if not self.lookupds:
            raise Failure(
                "this needs nsqd's HTTP address: give --nsqd-http or --lookupd-http beside --nsqd-tcp"
            )
        query = {"topic": topic} if topic is not None else {}
        producers: dict[str, str] = {}
        for answer in await self.ask_lookupds("/lookup" if topic is not None else "/nodes", **query):
            try:
                for each in answer.get("producers") or ():
                    host = str(each["broadcast_address"])
                    producers[join_address(host, each["http_port"])] = join_address(host, each["tcp_port"])
            except (KeyError, TypeError):
                raise Failure(f"{self.lookupds[0]} does not answer as an nsqlookupd does") from None
        if not producers:
            where = ", ".join(each.address for each in self.lookupds)
            what = f"topic {topic!r}" if topic is not None else "any nsqd"
            raise Failure(f"nsqlookupd {where} does not know {what}")
        self._tcp.update(producers)
        return [Daemon("nsqd", address, settings) for address in sorted(producers)]

    async def tcp_addresses(self, topic: str | None = None) -> list[str]:
        """Where the nsqds take TCP connections."""
        if self.settings.nsqd_tcp:
            return list(self.settings.nsqd_tcp)
        nsqds = await self.nsqds(topic)
        known = [self._tcp.get(each.address) for each in nsqds]
        if all(known):
            return [each for each in known if each]
        return [address for _, address in await self.on_each(nsqds, lambda nsqd: nsqd.tcp_address())]

    async def ask_lookupds(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """What the nsqlookupds answer, but for those that do not know the topic.

        Raises Unreachable if none answers.
        """
        answers = await asyncio.gather(
            *(each.get(path, **query) for each in self.lookupds), return_exceptions=True
        )
        found = [answer for answer in answers if isinstance(answer, dict)]
        unreachable = [
            answer for answer in answers if isinstance(answer, NsquarkError) and not _is_404(answer)
        ]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NsquarkError):
                raise answer
        if len(unreachable) == len(self.lookupds):
            raise unreachable[0]
        for error in unreachable:
            self.trouble(error)
        return found

    async def on_each(
        self, nsqds: Sequence[Daemon], call: Callable[[Daemon], Awaitable[_T]]
    ) -> list[tuple[Daemon, _T]]:
        """The answers of those that answer. Raises the first error if none does."""
        answers = await asyncio.gather(*(call(each) for each in nsqds), return_exceptions=True)
        found: list[tuple[Daemon, _T]] = []
        errors: list[NsquarkError] = []
        for nsqd, answer in zip(nsqds, answers, strict=True):
            if isinstance(answer, NsquarkError):
                errors.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append((nsqd, answer))
        if errors and not found:
            raise errors[0]
        for error in errors:
            self.trouble(error)
        return found

    async def where_there(
        self, nsqds: Sequence[Daemon], call: Callable[[Daemon], Awaitable[_T]], what: str
    ) -> list[tuple[Daemon, _T]]:
        """As `on_each`, but for nsqds that answer 404, and for standbys of replica groups.

        Raises Failure, which names `what`, if none is left.
        """
        missing = object()

        async def marked(nsqd: Daemon) -> object:
            try:
                return await call(nsqd)
            except BadStatus as error:
                if _is_404(error) or error.message == "NOT_PRIMARY":
                    return missing
                raise Failure(f"{nsqd}: {explain(error)}") from None

        found = await self.on_each(nsqds, marked)
        there: list[tuple[Daemon, Any]] = [(nsqd, answer) for nsqd, answer in found if answer is not missing]
        if not there:
            where = nsqds[0].address if len(nsqds) == 1 else f"{len(nsqds)} nsqds"
            raise Failure(f"there is no {what} at {where}")
        return there

    async def stats(
        self, nsqds: Sequence[Daemon], topic: str | None = None, channel: str | None = None
    ) -> list[tuple[Daemon, dict[str, Any]]]:
        async def ask(nsqd: Daemon) -> dict[str, Any]:
            answer = await nsqd.get(
                "/stats",
                format="json",
                topic=topic,
                channel=channel,
                include_clients="false",
                include_mem="false",
            )
            if not isinstance(answer, dict) or "topics" not in answer:
                raise Failure(f"{nsqd} does not answer as an nsqd does")
            return answer

        return await self.on_each(nsqds, ask)


def _is_404(error: BaseException) -> bool:
    return isinstance(error, BadStatus) and error.status == 404


def explain(error: BadStatus) -> str:
    """What a daemon has refused, in its own code and, where it tells, with the reason."""
    reason = error.details.get("reason")
    return f"{error.message or error.status}" + (f": {reason}" if reason else "")
