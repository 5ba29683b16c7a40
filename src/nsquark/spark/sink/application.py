"""Publishing a batch once that is staged at any number of nsqds.

Each application has a home: one of its nsqds, which decides. A commit has three steps:

1. Every nsqd with a part of the batch, other than the home, promises to keep its part.
2. The home publishes its own part. With it the home keeps a note of the parts that the others must publish.
3. The others publish the parts in the note.

Until the home has written its decision down, nothing is published anywhere, and a replay may stage other rows
at other nsqds. From then on the note says what the batch is. A replay reads the note, ignores what it has
staged itself, and does what is left of the third step.

All nsqds of an application know its home, so a driver finds the home again even if the list of nsqds has
changed. If the driver cannot find the home, or cannot ask it, nothing is published.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from nsquark.errors import NsquarkError

from ..errors import BadResponse, RequestRefused, Unreachable
from ..nsqd_urls import https_url_in
from ..parallel import call_each
from .nsqds import find_http_urls
from .options import SinkOptions
from .staging_client import (
    AppState,
    Home,
    StagedPart,
    StagingClient,
    TaskAttempt,
    retry_unreachable,
    staging_unsupported,
)

_T = TypeVar("_T")
_PartsByNode = dict[str, list[StagedPart]]


class OutcomeNotKnown(NsquarkError):
    """Whether a batch was published before cannot be found out."""


class Member(NamedTuple):
    """An nsqd of the application that answers."""

    client: StagingClient
    state: AppState

    @property
    def home(self) -> Home:
        """This nsqd as a home."""
        return Home(self.state.node, self.client.url)


class CommitResult(NamedTuple):
    known: bool  # the batch was published before
    messages: int  # of the batch, as far as the nsqds still know


class Application:
    def __init__(self, options: SinkOptions, app: str, lasting: bool = True, may_begin: bool = True) -> None:
        """`lasting`: later writes may use the same name, so the nsqds must remember the home.

        `may_begin`: a batch of any number may be the first. If not, and no nsqd knows the application, only
        batch 0 is taken for the first one.
        """
        self._options = options
        self._app = app
        self._lasting = lasting
        self._may_begin = may_begin

    # ---- for tasks

    def check(self) -> None:
        """Raise OptionError if an nsqd has no staged publishing, and Unreachable if no nsqd answers."""

        def check_any_answers() -> None:
            members, problems = self._ask_all()
            if not members:
                raise Unreachable("; ".join(problems))

        self._retry(check_any_answers)

    def begin_attempt(self, batch: int, partition: int) -> TaskAttempt:
        """Begin to put messages at one of the nsqds that answer. Partitions take turns over the nsqds."""

        def begin() -> TaskAttempt:
            urls, problems = find_http_urls(self._options.addresses)
            for number in range(len(urls)):
                try:
                    client, state = self._reach(urls[(partition + number) % len(urls)])
                    return TaskAttempt(client, state, self._app, batch, partition, self._options.window_bytes)
                except Unreachable as error:
                    problems.append(str(error))
            raise Unreachable("; ".join(problems))

        return self._retry(begin)

    # ---- for the driver

    def commit(self, batch: int, parts: Sequence[StagedPart]) -> CommitResult:
        """Publish the parts, at whichever nsqds they are, unless the batch was published before."""
        filled = [each for each in parts if each.messages]
        if not filled and not self._lasting:
            return CommitResult(False, 0)
        home = self._agreed_home(batch)
        is_new = batch > home.state.last_batch
        if not filled and is_new:
            return CommitResult(False, 0)
        own = [each for each in filled if each.node == home.state.node]
        others = _by_node(each for each in filled if each.node != home.state.node)
        if is_new:
            _at_each(others, lambda each: self._client_of(each).prepare(self._app, batch, home.home, each))
        answer = home.client.publish(self._app, batch, own, _pack_note(others))
        decided = _parse_note(self._app, batch, answer["note"])
        _at_each(decided, lambda each: self._client_of(each).publish(self._app, batch, each))
        elsewhere = sum(each.messages for parts in decided.values() for each in parts)
        return CommitResult(bool(answer["known"]), (answer["messages"] or 0) + elsewhere)

    def abort(self, batch: int, parts: Sequence[StagedPart]) -> None:
        """Drop the parts, unless the home has decided on the batch in an earlier try."""
        home = self._agreed_home(batch)
        if batch > home.state.last_batch:
            staged = _by_node(each for each in parts if each.messages)
            _at_each(staged, lambda each: self._client(each[0].url).abort(self._app, batch))

    # ---- the home

    def _agreed_home(self, batch: int) -> Member:
        """The home. All nsqds that answer know it when this returns. Raises OutcomeNotKnown, Unreachable."""
        return self._retry(lambda: self._find_home(batch))

    def _find_home(self, batch: int) -> Member:
        members, problems = self._ask_all()
        homes = {each.state.home for each in members.values() if each.state.home is not None}
        if len({home.node for home in homes}) > 1:
            urls = " and ".join(sorted(home.url for home in homes))
            raise OutcomeNotKnown(
                f"application {self._app!r} has two homes, {urls}: give it a new 'txnAppId'"
            )
        if homes:
            home = self._reach_home(homes.pop(), members)
        elif not members or (problems and self._lasting):  # an nsqd that is away may know the home
            raise Unreachable("; ".join(problems))
        else:
            home = self._choose_home(batch, members)
        if any(each.state.last_batch > home.state.last_batch for each in members.values()):
            raise OutcomeNotKnown(
                f"{home.client.url} decides for application {self._app!r}, and others have published more "
                "than it knows of; give it a new 'txnAppId' to begin anew"
            )
        if self._lasting:
            self._make_known(home, batch, members.values())
        return home

    def _reach_home(self, home: Home, members: dict[str, Member]) -> Member:
        found = members.get(home.node)
        if found is None:
            try:
                found = self._reach(home.url)
            except Unreachable as error:
                raise Unreachable(f"{error}; it decides for application {self._app!r}") from None
        # The home was the first nsqd to know that it is the home. If it has forgotten, its disk was lost, or
        # the application was silent for longer than nsqd remembers.
        if found.state.node != home.node or found.state.home is None:
            raise OutcomeNotKnown(
                f"{found.client.url} does not know any more which batches of {self._app!r} are published; "
                "give it a new 'txnAppId' to begin anew"
            )
        return found

    def _choose_home(self, batch: int, members: dict[str, Member]) -> Member:
        last_batch = max(each.state.last_batch for each in members.values())
        if last_batch < 0 and batch > 0 and not self._may_begin:
            urls = ", ".join(each.client.url for each in members.values())
            raise OutcomeNotKnown(
                f"option 'deliveryMode': batch {batch} of query {self._app} may have been published before, "
                f"and it is not known at {urls}; list an nsqd that knows it, or give a new 'txnAppId'"
            )
        candidates = [each for each in members.values() if each.state.last_batch == last_batch]
        # By a hash, so that the homes of many applications spread over the nsqds.
        return min(
            candidates, key=lambda each: hashlib.sha1(f"{self._app} {each.state.node}".encode()).digest()
        )

    def _make_known(self, home: Member, batch: int, members: Iterable[Member]) -> None:
        """Tell all nsqds that answer which one is the home, the home itself first."""
        for each in (home, *(each for each in members if each.state.node != home.state.node)):
            if each.state.home != home.home:
                each.client.prepare(self._app, batch, home.home)

    # ---- asking nsqds

    def _ask_all(self) -> tuple[dict[str, Member], list[str]]:
        """The nsqds that answer, by id, and the problems of the others."""
        urls, problems = find_http_urls(self._options.addresses)
        members: dict[str, Member] = {}

        def reach(url: str) -> Member | Unreachable:
            try:
                return self._reach(url)
            except Unreachable as error:
                return error

        for found in call_each(reach, urls):
            if isinstance(found, Member):
                members[found.state.node] = found
            else:
                problems.append(str(found))
        return members, problems

    def _reach(self, url: str) -> Member:
        """Ask one nsqd, once.

        Raises Unreachable, RequestRefused, BadResponse, or OptionError if it has no staged publishing.
        """
        try:
            state = self._client(url, retries=0).state(self._app)
        except RequestRefused as error:
            url = https_url_in(error, url)
            if not url:
                raise
            state = self._client(url, retries=0).state(self._app)
        return Member(self._client(url), state)

    def _client_of(self, parts: Sequence[StagedPart]) -> StagingClient:
        """The client of the nsqd that has these parts. The nsqd may have moved since the tasks put them."""
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

    def _client(self, url: str, retries: int | None = None) -> StagingClient:
        options = self._options
        if not url:
            raise staging_unsupported(", ".join(options.addresses.nsqd_tcp))
        retries = options.retries if retries is None else retries
        return StagingClient(url, options.addresses.access, retries, options.retry_interval)

    def _retry(self, work: Callable[[], _T]) -> _T:
        return retry_unreachable(self._options.retries, self._options.retry_interval, work)


def _at_each(parts: _PartsByNode, work: Callable[[list[StagedPart]], object]) -> None:
    """Do something with the parts of each nsqd, at all nsqds at the same time."""
    call_each(work, list(parts.values()))


def _by_node(parts: Iterable[StagedPart]) -> _PartsByNode:
    found: _PartsByNode = {}
    for each in parts:
        found.setdefault(each.node, []).append(each)
    return found


def _pack_note(others: _PartsByNode) -> str:
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


def _parse_note(app: str, batch: int, note: str) -> _PartsByNode:
    try:
        return {
            node: [
                StagedPart(app, batch, int(partition), str(attempt), int(messages), node, str(url))
                for partition, attempt, messages in parts
            ]
            for node, (url, parts) in (json.loads(note) if note else {}).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise BadResponse(
            f"what is noted with batch {batch} of {app!r} is not ours: {note[:100]!r}"
        ) from None
