"""The flags that several utilities have, and the checks of them.

A utility's options are one dataclass over `Common` or `Consuming`; its own module adds the rest.
"""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nsquark.cli.flags import BOOL, INT, STRINGS, Kind, flag
from nsquark.client.config import LIBRARY, Config, check_option
from nsquark.errors import UsageError
from nsquark.version import NSQ_VERSION

from .running import ToolError


class ClientOptionsKind(Kind):
    """`--consumer-opt` and `--producer-opt`: `name,value` or a bare `name`, as often as wanted.

    An option is checked where it stands, so that a bad one is an error of the command line.
    """

    def parse(self, text: str, so_far: Any) -> list[str]:
        try:
            check_option(text)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return [*(so_far or ()), text]


CLIENT_OPTIONS = ClientOptionsKind()

# Attempts are unlimited unless the user says otherwise: with NSQ's own default of 5, a tool that archives or
# forwards would finish a message at its sixth delivery without having written it anywhere.
CONSUMER_OPT_HELP = (
    "option to passthrough to the consumer, name,value (may be given multiple times);"
    " max_attempts is 0 here, no limit, and not NSQ's 5, so that no message is dropped"
)


@dataclass(slots=True, repr=False, eq=False)
class Common:
    """The flag that every utility has."""

    version: bool = flag(BOOL, False, "print version string", key=None)


@dataclass(slots=True, repr=False, eq=False)
class Consuming(Common):
    """The flags of a utility that consumes."""

    nsqd_tcp_address: list[str] = flag(
        STRINGS, list, "nsqd TCP address (may be given multiple times)", key=None
    )
    lookupd_http_address: list[str] = flag(
        STRINGS, list, "lookupd HTTP address (may be given multiple times)", key=None
    )
    consumer_opt: list[str] = flag(CLIENT_OPTIONS, list, CONSUMER_OPT_HELP, key=None)
    max_in_flight: int = flag(INT, 200, "max number of messages to allow in flight", key=None)


def check_addresses(options: Consuming) -> None:
    """Refuse a command line with neither nsqds nor nsqlookupds, or with both. Raises ToolError."""
    if not options.nsqd_tcp_address and not options.lookupd_http_address:
        raise ToolError("--nsqd-tcp-address or --lookupd-http-address required")
    if options.nsqd_tcp_address and options.lookupd_http_address:
        raise ToolError("use --nsqd-tcp-address or --lookupd-http-address not both")


def consumer_config(program: str, options: Consuming) -> Config:
    """The client's configuration of a consuming utility. Raises ToolError."""
    return client_config(
        program, options.consumer_opt, Config(max_attempts=0), max_in_flight=options.max_in_flight
    )


def client_config(program: str, given: Sequence[str], base: Config, **fixed: Any) -> Config:
    """`given` options on top of `base`; `fixed` and the user agent win over both, as in NSQ.

    Raises ToolError if the options do not fit each other.
    """
    try:
        config = Config.from_options(given, base)
        return replace(config, user_agent=f"{program}/{NSQ_VERSION} {LIBRARY}", **fixed)
    except UsageError as error:
        raise ToolError(str(error)) from None
