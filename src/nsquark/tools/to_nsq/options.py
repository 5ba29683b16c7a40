"""The flags of `to_nsq`, and the checks of them."""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

import os
from dataclasses import dataclass

from nsquark.cli.flags import INT, STRING, STRINGS, FlagSet, flag
from nsquark.client.addresses import as_addresses
from nsquark.client.config import Config
from nsquark.names import is_valid_name

from ..command.options import CLIENT_OPTIONS, Common, client_config
from ..command.running import ToolError

NAME = "to_nsq"
# Seconds without progress on a connection. NSQ's 1 s is for a producer that has one small command under way.
_WRITE_TIMEOUT = 60.0


@dataclass(slots=True, repr=False, eq=False)
class Options(Common):
    topic: str = flag(STRING, "", "NSQ topic to publish to", key=None)
    delimiter: str = flag(STRING, "\n", "byte to split the input from stdin at", key=None)
    nsqd_tcp_address: list[str] = flag(
        STRINGS, list, "destination nsqd TCP address (may be given multiple times)", key=None
    )
    producer_opt: list[str] = flag(
        CLIENT_OPTIONS,
        list,
        "option to passthrough to the producer, name,value (may be given multiple times);"
        " max_msg_size is the longest piece, 1048576 bytes unless given",
        key=None,
    )
    rate: int = flag(INT, 0, "Throttle messages to n/second. 0 to disable", key=None)


FLAGS = FlagSet(NAME, Options)


def check(options: Options) -> None:
    """Raises ToolError, or UsageError for an address."""
    if not options.topic:
        raise ToolError("--topic required")
    if len(os.fsencode(options.delimiter)) != 1:
        raise ToolError("--delimiter must be a single byte")
    if not options.nsqd_tcp_address:
        raise ToolError("--nsqd-tcp-address required")
    if not is_valid_name(options.topic):
        raise ToolError(f"--topic {options.topic!r} is no valid name")
    as_addresses(options.nsqd_tcp_address)
    producer_config(options)


def producer_config(options: Options) -> Config:
    return client_config(NAME, options.producer_opt, Config(write_timeout=_WRITE_TIMEOUT))
