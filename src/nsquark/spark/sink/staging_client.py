"""The client of one nsqd's staged publishing: tasks put messages, the driver prepares, publishes or aborts.

Every request may be repeated, since puts are numbered and nsqd knows a batch that it has published. So the
client sends a request again when an answer is lost or nsqd restarts. For the same reason a task sends puts
without waiting for the answers to earlier ones.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from nsquark.errors import NsquarkError

from ..errors import BadResponse, OptionError, RequestRefused, Unreachable
from ..http import Access, Pipeline, Request, fetch_json

_T = TypeVar("_T")


@dataclass(frozen=True)
class StagedPart:
    """The messages that one task has put, and the nsqd that has them. Tasks send it to the driver."""

    app: str
    batch: int
    partition: int
    attempt: str
    messages: int
    node: str = ""  # the id of the nsqd; empty if there are no messages
    url: str = ""


class Home(NamedTuple):
    """The nsqd that decides for an application."""

    node: str
    url: str


class AppState(NamedTuple):
    """The id of an nsqd, and what it knows about an application."""

    node: str
    last_batch: int  # the last batch that is published there, or is being published; -1 for none
    home: Home | None


class StagedPartMissing(NsquarkError):
    """An nsqd no longer has all messages that tasks have put there."""


def staging_unsupported(where: str) -> OptionError:
    return OptionError(
        "deliveryMode", f"exactlyOnce needs nsquark's nsqd, and {where} has no staged publishing"
    )


def retry_unreachable(retries: int, interval: float, work: Callable[[], _T]) -> _T:
    """Call `work` again while it raises Unreachable; raise the last Unreachable in the end."""
    for left in range(retries, -1, -1):
        try:
            return work()
        except Unreachable:
            if not left:
                raise
        time.sleep(interval)
    raise AssertionError("unreachable")


class StagingClient:
    """Requests to one nsqd, one after another."""

    def __init__(self, url: str, access: Access, retries: int = 0, retry_interval: float = 0.0) -> None:
        self.url = url
        self._access = access
        self._retries = retries
        self._retry_interval = retry_interval

    def request(self, path: str, query: dict[str, object], body: bytes = b"", method: str = "POST") -> Any:
        """The JSON of the response.

        Raises RequestRefused, OptionError if nsqd has no staged publishing, BadResponse, and Unreachable in
        the end.
        """
        return retry_unreachable(
            self._retries, self._retry_interval, lambda: self._request(path, query, body, method)
        )

    def open_pipeline(self) -> Pipeline:
        """Raises Unreachable."""
        return Pipeline(self.url, self._access)

    def _request(self, path: str, query: dict[str, object], body: bytes, method: str) -> Any:
        return self.checked(path, lambda: fetch_json(self.url, self._access, path, query, method, body))

    def checked(self, path: str, ask: Callable[[], Any]) -> dict[str, Any]:
        """What `ask` returns, which is a response to `path`. Raises what `request` raises."""
        try:
            document = ask()
        except RequestRefused as error:
            if error.status == 503:  # the disk is full, or nsqd is about to exit: this may pass
                raise Unreachable(str(error)) from None
            if error.status in (404, 405) and not error.message.startswith("STAGE_"):
                raise staging_unsupported(self.url) from None
            raise
        if not isinstance(document, dict):
            raise BadResponse(f"{self.url}{path}: not an answer of nsqd")
        return document

    def state(self, app: str) -> AppState:
        """Raises OptionError if the nsqd has no staged publishing."""
        document = self.request("/staged", {"app": app}, method="GET")
        try:
            known = document["apps"][0] if document["apps"] else {}
            batches = [known.get(name) for name in ("last_batch", "publishing_batch")]
            home = known.get("home")
            return AppState(
                document["node"],
                max((int(each) for each in batches if each is not None), default=-1),
                None if home is None else Home(home["node"], home["url"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise BadResponse(f"{self.url}/staged: not an answer of nsqd") from None

    def prepare(self, app: str, batch: int, home: Home, parts: Sequence[StagedPart] = ()) -> None:
        """Make the nsqd remember the home, and keep the parts until the home has decided."""
        query: dict[str, object] = {"app": app, "batch": batch, "home": home.node, "home_url": home.url}
        self._send_parts("/staged/prepare", query, parts)

    def publish(self, app: str, batch: int, parts: Sequence[StagedPart], note: str = "") -> dict[str, Any]:
        """Publish the parts as the batch, unless the batch is published."""
        return self._send_parts("/staged/publish", {"app": app, "batch": batch}, parts, note)

    def _send_parts(
        self, path: str, query: dict[str, object], parts: Sequence[StagedPart], note: str = ""
    ) -> dict[str, Any]:
        partitions = [
            {"partition": each.partition, "attempt": each.attempt, "messages": each.messages}
            for each in parts
        ]
        body = json.dumps({"partitions": partitions, "note": note}).encode()
        try:
            document: dict[str, Any] = self.request(path, query, body)
        except RequestRefused as error:
            if error.message in ("STAGE_NOT_FOUND", "STAGE_INCOMPLETE"):
                raise StagedPartMissing(
                    f"{self.url} does not have all of batch {query['batch']} of {query['app']!r} any more: "
                    f"{error.message}; it must be written again"
                ) from None
            raise
        return document

    def abort(self, app: str, batch: int) -> None:
        self.request("/staged/abort", {"app": app, "batch": batch})


class TaskAttempt:
    """One attempt of one task to put its messages. Its name is new, so no two attempts mix their messages.

    Every method raises what `StagingClient.request` raises. `close` it in any case.
    """

    def __init__(
        self,
        client: StagingClient,
        state: AppState,
        app: str,
        batch: int,
        partition: int,
        window_bytes: int = 0,
    ) -> None:
        """`window_bytes` is how many bytes may be without an answer when `put` returns."""
        self._client = client
        self._node = state.node
        self._app = app
        self._batch = batch
        self._partition = partition
        self._attempt = uuid.uuid4().hex
        self._seq = 0
        self._messages = 0
        self.batch_is_known = batch <= state.last_batch  # published before: nothing more needs to be put
        self._window_bytes = window_bytes
        self._pipeline: Pipeline | None = None
        self._unanswered: deque[Request] = deque()
        self._unanswered_bytes = 0

    def put(self, topic: str, defer_ms: int, body: bytes, messages: int) -> None:
        """Put an MPUB body of so many messages. Answers that have come meanwhile set `batch_is_known`."""
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
        request = Request("/staged/put", query, "POST", body)
        self._unanswered.append(request)
        self._unanswered_bytes += len(body)
        self._seq += 1
        self._messages += messages
        try:
            if self._pipeline is None:
                self._pipeline = self._client.open_pipeline()
            self._pipeline.send(request)
        except Unreachable:
            self._send_again()
        self._take_answers(self._window_bytes)

    def _take_answers(self, left_bytes: int) -> None:
        """Wait until not more than so many bytes are without an answer."""
        try:
            while self._unanswered_bytes > left_bytes:
                assert self._pipeline is not None
                pipeline, request = self._pipeline, self._unanswered[0]
                self._answered(self._client.checked(request.path, lambda: pipeline.take_json(request)))  # noqa: B023
        except Unreachable:
            self._send_again()

    def _send_again(self) -> None:
        """Put everything without an answer once more, one after the other. nsqd ignores what it has."""
        self.close()
        while self._unanswered:
            path, query, method, body, _ = self._unanswered[0]
            self._answered(self._client.request(path, dict(query or {}), body, method))

    def _answered(self, document: dict[str, Any]) -> None:
        self.batch_is_known = document["known"]
        self._unanswered_bytes -= len(self._unanswered.popleft().body)

    def close(self) -> None:
        """Wait for nothing more."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()

    def finish(self) -> StagedPart:
        """Wait for all answers. Returns what this attempt has put."""
        self._take_answers(0)
        self.close()
        return StagedPart(
            app=self._app,
            batch=self._batch,
            partition=self._partition,
            attempt=self._attempt,
            messages=self._messages,
            node=self._node,
            url=self._client.url,
        )
