"""The certificates that nsqd runs with: read at the start, and again on SIGHUP."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsquark.gotext import format_os_error
from nsquark.nsqd.options import Options

if TYPE_CHECKING:
    import ssl

    from OpenSSL import SSL

    from nsquark.wire.tls import TlsStream

logger = logging.getLogger(__name__)

MAX_FILE = 16 << 20


class Certificates:
    """nsqd's own certificate for clients (`new_stream`), and the authorities nsqd trusts (`client_context`).

    A connection keeps the certificate that it began with. `reload` changes it for later connections.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._server: SSL.Context | None = None
        self._client: ssl.SSLContext | None = None

    @property
    def offered(self) -> bool:
        """Whether clients can have TLS."""
        return self._server is not None

    def load_server(self, _options: Options) -> None:
        """Raises ValueError."""
        self._server = self._server_context()

    def load_client(self, _options: Options) -> None:
        """Raises ValueError."""
        self._client = self._client_context()

    def reload(self) -> None:
        """Read all files again. If one of them is wrong, none is taken over."""
        try:
            server = self._server_context() if self._server is not None else None
            client = self._client_context() if self._client is not None else None
        except ValueError as error:
            logger.error("TLS: the certificates stay as they are, the new ones are no good: %s", error)
            return
        self._server, self._client = server, client
        logger.info("TLS: certificates read again")

    def new_stream(self) -> TlsStream:
        """TLS for a new connection, with the current certificate."""
        from nsquark.wire.tls import TlsStream

        assert self._server is not None
        return TlsStream(self._server)

    def client_context(self) -> ssl.SSLContext:
        """For requests of nsqd to other servers over https."""
        if self._client is None:
            self._client = self._client_context()
        return self._client

    def _server_context(self) -> SSL.Context:
        from nsquark.wire.tls import server_context

        options = self._options
        authorities = _read(options.tls_root_ca_file) if options.tls_root_ca_file else None
        return server_context(
            _read(options.tls_cert),
            _read(options.tls_key),
            options.tls_min_version,
            options.tls_client_auth_policy,
            authorities,
        )

    def _client_context(self) -> ssl.SSLContext:
        import ssl

        options = self._options
        authorities = _read(options.tls_root_ca_file).decode("latin-1") if options.tls_root_ca_file else None
        try:
            context = ssl.create_default_context(cadata=authorities)
        except (ssl.SSLError, ValueError):
            raise ValueError("failed to append certs from pem") from None
        # never lower than Python's own minimum: `tls1.0` is for old clients of ours
        context.minimum_version = ssl.TLSVersion(max(options.tls_min_version, ssl.TLSVersion.TLSv1_2))
        return context


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # not Path: to it, nothing is the current directory
            return file.read(MAX_FILE)
    except OSError as error:
        raise ValueError(f"open {path}: {format_os_error(error)}") from None
