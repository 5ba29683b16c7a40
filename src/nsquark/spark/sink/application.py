"""A batch that is staged at any number of nsqds and published once: the driver's part, and where tasks put.

Each application has a home, one of its nsqds, which decides. A commit is:

1. every nsqd that was put to, other than the home, promises to keep what is to be published there;
2. the home publishes its own part, and keeps with it a note of what the others are to publish;
3. the others publish what the note says.

Until the home has written that down, nothing is published anywhere, and a replay may stage other rows in
other places. From then on the note says what the batch is: a replay reads it, whatever it has staged itself,
and does what is left of the third step. All nsqds know where the home is, so it is found again though the
list has changed, and where it cannot be found or asked, nothing is published.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from nsquark.errors import NsquarkError

from ..errors import BadAnswer, Refused, Unreachable
from ..nsqd_urls import https_instead
from .nsqds import find_http
from .options import SinkOptions
from .staging_client import Attempt, Home, Staged, StagedClient, State, no_staging, patiently

logger = logging.getLogger(__name__)

_AT_ONCE = 16
_T = TypeVar("_T")
_R = TypeVar("_R")


class NotExact(NsquarkError):
    """It cannot be told whether a batch was published before."""


class Member(NamedTuple):
    """An nsqd that answers."""

    client: StagedClient
    state: State


class Committed(NamedTuple):
    """A batch that is published."""

    known: bool  # it was so before
    messages: int  # as far as that is still known


class Application:
    def __init__(self, options: SinkOptions, app: str, lasting: bool = True, begins: bool = True) -> None:
        """`lasting`: others may write under this name later; `begins`: whatever its number, a batch of an
        application that no nsqd has heard of is its first."""
        self._options = options
        self._app = app
        self._lasting = lasting
        self._begins = begins

    def _client(self, url: str, patient: bool = True) -> StagedClient:
        options = self._options
        if not url:
            raise no_staging(", ".join(options.addresses.nsqd_tcp))
        retries = options.retries if patient else 0
        return StagedClient(url, options.addresses.access, retries, options.retry_interval)

    # ---- tasks

    def check(self) -> None:
        """Raises OptionError if an nsqd cannot do it, and Unreachable if none is there."""

        def any_is_there() -> None:
            members, problems = self._ask_all()
            if not members:
                raise Unreachable("; ".join(problems))

        patiently(self._options.retries, self._options.retry_interval, any_is_there)

    def attempt(self, batch: int, partition: int) -> Attempt:
        """For a task: at one of the nsqds that are there, tasks at all of them in turn."""

        def begin() -> Attempt:
            urls, problems = find_http(self._options.addresses)
            for number in range(len(urls)):
                try:
                    client, state = self._reach(urls[(partition + number) % len(urls)])
                    return Attempt(client, state, self._app, batch, partition)
                except Unreachable as error:
                    problems.append(str(error))
            raise Unreachable("; ".join(problems))

        return patiently(self._options.retries, self._options.retry_interval, begin)

    # ---- the driver

    def commit(self, batch: int, staged: Sequence[Staged]) -> Committed:
        """Publish what these tasks have staged, wherever that is, unless the batch was published before."""
        there = [each for each in staged if each.messages]
        if not there and not self._lasting:
            return Committed(False, 0)
        home = self._settled_home(batch)
        if not there and batch > home.state.last:
            return Committed(False, 0)
        own = [each for each in there if each.node == home.state.node]
        others = _by_node(each for each in there if each.node != home.state.node)
        if batch > home.state.last:
            where = Home(home.state.node, home.client.url)
            self._each(others, lambda parts: self._at(parts).prepare(self._app, batch, where, parts))
        answer = home.client.publish(self._app, batch, own, _pack(others))
        decided = _parse(self._app, batch, answer["note"])
        self._each(decided, lambda parts: self._at(parts).publish(self._app, batch, parts))
        elsewhere = sum(each.messages for parts in decided.values() for each in parts)
        return Committed(bool(answer["known"]), (answer["messages"] or 0) + elsewhere)

    def abort(self, batch: int, staged: Sequence[Staged]) -> None:
        """Let go of what was staged, unless that is what the home has decided on in an earlier try."""
        home = self._settled_home(batch)
        if batch > home.state.last:
            self._each(
                _by_node(each for each in staged if each.messages),
                lambda parts: self._client(parts[0].url).abort(self._app, batch),
            )

    def _at(self, parts: Sequence[Staged]) -> StagedClient:
        """The nsqd that has these; it may have moved since they were put."""
        wanted = parts[0]
        client = self._client(wanted.url)
        try:
            if client.state(self._app).node == wanted.node:
                return client
        except Unreachable:
            pass
        members, _ = self._ask_all()
        if wanted.node in members:
            return self._client(members[wanted.node].client.url)
        raise Unreachable(
            f"nsqd {wanted.node}, where a part of batch {wanted.batch} of {self._app!r} is staged, "
            f"is neither at {wanted.url} nor among those that are given"
        )

    # ---- the home

    def _settled_home(self, batch: int) -> Member:
        options = self._options
        return patiently(options.retries, options.retry_interval, lambda: self._find_home(batch))

    def _find_home(self, batch: int) -> Member:
        members, problems = self._ask_all()
        homes = {each.state.home for each in members.values() if each.state.home is not None}
        if len({home.node for home in homes}) > 1:
            urls = " and ".join(sorted(home.url for home in homes))
            raise NotExact(f"application {self._app!r} has two homes, {urls}: give it a new 'txnAppId'")
        if homes:
            home = self._known_home(homes.pop(), members)
        elif not members or (problems and self._lasting):  # one of those may know better
            raise Unreachable("; ".join(problems))
        else:
            home = self._new_home(batch, members)
        if any(each.state.last > home.state.last for each in members.values()):
            raise NotExact(
                f"{home.client.url} decides for application {self._app!r}, and others have published more "
                "than it knows of; give it a new 'txnAppId' to begin anew"
            )
        self._write_down(home, batch, members.values())
        return home

    def _known_home(self, home: Home, members: dict[str, Member]) -> Member:
        found = members.get(home.node)
        if found is None:
            try:
                found = self._reach(home.url)
            except Unreachable as error:
                raise Unreachable(f"{error}; it decides for application {self._app!r}") from None
        # It knew before anybody else did. If it does not, its disk is gone, or that was too long ago.
        if found.state.node != home.node or found.state.home is None:
            raise NotExact(
                f"{found.client.url} does not know any more which batches of {self._app!r} are published; "
                "give it a new 'txnAppId' to begin anew"
            )
        return found

    def _new_home(self, batch: int, members: dict[str, Member]) -> Member:
        last = max(each.state.last for each in members.values())
        if last < 0 and batch > 0 and not self._begins:
            urls = ", ".join(each.client.url for each in members.values())
            raise NotExact(
                f"option 'deliveryMode': batch {batch} of query {self._app} may have been published before, "
                f"and it is not known at {urls}; list an nsqd that knows it, or give a new 'txnAppId'"
            )
        among = [each for each in members.values() if each.state.last == last]
        return min(among, key=lambda each: hashlib.sha1(f"{self._app} {each.state.node}".encode()).digest())

    def _write_down(self, home: Member, batch: int, members: Iterable[Member]) -> None:
        """Let all that are there know the home, itself first."""
        if not self._lasting:
            return
        where = Home(home.state.node, home.client.url)
        if home.state.home != where:
            home.client.prepare(self._app, batch, where)
        for each in members:
            if each.state.home != where and each.state.node != where.node:
                each.client.prepare(self._app, batch, where)

    # ---- asking

    def _ask_all(self) -> tuple[dict[str, Member], list[str]]:
        """Those that are there, by id, and what is wrong with the others."""
        urls, problems = find_http(self._options.addresses)
        members: dict[str, Member] = {}

        def reach(url: str) -> Member | Unreachable:
            try:
                return self._reach(url)
            except Unreachable as error:
                return error

        for found in _at_once(reach, urls):
            if isinstance(found, Member):
                members[found.state.node] = found
            else:
                problems.append(str(found))
        return members, problems

    def _reach(self, url: str) -> Member:
        """Raises Unreachable, Refused, BadAnswer, or OptionError if it has no staged publishing."""
        try:
            state = self._client(url, patient=False).state(self._app)
        except Refused as error:
            url = https_instead(url, error)
            if not url:
                raise
            state = self._client(url, patient=False).state(self._app)
        return Member(self._client(url), state)

    @staticmethod
    def _each(parts: dict[str, list[Staged]], work: Callable[[list[Staged]], object]) -> None:
        _at_once(work, list(parts.values()))


def _at_once(work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), "staged") as pool:
        return list(pool.map(work, items))


def _by_node(staged: Iterable[Staged]) -> dict[str, list[Staged]]:
    found: dict[str, list[Staged]] = {}
    for each in staged:
        found.setdefault(each.node, []).append(each)
    return found


def _pack(others: dict[str, list[Staged]]) -> str:
    """The note: `{"<id of nsqd>": ["<url>", [[partition, attempt, messages], …]]}`."""
    if not others:
        return ""
    return json.dumps(
        {
            node: [parts[0].url, [[each.partition, each.attempt, each.messages] for each in parts]]
            for node, parts in others.items()
        },
        separators=(",", ":"),
    )


def _parse(app: str, batch: int, note: str) -> dict[str, list[Staged]]:
    try:
        return {
            node: [
                Staged(app, batch, int(partition), str(attempt), int(messages), node, str(url))
                for partition, attempt, messages in parts
            ]
            for node, (url, parts) in (json.loads(note) if note else {}).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise BadAnswer(f"what is noted with batch {batch} of {app!r} is not ours: {note[:100]!r}") from None
