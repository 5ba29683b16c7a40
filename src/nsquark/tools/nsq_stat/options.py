"""The flags of `nsq_stat`, and the checks of them."""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsquark.cli.flags import BOOL, DURATION, STRING, STRINGS, FlagSet, Kind, flag
from nsquark.client.addresses import as_addresses
from nsquark.gotext import OUT_OF_RANGE, parse_int, quote

from ..command.options import Common
from ..command.running import ToolError

NAME = "nsq_stat"


class CountKind(Kind):
    """A number of 32 bits, in plain decimal: NSQ reads this flag apart from all others."""

    def parse(self, text: str, so_far: Any) -> int:
        number = parse_int(text, 10)
        if not -(1 << 31) <= number < 1 << 31:
            raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: {OUT_OF_RANGE}")
        return number


COUNT = CountKind()


@dataclass(slots=True, repr=False, eq=False)
class Options(Common):
    topic: str = flag(STRING, "", "NSQ topic", key=None)
    channel: str = flag(STRING, "", "NSQ channel", key=None)
    interval: float = flag(DURATION, 2.0, "duration of time between polling/printing output", key=None)
    count: int | None = flag(COUNT, None, "number of reports", key=None)
    nsqd_http_address: list[str] = flag(
        STRINGS, list, "nsqd HTTP address (may be given multiple times)", key=None
    )
    lookupd_http_address: list[str] = flag(
        STRINGS, list, "lookupd HTTP address (may be given multiple times)", key=None
    )
    http_client_connect_timeout: float = flag(DURATION, 2.0, "timeout for HTTP connect", key=None)
    http_client_request_timeout: float = flag(DURATION, 5.0, "timeout for HTTP request", key=None)
    plain: bool = flag(BOOL, False, "print NSQ's lines on a terminal too, not a live table", key=None)
    tolerate_failures: bool = flag(
        BOOL,
        False,
        "go on without the nsqds and nsqlookupds that fail, as long as one nsqd answers",
        key=None,
    )


FLAGS = FlagSet(NAME, Options)


def check(options: Options) -> None:
    """Raises ToolError, or UsageError for an address."""
    if not options.topic or not options.channel:
        raise ToolError("--topic and --channel are required")
    if options.interval <= 0:
        raise ToolError("--interval should be positive")
    if options.http_client_connect_timeout <= 0:
        raise ToolError("--http-client-connect-timeout should be positive")
    if options.http_client_request_timeout <= 0:
        raise ToolError("--http-client-request-timeout should be positive")
    if options.count is not None and options.count <= 0:
        raise ToolError("--count should be positive")
    given = {
        "--nsqd-http-address": options.nsqd_http_address,
        "--lookupd-http-address": options.lookupd_http_address,
    }
    if not any(given.values()):
        raise ToolError("--nsqd-http-address or --lookupd-http-address required")
    if all(given.values()):
        raise ToolError("use --nsqd-http-address or --lookupd-http-address not both")
    for name, addresses in given.items():
        if any(address.startswith("http") for address in addresses):
            raise ToolError(f"{name} error - address should not contain scheme")
        as_addresses(addresses)
