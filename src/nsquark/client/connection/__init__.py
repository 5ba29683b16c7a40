"""A connection to one nsqd: dialling, the handshake, commands out, frames in."""

from .connecting import connect
from .nsqd_connection import NsqdConnection, Receiver

__all__ = ["NsqdConnection", "Receiver", "connect"]
