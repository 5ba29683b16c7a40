"""The client of nsqd's staged publishing: tasks put, the driver publishes or aborts.

Every request may be repeated: puts are numbered, and a batch that is published is known. So a lost answer, or
an nsqd that is being restarted, is waited out.
"""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from nsquark.errors import NsquarkError

from .errors import BadAnswer, OptionError, Refused, Unreachable
from .greeting import http_url
from .http import Access
from .sink_options import SinkOptions

_T = TypeVar("_T")


@dataclass(frozen=True)
class Staged:
    """What a task has put, as the driver must name it."""

    app: str
    batch: int
    partition: int
    attempt: str
    messages: int


class NotStaged(NsquarkError):
    """What was staged is not what is to be published."""


def nsqd_url(options: SinkOptions) -> str:
    """Where the one nsqd has its HTTP API. Raises Unreachable or OptionError."""
    addresses = options.addresses
    if addresses.nsqd_http:
        return addresses.nsqd_http[0]
    url = http_url(addresses.nsqd_tcp[0], addresses.access)
    if not url:
        raise _no_staging(addresses.nsqd_tcp[0])
    return url


def _no_staging(where: str) -> OptionError:
    return OptionError(
        "deliveryMode", f"exactlyOnce needs nsquark's nsqd, and {where} has no staged publishing"
    )


class StagedClient:
    """Requests to one nsqd, one after the other."""

    def __init__(self, url: str, access: Access, retries: int, retry_interval: float) -> None:
        self._url = url
        self._access = access
        self._retries = retries
        self._interval = retry_interval
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> StagedClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, path: str, query: dict[str, object], body: bytes = b"", method: str = "POST") -> Any:
        """The JSON of the answer. Raises Refused, OptionError, BadAnswer, and Unreachable in the end."""
        target = f"{path}?{urlencode(query)}"
        return self._patiently(lambda: self._ask(method, path, target, body))

    def _patiently(self, work: Callable[[], _T]) -> _T:
        for left in range(self._retries, -1, -1):
            try:
                return work()
            except Unreachable:
                if not left:
                    raise
            time.sleep(self._interval)
        raise AssertionError("unreachable")

    def _ask(self, method: str, path: str, target: str, body: bytes) -> Any:
        if self._connection is None:
            self._connection = _connect(self._url, self._access)
        headers = {"Authorization": f"Bearer {self._access.secret}"} if self._access.secret else {}
        try:
            self._connection.request(method, target, body, headers)
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._close()
            why = str(error) or type(error).__name__
            raise Unreachable(f"{self._url} cannot be reached: {why}") from None
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if response.status == 200 and isinstance(answer, dict):
            return answer
        message = str(answer.get("message", "")) if isinstance(answer, dict) else ""
        if response.status == 503:  # the disk is full, or it is about to stop: it may pass
            raise Unreachable(f"{self._url}{path}: {message}")
        if response.status in (404, 405) and message in ("NOT_FOUND", "METHOD_NOT_ALLOWED", ""):
            raise _no_staging(self._url)
        if response.status == 200:
            raise BadAnswer(f"{self._url}{path}: the answer is no JSON")
        raise Refused(self._url + path, response.status, message, {})

    def check(self) -> None:
        """Raises OptionError if this nsqd cannot do it."""
        self.ask("/staged", {"app": "-"}, method="GET")

    def publish(self, staged: Sequence[Staged]) -> dict[str, Any]:
        """Publish what tasks have staged as one batch; at least one of them has."""
        partitions = [
            {"partition": each.partition, "attempt": each.attempt, "messages": each.messages}
            for each in staged
        ]
        first = staged[0]
        body = json.dumps({"partitions": partitions}).encode()
        try:
            answer: dict[str, Any] = self.ask(
                "/staged/publish", {"app": first.app, "batch": first.batch}, body
            )
        except Refused as error:
            if error.message in ("STAGE_NOT_FOUND", "STAGE_INCOMPLETE"):
                raise NotStaged(
                    f"{self._url} does not have all of batch {first.batch} of {first.app!r} any more: "
                    f"{error.message}; it must be written again"
                ) from None
            raise
        return answer

    def abort(self, app: str, batch: int) -> None:
        self.ask("/staged/abort", {"app": app, "batch": batch})


def _connect(url: str, access: Access) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=access.timeout, context=access.ssl_context()
        )
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=access.timeout)


class Attempt:
    """What one task puts. Its name is of this attempt alone, so that nobody adds to another's."""

    def __init__(self, client: StagedClient, app: str, batch: int, partition: int) -> None:
        self._client = client
        self._app = app
        self._batch = batch
        self._partition = partition
        self._attempt = uuid.uuid4().hex
        self._seq = 0
        self._messages = 0
        self.known = False  # the batch was published before: there is no need to put more

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
        return Staged(self._app, self._batch, self._partition, self._attempt, self._messages)
