"""The flags of nsq_to_http."""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsquark.cli.flags import DURATION, FLOAT, INT, STRING, STRINGS, FlagSet, flag

from ..command.options import Consuming, check_addresses
from ..command.running import ToolError

PROGRAM = "nsq_to_http"
CONTENT_TYPE = "application/octet-stream"
ALL = "all"


@dataclass(slots=True, repr=False, eq=False)
class Options(Consuming):
    topic: str = flag(STRING, "", "nsq topic", key=None)
    channel: str = flag(STRING, PROGRAM, "nsq channel", key=None)
    n: int = flag(INT, 100, "number of concurrent publishers", key=None)
    post: list[str] = flag(
        STRINGS,
        list,
        "HTTP address to make a POST request to.  data will be in the body (may be given multiple times)",
        key=None,
    )
    get: list[str] = flag(
        STRINGS,
        list,
        "HTTP address to make a GET request to. '%s' will be replaced with data"
        " (may be given multiple times)",
        key=None,
    )
    mode: str = flag(
        STRING,
        "hostpool",
        "the upstream request mode options: round-robin, hostpool (default), epsilon-greedy,"
        " all (every address in order, up to the first failure)",
        key=None,
    )
    sample: float = flag(FLOAT, 1.0, "% of messages to publish (float b/w 0 -> 1)", key=None)
    http_client_connect_timeout: float = flag(DURATION, 2.0, "timeout for HTTP connect", key=None)
    http_client_request_timeout: float = flag(DURATION, 20.0, "timeout for HTTP request", key=None)
    status_every: int = flag(
        INT, 250, "the # of requests between logging status (per handler), 0 disables", key=None
    )
    content_type: str = flag(STRING, CONTENT_TYPE, "the Content-Type used for POST requests", key=None)
    header: list[str] = flag(
        STRINGS,
        list,
        "custom header for HTTP requests, 'Name: value' (may be given multiple times)",
        key=None,
    )


FLAGS = FlagSet(PROGRAM, Options)


def check(options: Options) -> None:
    """Raises ToolError for options that do not fit each other, in NSQ's order."""
    parse_headers(options.header)
    if not options.topic or not options.channel:
        raise ToolError("--topic and --channel are required")
    if options.content_type != CONTENT_TYPE:
        if not options.post:
            raise ToolError("--content-type only used with --post")
        if not options.content_type:
            raise ToolError("--content-type requires a value when used")
        if not options.content_type.isprintable():
            raise ToolError(f"--content-type has a character that no header has: {options.content_type!r}")
    check_addresses(options)
    if not options.get and not options.post:
        raise ToolError("--get or --post required")
    if options.get and options.post:
        raise ToolError("use --get or --post not both")
    for address in options.get:
        if address.count("%s") != 1:
            raise ToolError(f"invalid GET address - must have one %s: {address!r}")
    if not 0.0 <= options.sample <= 1.0:
        raise ToolError(f"ERROR: --sample must be between 0.0 and 1.0: {options.sample!r}")
    if options.n < 1:
        raise ToolError(f"-n must be positive: {options.n}")
    for name in ("http_client_connect_timeout", "http_client_request_timeout"):
        if getattr(options, name) <= 0:
            raise ToolError(f"--{name.replace('_', '-')} should be positive")
    if options.status_every < 0:
        raise ToolError(f"--status-every is negative: {options.status_every}")


def parse_headers(given: Sequence[str]) -> dict[str, str]:
    """Headers by name; of a name that is given again, the last value. Raises ToolError."""
    headers = {}
    for header in given:
        name, colon, value = (part.strip() for part in header.partition(":"))
        if not (name and colon and value):
            raise ToolError(f"--header value format should be 'Name: value': {header!r}")
        if not (name + value).isprintable() or " " in name:
            raise ToolError(f"--header has a character that no header has: {header!r}")
        headers[name] = value
    return headers
