"""The server's end of a TLS connection, without IO.

On OpenSSL through pyOpenSSL, since Python's own `ssl` cannot ask for a client's certificate without verifying
it, which is what the policy `require` means. Imported only where there is a certificate: it takes a while.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto

from nsquark import kernel
from nsquark.errors import ConnectionLost
from nsquark.kernel import Buffer

if TYPE_CHECKING:
    from .tls_records import TlsRecords

REQUIRE, REQUIRE_VERIFY = "require", "require-verify"
_TLS_1_2 = 771
_RECORD = 16384
_SEND = 1 << 18
_SCRATCH = memoryview(bytearray(_RECORD))  # between two calls it holds nothing


def server_context(
    chain: bytes, key: bytes, min_version: int, client_auth: str = "", authorities: bytes | None = None
) -> SSL.Context:
    """What all connections of a server share, from PEM.

    `client_auth` is `require` (any certificate), `require-verify` (one that leads to the authorities, or to
    the system's without any) or anything else, which asks for none. Raises ValueError.
    """
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(min_version)
    # OpenSSL counts what is older than 1.2 as no security at all.
    level = ":@SECLEVEL=0" if min_version < _TLS_1_2 else ""
    context.set_cipher_list(f"DEFAULT:!aNULL:!eNULL{level}".encode())
    # AES-128 first, as Go has it: it is as good, and a tenth faster
    context.set_tls13_ciphersuites(
        b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
    )
    # Without tickets and a cache every client shows its certificate anew: none is believed for longer than
    # the authorities are.
    context.set_options(
        SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION | SSL.OP_NO_TICKET | SSL.OP_CIPHER_SERVER_PREFERENCE
    )
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    try:
        _use_certificate(context, chain, key)
        if authorities is not None:
            _trust(context, authorities)
        elif client_auth == REQUIRE_VERIFY:
            context.set_default_verify_paths()
    except SSL.Error as error:
        raise ValueError(_reason(error)) from None
    if client_auth in (REQUIRE, REQUIRE_VERIFY):
        believe = _believe_anything if client_auth == REQUIRE else _believe_the_verified
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, believe)
    return context


def _use_certificate(context: SSL.Context, chain: bytes, key: bytes) -> None:
    certificates = load_certificates(chain)
    try:
        private_key = load_pem_private_key(key, None)
    except TypeError:
        raise ValueError("the key is encrypted") from None
    except Exception as error:  # a ValueError, or whatever cryptography has for a kind it does not know
        raise ValueError(f"the key does not read: {error}") from None
    context.use_certificate(certificates[0])
    for each in certificates[1:]:
        context.add_extra_chain_cert(each)
    context.use_privatekey(private_key)  # type: ignore[arg-type]  # of a kind that cannot sign: it says so
    context.check_privatekey()


def _trust(context: SSL.Context, authorities: bytes) -> None:
    store = context.get_cert_store()
    assert store is not None
    for each in load_certificates(authorities):
        store.add_cert(crypto.X509.from_cryptography(each))
        context.add_client_ca(each)


def load_certificates(pem: bytes) -> list[x509.Certificate]:
    """Raises ValueError, also if there is none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ValueError(f"no certificate reads: {str(error).partition('(')[0].strip()}") from None


def _believe_anything(*_: object) -> bool:
    return True


def _believe_the_verified(
    _connection: object, _certificate: object, _error: int, _depth: int, ok: int
) -> bool:
    return bool(ok)


class TlsStream:
    """One connection: what came in by `received`, what to send by `to_send`.

    Whatever is wrong with what the other side sends is raised as ConnectionLost, the reason in its text.
    """

    __slots__ = ("_connection", "_failure", "_records", "ended")

    def __init__(self, context: SSL.Context) -> None:
        self._connection = SSL.Connection(context, None)
        self._connection.set_accept_state()
        self._records = _direct_calls(self._connection)
        self._failure: ConnectionLost | None = None  # found behind bytes that are handed up first
        self.ended = False  # the other side has said that it will send no more

    def received(self, data: Buffer) -> None:
        if self._records is not None:
            self._records.received(data)
            return
        view = memoryview(data)
        while view:
            view = view[self._connection.bio_write(bytes(view)) :]

    def to_send(self) -> bytes:
        if self._records is not None:
            return self._records.to_send()
        pieces = []
        while True:
            try:
                pieces.append(self._connection.bio_read(_SEND))
            except SSL.Error:  # WantReadError: there is no more
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def handshake(self) -> bool:
        """Go on with it as far as what came allows; True when it is done."""
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise ConnectionLost(_reason(error)) from None
        return True

    def read_into(self, room: memoryview) -> tuple[int, bool]:
        """Put as much into the room as the other side has said; returns how much, and whether that is all.

        It is all when more must be received first. Bytes before a record that cannot be read are given first,
        and the error comes with the next call.
        """
        if self._failure is not None:
            raise self._failure
        filled = 0
        try:
            if self._records is not None:
                filled = self._records.read_into(room)
                if self._records.result <= 0:
                    self._explain(self._records.result)
            else:
                while filled < len(room):
                    piece = self._connection.recv(min(_RECORD, len(room) - filled))
                    room[filled : filled + len(piece)] = piece
                    filled += len(piece)
        except SSL.WantReadError:
            return filled, True
        except SSL.ZeroReturnError:
            self.ended = True
            return filled, True
        except SSL.Error as error:
            self._failure = ConnectionLost(_reason(error))
            if not filled:
                raise self._failure from None
            return filled, False
        return filled, filled < len(room)

    def read(self) -> bytes:
        """Some of what the other side has said, at most a record; nothing if there is no more yet."""
        filled, _ = self.read_into(_SCRATCH)
        return bytes(_SCRATCH[:filled])

    def write(self, data: Buffer) -> None:
        try:
            if self._records is None:
                self._connection.sendall(data)
            elif not self._records.write(data):
                self._explain(self._records.result)
        except SSL.Error as error:
            raise ConnectionLost(_reason(error)) from None

    def _explain(self, result: int) -> None:
        """Raise what pyOpenSSL raises where OpenSSL returns `result`."""
        self._connection._raise_ssl_error(self._connection._ssl, result)

    def close(self) -> None:
        """Tell the other side that nothing more comes."""
        with contextlib.suppress(SSL.Error):  # it is broken already
            self._connection.shutdown()

    @property
    def version(self) -> str:
        """As NSQ shows it: `TLS1.0` to `TLS1.3`."""
        name = self._connection.get_protocol_version_name().replace("TLSv", "TLS")
        return name if "." in name else f"{name}.0"

    @property
    def cipher_suite(self) -> str:
        return standard_name(self._connection.get_cipher_name() or "")

    @property
    def common_name(self) -> str:
        """Of the client's certificate, if it has shown one that has one."""
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        if certificate is None:
            return ""
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[-1].value) if names else ""


StreamFactory = Callable[[], TlsStream]


def _direct_calls(connection: SSL.Connection) -> TlsRecords | None:
    """Direct calls of OpenSSL for the records of a connection; None where that is not possible.

    They need a compiler, and what pyOpenSSL and cryptography have without promising to keep it.
    """
    if not kernel.COMPILED:
        return None
    try:
        addresses = _addresses()
        private: Any = connection
        ssl, incoming, outgoing = [
            _address(pointer) for pointer in (private._ssl, private._into_ssl, private._from_ssl)
        ]
        from .tls_records import TlsRecords

        return TlsRecords(connection, addresses, ssl, incoming, outgoing)
    except (ImportError, AttributeError, TypeError):
        return None


@cache
def _addresses() -> tuple[int, ...]:
    """Where the functions are that `tls_records` calls."""
    from cryptography.hazmat.bindings._rust import _openssl

    from .tls_records import FUNCTIONS

    return tuple(_address(_openssl.ffi.addressof(_openssl.lib, name)) for name in FUNCTIONS)


def _address(pointer: object) -> int:
    from cryptography.hazmat.bindings._rust import _openssl

    return int(_openssl.ffi.cast("uintptr_t", pointer))


def standard_name(cipher: str) -> str:
    """The name that the standards, and NSQ, have for a cipher suite that OpenSSL has its own for."""
    if not cipher or cipher.startswith("TLS_"):
        return cipher
    exchange = re.match("(?:EC)?DHE-(?:RSA|ECDSA)-", cipher)
    rest = cipher[exchange.end() :] if exchange else cipher
    name = (exchange[0] if exchange else "RSA-").replace("-", "_")
    if rest.startswith("CHACHA20"):
        rest += "-SHA256"
    else:
        rest = re.sub("^(AES|CAMELLIA|ARIA)(128|256)", r"\1-\2", rest)
        rest = re.sub(r"^(AES-\d+)-(SHA)", r"\1-CBC-\2", rest)
    return f"TLS_{name}WITH_{rest.replace('-', '_')}"


def _reason(error: SSL.Error) -> str:
    """OpenSSL's words: the last of its errors, which is the nearest to the cause."""
    if isinstance(error, SSL.SysCallError):
        return "tls: EOF"
    told = error.args[0] if error.args and isinstance(error.args[0], (list, tuple)) else []
    words = [str(each[-1]) for each in told if each]
    return f"tls: {words[-1]}" if words else f"tls: {type(error).__name__}"
