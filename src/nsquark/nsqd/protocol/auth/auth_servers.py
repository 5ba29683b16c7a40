"""Asking the auth servers what a client with a secret may do."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote_plus

from nsquark.errors import NsquarkError
from nsquark.http.server.message import pack_json
from nsquark.nsqd.cluster.http_queries import Asking
from nsquark.nsqd.options import Options

from ..certificates import Certificates
from .authorizations import Authorizations, parse_answer

logger = logging.getLogger(__name__)

AT_ONCE = 64  # queries; further ones wait for their turn
MAX_ANSWER = 4 << 20


class NotAnswered(NsquarkError):
    """No auth server has given an answer that counts. The reasons are in the log."""


@dataclass(slots=True, frozen=True, repr=False)
class Credentials:
    """The client that the servers are asked about. It has no repr, so that no secret gets into a log."""

    secret: bytes
    remote_ip: str
    tls: bool
    common_name: str


class _Endpoint(NamedTuple):
    url: str
    shown: str  # without the parts that may be secret: user, password and query


class AuthServers:
    def __init__(self, options: Options, certificates: Certificates) -> None:
        self._asking = Asking(options, certificates)
        self._method = options.auth_http_request_method.upper()
        self._endpoints = [_endpoint(address) for address in options.auth_http_address]
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def query(self, who: Credentials) -> Authorizations:
        """Ask the servers in turn, from a random one on, until one answers. Raises NotAnswered."""
        first = random.randrange(len(self._endpoints))
        async with self._turns:
            for endpoint in self._endpoints[first:] + self._endpoints[:first]:
                try:
                    return await self._query(endpoint.url, who)
                except (OSError, ValueError, NsquarkError) as error:
                    reason = str(error) or type(error).__name__
                    logger.error("AUTH: failed to query auth server %s - %s", endpoint.shown, reason)
        raise NotAnswered("AUTH failed")

    async def _query(self, url: str, who: Credentials) -> Authorizations:
        tls = "true" if who.tls else "false"
        method, body, headers = self._method, b"", {}
        if method == "POST":
            headers["Content-Type"] = "application/json"
            body = pack_json(
                {
                    "common_name": [who.common_name],
                    "remote_ip": [who.remote_ip],
                    "secret": [who.secret.decode("utf-8", "replace")],
                    "tls": [tls],
                }
            ).encode("utf-8", "replace")
        else:
            name, secret = quote_plus(who.common_name), quote_plus(who.secret)
            query = f"common_name={name}&remote_ip={quote_plus(who.remote_ip)}&secret={secret}&tls={tls}"
            url += ("&" if "?" in url else "?") + query
        answer = await self._asking.ask(method, url, max_body=MAX_ANSWER, body=body, headers=headers)
        return parse_answer(answer.body)


def _endpoint(address: str) -> _Endpoint:
    url = address if "://" in address else f"http://{address}/auth"
    shown, _, _ = url.partition("?")
    scheme, _, rest = shown.partition("://")
    host, slash, path = rest.partition("/")
    return _Endpoint(url, f"{scheme}://{host.rpartition('@')[2]}{slash}{path}")
