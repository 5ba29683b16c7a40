"""nsqlookupd's options: every flag of NSQ 1.3.0 and our own. Durations are float seconds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from nsquark.cli.flags import BOOL, DURATION, INT, LOG_FORMAT, LOG_LEVEL, STRING, FlagSet, StartError, flag


def _host_name() -> str:
    return os.uname().nodename


@dataclass(slots=True, repr=False, eq=False)
class Options:
    """A field per flag, named as the flag with `_` for `-`."""

    version: bool = flag(BOOL, False, "print version string", key=None)
    config: str = flag(STRING, "", "path to config file", key=None)
    verbose: bool = flag(
        BOOL,
        False,
        "deprecated: has no effect",
        key=None,
        deprecated="it has no effect, use --log-level=debug",
    )
    log_level: str = flag(LOG_LEVEL, "info", "set log verbosity: debug, info, warn, error, or fatal")
    log_format: str = flag(LOG_FORMAT, "text", "form of log lines: text, or json for one object each")
    log_prefix: str = flag(STRING, "[nsqlookupd] ", "log message prefix")
    tcp_address: str = flag(STRING, "0.0.0.0:4160", "<addr>:<port> to listen on for TCP clients")
    http_address: str = flag(STRING, "0.0.0.0:4161", "<addr>:<port> to listen on for HTTP clients")
    broadcast_address: str = flag(
        STRING, _host_name, "address of this lookupd node, (defaults to the OS hostname)"
    )
    inactive_producer_timeout: float = flag(
        DURATION, 300.0, "duration of time a producer will remain in the active list since its last ping"
    )
    tombstone_lifetime: float = flag(
        DURATION, 45.0, "duration of time a producer will remain tombstoned if registration remains"
    )
    max_registrations: int = flag(
        INT, 2_000_000, "names and producers to keep; beyond, names without a producer are forgotten"
    )
    max_registrations_per_producer: int = flag(
        INT, 200_000, "topics and channels that one producer may register"
    )

    # What to log once there is a log.
    warnings: list[str] = field(default_factory=list)


FLAGS = FlagSet("nsqlookupd", Options)


def parse(argv: Sequence[str]) -> Options:
    """The options of a command line, without the program's name. Raises StartError (see `flags.report`)."""
    line = FLAGS.parse(argv)
    line.check_rest()
    options = FLAGS.build(line)
    options.warnings = line.warnings
    return options


def validate(options: Options) -> None:
    """Refuse, as StartError, what nsqlookupd cannot run with."""
    for name, value in (
        ("--max-registrations", options.max_registrations),
        ("--max-registrations-per-producer", options.max_registrations_per_producer),
    ):
        if value < 1:
            raise StartError(f"failed to instantiate nsqlookupd - {name} must be > 0, not {value}")
