"""nsqd and nsqlookupd over HTTP, one request at a time; what fails names the daemon and says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from nsquark.errors import ConnectFailed, ConnectionLost, UsageError
from nsquark.http.client.protocol import BadStatus, nsq_headers, parse_json, parse_url
from nsquark.http.client.single_request import ask
from nsquark.net.addresses import join_address

from ...log_reader import LogReader
from ..failures import Failure, on_one_line
from ..flags.settings import Settings


class Unreachable(Failure):
    """A daemon did not answer."""


class NotOurs(Failure):
    """A daemon does not know a route that nsquark's has: it is Go's, or no nsqd."""


class Daemon:
    """One daemon. `kind` is nsqd or nsqlookupd, `address` as it was given: host:port or a URL."""

    def __init__(self, kind: str, address: str, settings: Settings) -> None:
        self.kind = kind
        self.address = address
        self.settings = settings
        self._base = (address if "://" in address else f"http://{address}").rstrip("/")
        try:
            parse_url(self._base)
            has_port = urlsplit(self._base).port is not None or "://" in address
        except (UsageError, ValueError):
            has_port = False
        if not has_port:
            raise UsageError(f"address {address!r} is neither host:port nor an http URL")

    def __str__(self) -> str:
        return f"{self.kind} {self.address}"

    @property
    def _expected(self) -> str:
        return "an nsqd of nsquark, and cannot do this" if self.kind == "nsqd" else f"an {self.kind}"

    @property
    def host(self) -> str:
        return parse_url(self._base).hostname or ""

    async def get(self, path: str, *, patience: float = 0.0, **query: object) -> Any:
        return await self._ask("GET", path, patience, query)

    async def post(
        self, path: str, *, patience: float = 0.0, headers: Mapping[str, str] | None = None, **query: object
    ) -> Any:
        return await self._ask("POST", path, patience, query, headers)

    async def _ask(
        self,
        method: str,
        path: str,
        patience: float,
        query: dict[str, object],
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON of an answer, None for an empty one. `patience` is how long nsqd may take on purpose.

        Raises Unreachable, NotOurs, or BadStatus for what the daemon refuses.
        """
        given = {name: value for name, value in query.items() if value is not None}
        target = path + ("?" + urlencode(given) if given else "")
        settings = self.settings
        try:
            url, response = await ask(
                method,
                self._base + target,
                headers={**nsq_headers(settings.secret), **(headers or {})},
                timeout=settings.timeout + patience,
                connect_timeout=settings.timeout,
                tls=settings.ssl_context,
            )
        except BadStatus as error:
            if error.status in (404, 405) and error.message in ("NOT_FOUND", "METHOD_NOT_ALLOWED", ""):
                raise NotOurs(f"{self} has no {path}: it is not {self._expected}") from None
            raise
        except (ConnectFailed, ConnectionLost) as error:
            reason = on_one_line(error).removeprefix(self._base + path).removeprefix(": ")
            raise Unreachable(f"{self} does not answer: {reason}") from None
        except (OSError, UnicodeError) as error:  # a host name that is none
            raise Unreachable(f"{self} does not answer: {on_one_line(error)}") from None
        self._base = url.removesuffix(target)  # nsqd may have sent us to its https port
        if not response.body or response.body == b"OK":
            return None
        document = parse_json(self._base + path, response.body)
        # NSQ before 1.0 wraps its answers.
        if "x-nsq-content-type" not in response.headers and isinstance(document, dict):
            return document.get("data", document)
        return document

    async def tcp_address(self) -> str:
        """Where this nsqd takes TCP connections: its port, at the host where we have just reached it."""
        info = await self.get("/info")
        port = info.get("tcp_port") if isinstance(info, dict) else None
        if type(port) is not int or port <= 0:
            raise Failure(f"{self} does not tell its TCP port: name it with --nsqd-tcp")
        return join_address(self.host, port)

    def log_reader(self, topic: str) -> LogReader:
        """The log of a topic at this nsqd."""
        settings = self.settings
        return LogReader(
            self.address,
            topic,
            timeout=settings.timeout,
            connect_timeout=settings.timeout,
            max_bytes=1 << 20,  # which a slow line, too, brings in time
            tls=settings.ssl_context() if settings.asks_for_tls else None,
            secret=settings.secret,
        )
