"""What nsqd asks others over HTTP: auth servers and nsqlookupds, by one set of rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from nsquark.http.client import Answer, request

from .certificates import Certificates
from .options import Options

ACCEPT = "application/vnd.nsq; version=1.0"


class Asking:
    def __init__(self, options: Options, certificates: Certificates) -> None:
        self._options = options
        self._certificates = certificates

    async def ask(
        self,
        method: str,
        url: str,
        *,
        max_body: int,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The answer, which is a 200. A server that wants TLS (403, with the port) is asked again over https.

        Raises ConnectFailed, ConnectionLost, and ValueError for anything else than a 200.
        """
        headers = {"Accept": ACCEPT, **(headers or {})}
        answer = await self._ask(method, url, body, headers, max_body)
        if answer.status == 403 and url.startswith("http://") and (port := _https_port(answer.body)):
            parts = urlsplit(url)
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            url = parts._replace(scheme="https", netloc=f"{host}:{port}").geturl()
            answer = await self._ask(method, url, body, headers, max_body)
        if answer.status != 200:
            raise ValueError(f"got response {answer.status}")
        return answer

    async def _ask(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], max_body: int
    ) -> Answer:
        options = self._options
        return await request(
            method,
            url,
            body=body,
            headers=headers,
            connect_timeout=options.http_client_connect_timeout,
            timeout=options.http_client_request_timeout,
            tls=self._certificates.client_context() if url.startswith("https://") else None,
            max_body=max_body,
        )


def _https_port(body: bytes) -> int:
    """Where a server that wants TLS has it; 0 if it does not say."""
    try:
        port = json.loads(body)["https_port"]
    except (ValueError, KeyError, TypeError):
        return 0
    return port if type(port) is int and 0 < port < 1 << 16 else 0
