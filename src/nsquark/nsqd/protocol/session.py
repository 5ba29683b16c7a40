"""A TCP client as nsqd knows it: its names, settings, authorization and subscription."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nsquark.errors import Invalid
from nsquark.net.addresses import name_of

from .negotiation import Settings, Upgrades

if TYPE_CHECKING:
    from nsquark.net.layered_transport import Layers
    from nsquark.nsqd.core.channel import Channel
    from nsquark.nsqd.core.consumer import Consumer
    from nsquark.nsqd.options import Options
    from nsquark.wire import Identify

    from .auth.auth_servers import Credentials
    from .auth.client_auth import ClientAuth

# As NSQ numbers them; /stats shows the number.
INIT, SUBSCRIBED, CLOSING = 0, 3, 4


class Session:
    """One client. `state` is INIT until SUB, then SUBSCRIBED, and CLOSING after CLS."""

    __slots__ = (
        "_peer_host", "auth", "channel", "client_id", "connect_time", "consumer", "deflate", "hostname",
        "layers", "needs_tls", "peer_port", "remote_address", "settings", "snappy", "state", "tls",
        "user_agent",
    )  # fmt: skip

    def __init__(self, options: Options, transport: asyncio.Transport, auth: ClientAuth | None) -> None:
        """`auth` is None where no auth server is configured."""
        peer = transport.get_extra_info("peername")
        self.remote_address = name_of(peer)
        self._peer_host, self.peer_port = map(str, peer[:2]) if isinstance(peer, tuple) else ("", "")
        self.client_id = self.hostname = self._peer_host
        self.user_agent = ""
        self.connect_time = time.time()
        self.settings = Settings.default(options)
        self.state = INIT
        self.auth = auth
        self.needs_tls = bool(options.tls_required)  # before any command but IDENTIFY
        self.tls = self.snappy = self.deflate = False
        self.layers: Layers | None = None
        self.channel: Channel | None = None
        self.consumer: Consumer | None = None

    def identify(self, asked: Identify, options: Options) -> None:
        """Take over what an IDENTIFY says. Raises BadBody for a value out of range."""
        self.client_id, self.hostname, self.user_agent = asked.client_id, asked.hostname, asked.user_agent
        self.settings.apply(asked, options)

    def upgraded(self, upgrades: Upgrades) -> None:
        self.tls, self.snappy, self.deflate = upgrades.tls, upgrades.snappy, upgrades.deflate
        self.needs_tls = self.needs_tls and not self.tls

    def subscribe(self, channel: Channel, consumer: Consumer) -> None:
        channel.add_consumer(consumer)
        self.channel, self.consumer = channel, consumer
        self.state = SUBSCRIBED

    def start_closing(self) -> None:
        """Deliver no more to this client, if it is subscribed; it may still answer what it has."""
        if self.state == SUBSCRIBED and self.channel is not None and self.consumer is not None:
            self.channel.set_ready(self.consumer, 0)
            self.state = CLOSING

    def unsubscribe(self) -> None:
        """Leave the channel, if the client has one. Its messages in flight go to other consumers."""
        if self.channel is not None and self.consumer is not None:
            channel, consumer, self.channel, self.consumer = self.channel, self.consumer, None, None
            channel.remove_consumer(consumer)

    def subscription(self, command: str) -> tuple[Channel, Consumer]:
        """The channel and the consumer of a client that may answer messages. Raises Invalid."""
        if self.state == INIT or self.channel is None or self.consumer is None:
            if self.needs_tls:
                self.refuse_plain(command.encode())
            raise Invalid(f"cannot {command} in current state")
        return self.channel, self.consumer

    def refuse_plain(self, command: bytes) -> None:
        raise Invalid(b"cannot " + command + b" in current state (TLS required)")

    def credentials(self, secret: bytes) -> Credentials:
        """The credentials that the auth servers are asked about."""
        from .auth.auth_servers import Credentials

        tls = self.layers.tls if self.layers is not None else None
        return Credentials(secret, self._peer_host, self.tls, tls.common_name if tls is not None else "")

    def let_go(self) -> None:
        """The connection is gone: refer to nothing that refers back to it."""
        if self.auth is not None:
            self.auth.close()
        self.unsubscribe()
        self.auth = self.layers = None
