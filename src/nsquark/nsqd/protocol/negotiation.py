"""IDENTIFY: the values that a client asks for, the values that the options allow, and the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass

from nsquark.errors import BadBody, IdentifyFailed
from nsquark.nsqd.options import Options
from nsquark.version import NSQ_VERSION, VERSION
from nsquark.wire import Identify

DEFAULT_HEARTBEAT = 30.0
DEFAULT_BUFFER_SIZE = 16384
DEFAULT_DEFLATE_LEVEL = 6
_MIN_HEARTBEAT_MS = 1000
_MIN_BUFFER_SIZE = 64
_MIN_MSG_TIMEOUT_MS = 1000


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(slots=True, frozen=True)
class Upgrades:
    """The layers that are put between the socket and the protocol after an IDENTIFY."""

    tls: bool = False
    deflate: bool = False
    deflate_level: int = 6
    snappy: bool = False

    @classmethod
    def negotiate(cls, asked: Identify, options: Options, tls_offered: bool) -> Upgrades:
        """The layers that the client asks for and nsqd has. Raises IdentifyFailed for two compressions."""
        negotiates = asked.feature_negotiation
        deflate = negotiates and asked.deflate and options.deflate
        snappy = negotiates and asked.snappy and options.snappy
        if deflate and snappy:
            raise IdentifyFailed("cannot enable both deflate and snappy compression")
        level = asked.deflate_level if deflate and asked.deflate_level > 0 else DEFAULT_DEFLATE_LEVEL
        tls = negotiates and asked.tls_v1 and tls_offered
        return cls(tls, deflate, min(level, options.max_deflate_level), snappy)

    @property
    def any(self) -> bool:
        return self.tls or self.deflate or self.snappy


@dataclass(slots=True)
class Settings:
    """The settings of a connection. A heartbeat interval of 0 means that there are no heartbeats."""

    heartbeat_interval: float
    output_buffer_size: int
    output_buffer_timeout_ms: int
    msg_timeout: float
    sample_rate: int = 0

    @classmethod
    def default(cls, options: Options) -> Settings:
        return cls(
            DEFAULT_HEARTBEAT, DEFAULT_BUFFER_SIZE, _ms(options.output_buffer_timeout), options.msg_timeout
        )

    def apply(self, asked: Identify, options: Options) -> None:
        """Take over the values of an IDENTIFY in NSQ's order. Raises BadBody for the first out of range."""
        interval = asked.heartbeat_interval
        if interval == -1:
            self.heartbeat_interval = 0.0
        elif _MIN_HEARTBEAT_MS <= interval <= _ms(options.max_heartbeat_interval):
            self.heartbeat_interval = interval / 1000
        elif interval != 0:
            raise BadBody(f"IDENTIFY heartbeat interval ({interval}) is invalid")

        timeout = asked.output_buffer_timeout
        low, high = _ms(options.min_output_buffer_timeout), _ms(options.max_output_buffer_timeout)
        if timeout == -1:
            self.output_buffer_timeout_ms = 0
        elif timeout != 0 and low <= timeout <= high:
            self.output_buffer_timeout_ms = timeout
        elif timeout != 0:
            raise BadBody(f"IDENTIFY output buffer timeout ({timeout}) is invalid")

        size = asked.output_buffer_size
        if size == -1:
            self.output_buffer_size = 1
            self.output_buffer_timeout_ms = 0
        elif _MIN_BUFFER_SIZE <= size <= options.max_output_buffer_size:
            self.output_buffer_size = size
        elif size != 0:
            raise BadBody(f"IDENTIFY output buffer size ({size}) is invalid")

        if not 0 <= asked.sample_rate <= 99:
            raise BadBody(f"IDENTIFY sample rate ({asked.sample_rate}) is invalid")
        self.sample_rate = asked.sample_rate

        msg_timeout = asked.msg_timeout
        if _MIN_MSG_TIMEOUT_MS <= msg_timeout <= _ms(options.max_msg_timeout):
            self.msg_timeout = msg_timeout / 1000
        elif msg_timeout != 0:
            raise BadBody(f"IDENTIFY msg timeout ({msg_timeout}) is invalid")

    def pack(self, options: Options, upgrades: Upgrades) -> bytes:
        """The answer to an IDENTIFY with feature_negotiation."""
        return json.dumps(
            {
                "max_rdy_count": options.max_rdy_count,
                "version": NSQ_VERSION,
                "max_msg_timeout": _ms(options.max_msg_timeout),
                "msg_timeout": _ms(self.msg_timeout),
                "tls_v1": upgrades.tls,
                "deflate": upgrades.deflate,
                "deflate_level": upgrades.deflate_level,
                "max_deflate_level": options.max_deflate_level,
                "snappy": upgrades.snappy,
                "sample_rate": self.sample_rate,
                "auth_required": bool(options.auth_http_address),
                "output_buffer_size": self.output_buffer_size,
                "output_buffer_timeout": self.output_buffer_timeout_ms,
                "topology_region": options.topology_region,
                "topology_zone": options.topology_zone,
                "nsquark_version": VERSION,
                "http_port": options.broadcast_http_port,
                "max_msg_size": options.max_msg_size,
                "max_body_size": options.max_body_size,
            },
            separators=(",", ":"),
        ).encode()
