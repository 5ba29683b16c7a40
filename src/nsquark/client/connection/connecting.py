"""`connect`: the dial and the handshake, within their timeouts.

`wire/handshake.py` has the rules of the handshake. A feature that was asked for and is not granted: TLS is an
error (unless `tls_required` is off), compression a warning.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from typing import TypeVar

from nsquark.errors import ConnectFailed, ConnectionLost, NotNsqd, ProtocolError
from nsquark.wire import handshake as v2
from nsquark.wire.message import Delivery

from ..addresses import split_address
from ..config import Config
from .nsqd_connection import NsqdConnection, Receiver

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Delivery)


async def connect(address: str, config: Config, kind: type[M], receiver: Receiver[M]) -> NsqdConnection[M]:
    """A connection that takes SUB or PUB.

    Raises ConnectFailed, with `permanent` if nsqd was there and refused the client.
    """
    context = config.ssl_context()
    connection = await _dial(address, config, kind, receiver)
    limit = config.dial_timeout + config.read_timeout
    try:
        async with asyncio.timeout(limit):
            await _shake_hands(connection, config, context)
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
        raise ConnectFailed(f"{address}: {error}", permanent=isinstance(error, NotNsqd)) from error
    except BaseException:
        connection.abort()
        raise
    return connection


async def _dial(address: str, config: Config, kind: type[M], receiver: Receiver[M]) -> NsqdConnection[M]:
    host, port = split_address(address)
    local = None
    if config.local_addr is not None:
        local = split_address(config.local_addr) if ":" in config.local_addr else (config.local_addr, 0)
    try:
        async with asyncio.timeout(config.dial_timeout or None):
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: NsqdConnection(address, config, kind, receiver), host, port, local_addr=local
            )
    except TimeoutError:
        raise ConnectFailed(f"{address}: no connection within {config.dial_timeout} s") from None
    except OSError as error:
        raise ConnectFailed(f"{address}: {_reason(error)}") from error
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _reason(error: OSError) -> str:
    """Why the dial failed. asyncio's own text of a refused connection does not say that it was refused."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


async def _shake_hands(connection: NsqdConnection[M], config: Config, context: ssl.SSLContext | None) -> None:
    address = connection.address
    handshake = v2.Handshake(
        address,
        connection.parser,
        config.identify(),
        tls_required=config.tls_required,
        auth_secret=config.auth_secret,
    )
    while True:
        event = handshake.next_event()
        if data := handshake.data_to_send():
            connection.send(data)
            connection.flush()
        match event:
            case v2.NeedData():
                await connection.more_data()
            case v2.Identified(response):
                connection.identify_response = response
            case v2.StartTls():
                assert context is not None
                await connection.start_tls(context)
            case v2.StartCompression(stream):
                connection.start_compression(stream)
            case v2.NotOffered("TLS"):
                logger.warning("%s does not offer TLS: going on in plain text", address)
            case v2.NotOffered(feature):
                logger.warning("%s does not offer %s: going on without", address, feature)
            case v2.Authenticated(identity):
                logger.info("%s: authorised as %s", address, identity)
            case v2.Ready():
                connection.ready()
                return
