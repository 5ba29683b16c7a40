"""Requests of nsqd to auth servers and nsqlookupds over HTTP, by one set of rules."""

from __future__ import annotations

from collections.abc import Mapping

from nsquark.http.client.protocol import BadStatus, ClientResponse, nsq_headers
from nsquark.http.client.single_request import ask
from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol.certificates import Certificates


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
    ) -> ClientResponse:
        """The answer, which is a 200. A server that wants TLS (403, with the port) is asked again over https.

        Raises ConnectFailed, ConnectionLost, and ValueError for anything else than a 200.
        """
        options = self._options
        try:
            _, response = await ask(
                method,
                url,
                body=body,
                headers={**nsq_headers(), **(headers or {})},
                connect_timeout=options.http_client_connect_timeout,
                timeout=options.http_client_request_timeout,
                tls=self._certificates.client_context,
                max_body=max_body,
            )
        except BadStatus as error:
            raise ValueError(f"got response {error.status}") from None
        return response
