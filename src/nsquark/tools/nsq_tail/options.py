"""The flags of `nsq_tail`, and the checks of them."""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from nsquark.cli.flags import BOOL, INT, STRING, STRINGS, FlagSet, Kind, flag
from nsquark.errors import UsageError
from nsquark.names import is_valid_name

from ..command.options import Consuming, check_addresses, consumer_config
from ..command.running import ToolError
from ..log_place import Place, parse_place

NAME = "nsq_tail"


class PlaceKind(Kind):
    """A place in a log, such as `earliest` or `10m`."""

    word = "place"

    def parse(self, text: str, so_far: Any) -> Place:
        try:
            return parse_place(text)
        except UsageError as error:
            raise ValueError(str(error)) from None


PLACE = PlaceKind()


@dataclass(slots=True, repr=False, eq=False)
class Options(Consuming):
    topic: list[str] = flag(STRINGS, list, "NSQ topic (may be given multiple times)", key=None)
    channel: str = flag(STRING, "", "NSQ channel (default: an ephemeral one with a random name)", key=None)
    n: int = flag(INT, 0, "total messages to show (will wait if starved)", key=None)
    print_topic: bool = flag(BOOL, False, "print topic name where message was received", key=None)
    from_: Place | None = flag(
        PLACE,
        None,
        "read the log from here on, without a channel: earliest, latest, how long ago (10m, 2d), a position,"
        " or a time (2026-11-01T08:00:00Z); needs nsquark's nsqd, by HTTP address or by lookupd",
        key=None,
    )
    to: Place | None = flag(
        PLACE, None, "with --from: end before this place; without it, the log is followed", key=None
    )
    nsqd_http_address: list[str] = flag(
        STRINGS, list, "nsqd HTTP address to read the log from (may be given multiple times)", key=None
    )


FLAGS = FlagSet(NAME, Options)


def check(options: Options) -> None:
    """Fill the random channel in, and the lower `max_in_flight`. Raises ToolError."""
    if options.from_ is None:
        _check_consuming(options)
    else:
        _check_log(options)
    if not options.topic:
        raise ToolError("--topic required")
    for topic in options.topic:
        if not is_valid_name(topic):
            raise ToolError(f"--topic {topic!r} is no valid name")
    options.topic = list(dict.fromkeys(options.topic))
    if options.channel and not is_valid_name(options.channel):
        raise ToolError(f"--channel {options.channel!r} is no valid name")
    if not options.channel:
        options.channel = f"tail{random.randrange(999_999):06d}#ephemeral"
    if 0 < options.n < options.max_in_flight:
        options.max_in_flight = options.n
    consumer_config(NAME, options)


def _check_consuming(options: Options) -> None:
    if options.to is not None:
        raise ToolError("--to is for reading the log: give --from too")
    if options.nsqd_http_address:
        raise ToolError("--nsqd-http-address is for reading the log: give --from, or --nsqd-tcp-address")
    check_addresses(options)


def _check_log(options: Options) -> None:
    if options.nsqd_tcp_address:
        raise ToolError("--from reads the log over HTTP: give --nsqd-http-address, not --nsqd-tcp-address")
    if options.channel:
        raise ToolError("--from reads the log, which has no channels: leave --channel out")
    if not options.nsqd_http_address and not options.lookupd_http_address:
        raise ToolError("--nsqd-http-address or --lookupd-http-address required")
    if options.nsqd_http_address and options.lookupd_http_address:
        raise ToolError("use --nsqd-http-address or --lookupd-http-address not both")
