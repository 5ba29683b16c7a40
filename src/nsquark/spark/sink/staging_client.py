"""The client of one nsqd's staged publishing: tasks put, the driver prepares, publishes or aborts.

Every request may be repeated: puts are numbered, and a batch that is published is known. So a lost answer, or
an nsqd that is being restarted, is waited out.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from nsquark.errors import NsquarkError

from ..errors import BadAnswer, OptionError, Refused, Unreachable
from ..http import Access, fetch

_T = TypeVar("_T")


@dataclass(frozen=True)
class Staged:
    """What a task has put and where, as the driver must name it."""

    app: str
    batch: int
    partition: int
    attempt: str
    messages: int
    node: str = ""  # nowhere, if there are no messages
    url: str = ""


class Home(NamedTuple):
    """The nsqd that decides for an application."""

    node: str
    url: str


class State(NamedTuple):
    """What an nsqd says about itself and an application."""

    node: str
    last: int  # the last batch that is published there, or is being published; -1 for none
    home: Home | None


class NotStaged(NsquarkError):
    """What was staged is not what is to be published."""


def no_staging(where: str) -> OptionError:
    return OptionError(
        "deliveryMode", f"exactlyOnce needs nsquark's nsqd, and {where} has no staged publishing"
    )


def patiently(retries: int, interval: float, work: Callable[[], _T]) -> _T:
    """What `work` comes to, once everybody is there whom it needs. Raises Unreachable in the end."""
    for left in range(retries, -1, -1):
        try:
            return work()
        except Unreachable:
            if not left:
                raise
        time.sleep(interval)
    raise AssertionError("unreachable")


class StagedClient:
    """Requests to one nsqd, one after the other."""

    def __init__(self, url: str, access: Access, retries: int = 0, retry_interval: float = 0.0) -> None:
        self.url = url
        self._access = access
        self._retries = retries
        self._interval = retry_interval

    def ask(self, path: str, query: dict[str, object], body: bytes = b"", method: str = "POST") -> Any:
        """The JSON of the answer. Raises Refused, OptionError, BadAnswer, and Unreachable in the end."""
        return patiently(self._retries, self._interval, lambda: self._ask(path, query, body, method))

    def _ask(self, path: str, query: dict[str, object], body: bytes, method: str) -> Any:
        try:
            answer = fetch(self.url, self._access, path, query, method, body=body)
        except Refused as error:
            if error.status == 503:  # the disk is full, or it is about to stop: it may pass
                raise Unreachable(str(error)) from None
            if error.status in (404, 405) and not error.message.startswith("STAGE_"):
                raise no_staging(self.url) from None
            raise
        if not isinstance(answer, dict):
            raise BadAnswer(f"{self.url}{path}: not an answer of nsqd")
        return answer

    def state(self, app: str) -> State:
        """Raises OptionError if this nsqd has no staged publishing."""
        told = self.ask("/staged", {"app": app}, method="GET")
        try:
            known = told["apps"][0] if told["apps"] else {}
            batches = [known.get(name) for name in ("last_batch", "publishing_batch")]
            home = known.get("home")
            return State(
                told["node"],
                max((int(each) for each in batches if each is not None), default=-1),
                None if home is None else Home(home["node"], home["url"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise BadAnswer(f"{self.url}/staged: not an answer of nsqd") from None

    def prepare(self, app: str, batch: int, home: Home, staged: Sequence[Staged] = ()) -> None:
        """Have it kept until the home has decided; without any, where the home is."""
        query: dict[str, object] = {"app": app, "batch": batch, "home": home.node, "home_url": home.url}
        self._named("/staged/prepare", query, staged)

    def publish(self, app: str, batch: int, staged: Sequence[Staged], note: str = "") -> dict[str, Any]:
        """Publish what tasks have staged here as the batch, unless it is published."""
        return self._named("/staged/publish", {"app": app, "batch": batch}, staged, note)

    def _named(
        self, path: str, query: dict[str, object], staged: Sequence[Staged], note: str = ""
    ) -> dict[str, Any]:
        partitions = [
            {"partition": each.partition, "attempt": each.attempt, "messages": each.messages}
            for each in staged
        ]
        body = json.dumps({"partitions": partitions, "note": note}).encode()
        try:
            answer: dict[str, Any] = self.ask(path, query, body)
        except Refused as error:
            if error.message in ("STAGE_NOT_FOUND", "STAGE_INCOMPLETE"):
                raise NotStaged(
                    f"{self.url} does not have all of batch {query['batch']} of {query['app']!r} any more: "
                    f"{error.message}; it must be written again"
                ) from None
            raise
        return answer

    def abort(self, app: str, batch: int) -> None:
        self.ask("/staged/abort", {"app": app, "batch": batch})


class Attempt:
    """What one task puts. Its name is of this attempt alone, so that nobody adds to another's."""

    def __init__(self, client: StagedClient, state: State, app: str, batch: int, partition: int) -> None:
        self._client = client
        self._node = state.node
        self._app = app
        self._batch = batch
        self._partition = partition
        self._attempt = uuid.uuid4().hex
        self._seq = 0
        self._messages = 0
        self.known = batch <= state.last  # published before: there is no need to put more

    def put(self, topic: str, defer_ms: int, body: bytes, messages: int) -> None:
        query: dict[str, object] = {
            "app": self._app,
            "batch": self._batch,
            "partition": self._partition,
            "attempt": self._attempt,
            "seq": self._seq,
            "topic": topic,
        }
        if defer_ms:
            query["defer"] = defer_ms
        self.known = self._client.ask("/staged/put", query, body)["known"]
        self._seq += 1
        self._messages += messages

    @property
    def staged(self) -> Staged:
        return Staged(
            self._app,
            self._batch,
            self._partition,
            self._attempt,
            self._messages,
            self._node,
            self._client.url,
        )
