"""What the connections and the HTTP API of one nsqlookupd share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsquark.gotext import nanoseconds
from nsquark.http import pack_json
from nsquark.version import NSQ_VERSION
from nsquark.wire import pack_answer

from .options import Options
from .registrations import Registrations, Visible

if TYPE_CHECKING:
    from .connection import Connection


class Directory:
    def __init__(self, options: Options, tcp_port: int, http_port: int) -> None:
        self.registrations = Registrations(options.max_registrations, options.max_registrations_per_producer)
        self.visible = Visible(
            nanoseconds(options.inactive_producer_timeout), nanoseconds(options.tombstone_lifetime)
        )
        self.connections: set[Connection] = set()
        self.stopping = False
        # How every IDENTIFY is answered: nsqd asks us at this address for the channels of its topics.
        document = {
            "broadcast_address": options.broadcast_address,
            "hostname": os.uname().nodename,
            "http_port": http_port,
            "tcp_port": tcp_port,
            "version": NSQ_VERSION,
        }
        self.identity = pack_answer(pack_json(document).encode("utf-8", "backslashreplace"))
