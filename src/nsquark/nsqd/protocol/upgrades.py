"""TLS and compression after an IDENTIFY that asked for them: each new layer begins with an OK through it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsquark.errors import IdentifyFailed
from nsquark.net.layered_transport import Layers
from nsquark.wire import OK
from nsquark.wire.compression import Deflate, Snappy

from .negotiation import Upgrades

if TYPE_CHECKING:
    import asyncio

    from nsquark.nsqd.broker import Broker

    from .connection import Connection

logger = logging.getLogger(__name__)


def upgrade(connection: Connection, transport: asyncio.Transport, broker: Broker, wanted: Upgrades) -> None:
    """Begin; `connection.upgraded` or `connection.fail` says how it ends."""
    if transport.is_closing():
        return
    layers = Layers(connection, broker.handshakes)
    layers.insert(transport)
    connection.write_through(layers)
    name = connection.session.remote_address

    def compress() -> None:
        if wanted.snappy:
            logger.info("PROTOCOL(V2): [%s] upgrading connection to snappy", name)
            layers.compress_with(Snappy())
        elif wanted.deflate:
            level = wanted.deflate_level
            logger.info("PROTOCOL(V2): [%s] upgrading connection to deflate (level %d)", name, level)
            layers.compress_with(Deflate(level))
        else:
            return
        layers.write(OK)

    def has_tls(reason: str | None) -> None:
        if reason is not None:
            connection.fail(IdentifyFailed(f"IDENTIFY failed {reason}"))
            return
        layers.write(OK)
        compress()
        connection.upgraded(wanted)

    if wanted.tls:
        logger.info("PROTOCOL(V2): [%s] upgrading connection to TLS", name)
        layers.start_tls(broker.certificates.new_stream, has_tls)
    else:
        compress()
        connection.upgraded(wanted)
