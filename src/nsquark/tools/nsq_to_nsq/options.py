"""The flags of nsq_to_nsq."""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

from dataclasses import dataclass

from nsquark.cli.flags import INT, STRING, STRINGS, FlagSet, flag
from nsquark.names import is_valid_name

from ..command.options import CLIENT_OPTIONS, Consuming, check_addresses
from ..command.running import ToolError
from ..forward.target_choice import MODES

PROGRAM = "nsq_to_nsq"


@dataclass(slots=True, repr=False, eq=False)
class Options(Consuming):
    topic: list[str] = flag(STRINGS, list, "nsq topic (may be given multiple times)", key=None)
    channel: str = flag(STRING, PROGRAM, "nsq channel", key=None)
    destination_topic: str = flag(
        STRING,
        "",
        "use this destination topic for all consumed topics (default is consumed topic name)",
        key=None,
    )
    destination_nsqd_tcp_address: list[str] = flag(
        STRINGS, list, "destination nsqd TCP address (may be given multiple times)", key=None
    )
    producer_opt: list[str] = flag(
        CLIENT_OPTIONS,
        list,
        "option to passthrough to the producers, name,value (may be given multiple times)",
        key=None,
    )
    mode: str = flag(
        STRING,
        "hostpool",
        "the upstream request mode options: round-robin, hostpool (default), epsilon-greedy",
        key=None,
    )
    status_every: int = flag(
        INT, 250, "the # of requests between logging status (per destination), 0 disables", key=None
    )
    require_json_field: str = flag(
        STRING, "", "for JSON messages: only pass messages that contain this field", key=None
    )
    require_json_value: str = flag(
        STRING,
        "",
        "for JSON messages: only pass messages in which the required field has this value",
        key=None,
    )
    whitelist_json_field: list[str] = flag(
        STRINGS, list, "for JSON messages: pass this field (may be given multiple times)", key=None
    )


FLAGS = FlagSet(PROGRAM, Options)


def check(options: Options) -> None:
    """Raises ToolError for options that do not fit each other, in NSQ's order."""
    if not options.topic or not options.channel:
        raise ToolError("--topic and --channel are required")
    for topic in options.topic:
        if not is_valid_name(topic):
            raise ToolError(f"--topic is invalid: {topic!r}")
    if options.destination_topic and not is_valid_name(options.destination_topic):
        raise ToolError(f"--destination-topic is invalid: {options.destination_topic!r}")
    if not is_valid_name(options.channel):
        raise ToolError(f"--channel is invalid: {options.channel!r}")
    check_addresses(options)
    if not options.destination_nsqd_tcp_address:
        raise ToolError("--destination-nsqd-tcp-address required")
    if options.mode not in MODES:
        raise ToolError(f"--mode is none of {', '.join(MODES)}: {options.mode!r}")
    if options.status_every < 0:
        raise ToolError(f"--status-every is negative: {options.status_every}")
