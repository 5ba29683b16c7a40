"""One client for every daemon of the cluster: kept connections, deadlines, the way to https, the secret.

A request goes to `http://<address>`, or to an address that begins with `https://` as it is. An nsqd that
requires TLS answers 403 and its https port; the request is then sent there, and later requests go there at
once.

The secret for `--http-auth` goes to nsqds alone. Before an nsqd gets it for the first time, a `/ping` without
it finds out whether that nsqd requires TLS, so that the secret does not travel in the clear to one that does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlencode

from nsquark.errors import ConnectFailed, ConnectionLost, NsquarkError
from nsquark.gotext import quote
from nsquark.http.client.connection import HungUp, Reply
from nsquark.http.client.pool import BegunRequest, ClientPool, Origin
from nsquark.http.client.protocol import BadStatus, https_url, nsq_headers, pack_request
from nsquark.net.addresses import join_address

from ..fast_json import parse_json
from .addresses import endpoint, is_secure
from .failures import NOT_PRIMARY, Failure

T = TypeVar("T")

NSQD, NSQLOOKUPD = "nsqd", "nsqlookupd"
MAX_ANSWER = 128 << 20
KEPT_CONNECTIONS = 1024
MAX_REMEMBERED = 16384
MAX_PACKED = 4096
PLAIN = 0


@dataclass(frozen=True, slots=True)
class Daemon:
    """What can be asked: its kind, and the address of its HTTP API (see `addresses.endpoint`)."""

    kind: str
    address: str


def nsqd(address: str) -> Daemon:
    return Daemon(NSQD, address)


def nsqlookupd(address: str) -> Daemon:
    return Daemon(NSQLOOKUPD, address)


class Upstream:
    """Made within a running loop. `timeout` is for a whole request, `connect_timeout` for its connection."""

    def __init__(
        self,
        *,
        connect_timeout: float = 2.0,
        timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
        secret: str = "",
    ) -> None:
        self._pool = ClientPool(
            connect_timeout=connect_timeout,
            timeout=timeout,
            keep=KEPT_CONNECTIONS,
            max_body=MAX_ANSWER,
            keep_bodies=True,
            tls=tls,
        )
        self._secret = secret
        # The https port of an nsqd that requires TLS; PLAIN for one that was asked and does not.
        self._https_ports: dict[str, int] = {}

    def close(self) -> None:
        self._pool.close()

    async def ask(
        self,
        daemon: Daemon,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        once: bool = False,
    ) -> bytes:
        """The body of the answer, which is a 200. `path` may have the query already (`with_query`).

        `once` is for what must not be done twice, such as a publish. Raises BadStatus, ConnectFailed,
        ConnectionLost.
        """
        deadline = self._pool.deadline()
        target = with_query(path, query) if query else path
        port = self._https_ports.get(daemon.address, -1)
        if self._secret and daemon.kind == NSQD and port < 0 and not is_secure(daemon.address):
            port = await self._learn_port(daemon.address, deadline)
        secret = self._secret if daemon.kind == NSQD else ""
        try:
            reply = await self._send(daemon.address, port, method, target, body, secret, deadline, once)
        except ConnectFailed:
            self._https_ports.pop(daemon.address, None)  # it may have come back as another
            raise
        if reply.status == 403:
            found = _https_port(reply)
            if found:
                self._remember(daemon.address, found)
                reply = await self._send(daemon.address, found, method, target, body, secret, deadline, once)
        return _good(daemon, path, reply)

    async def get_json(self, daemon: Daemon, path: str, query: Mapping[str, object] | None = None) -> Any:
        """The JSON of the answer. Raises what `ask` raises."""
        return parse_answer(path, await self.ask(daemon, "GET", path, query))

    def begin(self, daemons: Iterable[Daemon], path: str) -> dict[Daemon, BegunRequest]:
        """Send a GET to those daemons to which a connection is kept, now.

        The caller hands what comes back to `get_json_of`, and gives up those that stay in it.
        """
        deadline = self._pool.deadline()
        begun = {}
        for daemon in daemons:
            request = self._begin(daemon, path, deadline)
            if request is not None:
                begun[daemon] = request
        return begun

    async def get_json_of(
        self, daemons: Sequence[Daemon], path: str, begun: dict[Daemon, BegunRequest] | None = None
    ) -> tuple[list[tuple[Daemon, Any]], list[Failure]]:
        """What `each` has for `get_json`, for a handful of daemons whose answers are short.

        The requests go out one right after the other, and the answers are awaited in turn. So only a daemon
        without a kept connection costs a task. Requests of `begun` are taken from it and not sent again.
        """
        deadline = self._pool.deadline()
        waiting: list[BegunRequest | asyncio.Future[Any]] = []
        for daemon in daemons:
            sent = begun.pop(daemon, None) if begun else None
            sent = sent or self._begin(daemon, path, deadline)
            waiting.append(sent or asyncio.ensure_future(self.get_json(daemon, path)))
        answers: list[tuple[Daemon, Any]] = []
        failures: list[Failure] = []
        try:
            for daemon, request in zip(daemons, waiting, strict=True):
                try:
                    if isinstance(request, BegunRequest):
                        answer = await self._end(request, path, daemon)
                    else:
                        answer = await request
                except NsquarkError as error:
                    failures.append(failure_of(daemon, error))
                else:
                    answers.append((daemon, answer))
        except BaseException:  # cancelled: the caller does not wait for the others any more
            for request in waiting:
                if isinstance(request, BegunRequest):
                    request.give_up()
                else:
                    request.cancel()
            raise
        return answers, failures

    def _begin(self, daemon: Daemon, path: str, deadline: float) -> BegunRequest | None:
        """A request that was sent over a kept connection; None where there is more to it."""
        port = self._https_ports.get(daemon.address, -1)
        secret = self._secret if daemon.kind == NSQD else ""
        if secret and port < 0 and not is_secure(daemon.address):
            return None
        try:
            origin, packed = _packed_get(daemon.address, port, path, secret)
        except NsquarkError:
            return None  # `ask` says what is wrong with the address
        return self._pool.begin(origin, packed, deadline)

    async def _end(self, request: BegunRequest, path: str, daemon: Daemon) -> Any:
        """The JSON of the answer to a request that was begun. Raises what `ask` raises."""
        try:
            reply = await request.reply()
        except HungUp:  # the kept connection was closed meanwhile
            return await self.get_json(daemon, path)
        if reply.status == 403 and _https_port(reply):
            return await self.get_json(daemon, path)
        return parse_answer(path, _good(daemon, path, reply))

    async def post_json(self, daemon: Daemon, path: str, query: Mapping[str, object] | None = None) -> Any:
        """The JSON that a POST is answered with; None for an empty body. It is sent once.

        Raises what `ask` raises.
        """
        body = await self.ask(daemon, "POST", path, query, once=True)
        return _parsed(path, body) if body else None

    async def each(
        self, daemons: Iterable[Daemon], question: Callable[[Daemon], Awaitable[T]]
    ) -> tuple[list[tuple[Daemon, T]], list[Failure]]:
        """What every daemon answers to a question, all asked at once; and which failed. Both in order."""
        asked = list(daemons)
        if len(asked) == 1:  # as most often with nsqlookupds: spare the task
            results = [await _outcome(asked[0], question)]
        else:
            results = await asyncio.gather(*(_outcome(daemon, question) for daemon in asked))
        return _sorted_out(asked, results)

    # ---- one request

    async def _learn_port(self, address: str, deadline: float) -> int:
        reply = await self._send(address, PLAIN, "GET", "/ping", b"", "", deadline, False)
        port = _https_port(reply) if reply.status == 403 else PLAIN
        self._remember(address, port)
        return port

    def _remember(self, address: str, port: int) -> None:
        if len(self._https_ports) >= MAX_REMEMBERED:
            self._https_ports.clear()
        self._https_ports[address] = port

    async def _send(
        self,
        address: str,
        https_port: int,
        method: str,
        target: str,
        body: bytes,
        secret: str,
        deadline: float,
        once: bool,
    ) -> Reply:
        if method == "GET" and not body:
            origin, packed = _packed_get(address, https_port, target, secret)
        else:
            origin, packed = _packed(address, https_port, method, target, body, secret)
        return await self._pool.send(origin, packed, deadline, once=once)


def with_query(path: str, query: Mapping[str, object]) -> str:
    """The path with its query: for a question that many daemons are asked, made once."""
    return f"{path}?{urlencode(query)}"


def _packed(
    address: str, https_port: int, method: str, target: str, body: bytes, secret: str
) -> tuple[Origin, bytes]:
    """Where a request goes, and its bytes. Raises ConnectFailed if `address` is none."""
    origin, netloc = _origin(address, https_port)
    path, _, query = target.partition("?")
    parts = SplitResult(origin[0], netloc, path, query, "")
    return origin, pack_request(method, parts, body, nsq_headers(secret), keep_alive=True)


@lru_cache(MAX_PACKED)
def _packed_get(address: str, https_port: int, target: str, secret: str) -> tuple[Origin, bytes]:
    """A page that is looked at asks the same questions every few seconds."""
    return _packed(address, https_port, "GET", target, b"", secret)


@lru_cache(MAX_REMEMBERED)
def _origin(address: str, https_port: int) -> tuple[Origin, str]:
    """Where to connect to, and what its Host header says. Raises ConnectFailed if `address` is none."""
    try:
        scheme, host, port = endpoint(address)
    except ValueError as error:
        raise ConnectFailed(str(error)) from None
    if scheme == "http" and https_port > 0:
        scheme, port = "https", https_port
    if not host or not port:
        raise ConnectFailed(f"{address!r} is no address to connect to")
    return (scheme, host, port), join_address(host, port)


def _good(daemon: Daemon, path: str, reply: Reply) -> bytes:
    """The body of a 200. Raises BadStatus for anything else."""
    if reply.status != 200:
        raise BadStatus(f"http://{daemon.address}{path.partition('?')[0]}", reply.status, reply.body)
    return reply.body


def parse_answer(path: str, body: bytes) -> Any:
    """The JSON of an answer. Raises ConnectionLost."""
    document = _parsed(path, body)
    # NSQ before 1.0 wraps its answers.
    if isinstance(document, dict) and "status_code" in document and "data" in document:
        return document["data"]
    return document


def _parsed(path: str, body: bytes) -> Any:
    try:
        return parse_json(body)
    except (ValueError, RecursionError):
        raise ConnectionLost(f"the answer to {path.partition('?')[0]} is no JSON") from None


async def _outcome(
    daemon: Daemon, question: Callable[[Daemon], Awaitable[T]]
) -> tuple[list[T], Failure | None]:
    try:
        return [await question(daemon)], None
    except NsquarkError as error:
        return [], failure_of(daemon, error)


def _sorted_out(
    asked: Iterable[Daemon], results: Iterable[tuple[list[T], Failure | None]]
) -> tuple[list[tuple[Daemon, T]], list[Failure]]:
    answers: list[tuple[Daemon, T]] = []
    failures: list[Failure] = []
    for daemon, (answer, failure) in zip(asked, results, strict=True):
        if failure is not None:
            failures.append(failure)
        else:
            answers += ((daemon, each) for each in answer)
    return answers, failures


def failure_of(daemon: Daemon, error: NsquarkError) -> Failure:
    """The failure that an error of `Upstream.ask` is."""
    if not isinstance(error, BadStatus):
        return Failure(daemon.kind, daemon.address, str(error))
    try:
        phrase = f"{error.status} {HTTPStatus(error.status).phrase}"
    except ValueError:
        phrase = str(error.status)
    body = quote(error.body[:1000].decode("utf-8", "replace"))
    code = error.details.get("message")
    reason = f"got response {phrase} {body}"
    if code == NOT_PRIMARY:
        reason = _standby(error.details.get("primary"))
    return Failure(daemon.kind, daemon.address, reason, error.status, code if isinstance(code, str) else "")


def _standby(primary: object) -> str:
    """What a member of a replica group is that does not serve clients, by the primary that it names."""
    address = primary.get("http_address") if isinstance(primary, dict) else None
    if isinstance(address, str) and address:
        return f"serves no clients: it is a standby of its replica group, whose primary is {address}"
    return "serves no clients: it is a member of a replica group that has no primary"


def _https_port(reply: Reply) -> int:
    """The https port that a 403 names; 0 if it names none."""
    details = BadStatus("", reply.status, reply.body).details
    return int(details["https_port"]) if https_url("http://nsqd", reply.status, details) else 0
