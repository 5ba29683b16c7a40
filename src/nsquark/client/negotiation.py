"""From a dialled connection to one that is ready: IDENTIFY, TLS, compression, AUTH, in time.

What was asked for and not granted: TLS is an error (unless `tls_required` is off), compression a warning.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import struct
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from nsquark.errors import ConnectFailed, ConnectionLost, ProtocolError
from nsquark.wire.compression import Deflate, Snappy
from nsquark.wire.message import Delivery

if TYPE_CHECKING:
    from nsquark.client.config import Config
    from nsquark.client.connection import Connection, Receiver

log = logging.getLogger(__name__)

_SIZE = struct.Struct(">I")
M = TypeVar("M", bound=Delivery)


@dataclass(slots=True)
class Negotiated:
    """What the nsqd answered to IDENTIFY; as it stands here for one that does not negotiate."""

    max_rdy_count: int = 2500
    version: str = ""
    max_msg_timeout: int = 900_000  # ms
    msg_timeout: int = 60_000  # ms
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 6
    snappy: bool = False
    sample_rate: int = 0
    auth_required: bool = False
    output_buffer_size: int = 16384
    output_buffer_timeout: int = 250  # ms


async def connect(address: str, config: Config, kind: type[M], receiver: Receiver[M]) -> Connection[M]:
    """A connection ready for SUB or PUB.

    Raises ConnectFailed, with `permanent` if the nsqd refused us rather than was not there.
    """
    from nsquark.client.connection import dial

    context = config.ssl_context()
    connection = await dial(address, config, kind, receiver)
    limit = config.dial_timeout + config.read_timeout
    try:
        async with asyncio.timeout(limit):
            await _negotiate(connection, config, context)
    except ConnectFailed:
        connection.abort()
        raise
    except ProtocolError as error:
        connection.abort()
        raise ConnectFailed(f"{address}: {error}", permanent=True) from error
    except TimeoutError:
        connection.abort()
        raise ConnectFailed(f"{address}: no handshake within {limit} s") from None
    except ssl.SSLError as error:
        connection.abort()
        raise ConnectFailed(f"{address}: TLS: {error}", permanent=True) from error
    except (ConnectionLost, OSError) as error:
        connection.abort()
        raise ConnectFailed(f"{address}: {error}") from error
    except BaseException:
        connection.abort()
        raise
    return connection


async def _negotiate(connection: Connection[M], config: Config, context: ssl.SSLContext | None) -> None:
    document = json.dumps(config.identify(), separators=(",", ":")).encode()
    answer = await connection.ask(b"IDENTIFY\n" + _SIZE.pack(len(document)) + document)
    address = connection.address
    granted = connection.negotiated = _parse(answer, address)
    if context is not None and granted.tls_v1:
        await connection.start_tls(context)
        await _upgraded(connection, "TLS")
    elif context is not None:
        if config.tls_required:
            raise ConnectFailed(f"{address} does not offer TLS, which is required", permanent=True)
        log.warning("%s does not offer TLS: going on in plain text", address)
    if granted.snappy:
        connection.compress_with(Snappy())
        await _upgraded(connection, "snappy")
    elif granted.deflate:
        connection.compress_with(Deflate(max(1, granted.deflate_level)))
        await _upgraded(connection, "deflate")
    elif config.compression is not None:
        log.warning("%s does not offer %s: going on without", address, config.compression)
    if granted.auth_required:
        await _authenticate(connection, config)
    connection.ready()


def _parse(answer: bytes, address: str) -> Negotiated:
    granted = Negotiated()
    if not answer.startswith(b"{"):  # an OK: it does not negotiate
        return granted
    try:
        document = json.loads(answer)
    except ValueError:
        raise ConnectFailed(f"{address}: the answer to IDENTIFY is no JSON") from None
    for field in fields(Negotiated):
        value = document.get(field.name)
        if value is not None:
            if type(value) is not type(field.default):
                raise ConnectFailed(f"{address}: {field.name} {value!r} in the answer to IDENTIFY")
            setattr(granted, field.name, value)
    return granted


async def _upgraded(connection: Connection[M], layer: str) -> None:
    answer = await connection.expect()
    if answer != b"OK":
        raise ConnectionLost(f"{answer[:100]!r} instead of OK inside {layer}")


async def _authenticate(connection: Connection[M], config: Config) -> None:
    if config.auth_secret is None:
        raise ConnectFailed(f"{connection.address} wants an auth_secret", permanent=True)
    secret = config.auth_secret.encode()
    answer = await connection.ask(b"AUTH\n" + _SIZE.pack(len(secret)) + secret)
    try:
        permissions = json.loads(answer)
        log.info("%s: authorised as %s", connection.address, permissions.get("identity"))
    except (ValueError, AttributeError):
        raise ConnectionLost("the answer to AUTH is no JSON object") from None
