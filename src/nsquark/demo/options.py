"""The flags of `python -m nsquark.demo`; whatever follows `--` goes to nsqd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsquark.cli.flags import BOOL, STRING, FlagSet, flag


@dataclass(slots=True, repr=False, eq=False)
class Options:
    data_path: str = flag(STRING, "data", "nsqd's data")
    archive: str = flag(STRING, "", "where the demo stream is archived (default archive in the data path)")
    demo: bool = flag(BOOL, True, "publish a stream and archive it")
    nsqd_tcp_address: str = flag(STRING, "0.0.0.0:4150", "<addr>:<port> that nsqd listens on")
    nsqd_http_address: str = flag(STRING, "0.0.0.0:4151", "<addr>:<port> that nsqd listens on for HTTP")
    lookupd_tcp_address: str = flag(STRING, "0.0.0.0:4160", "<addr>:<port> that nsqlookupd listens on")
    lookupd_http_address: str = flag(STRING, "0.0.0.0:4161", "<addr>:<port> that nsqlookupd serves HTTP on")


def parse(argv: Sequence[str]) -> tuple[Options, list[str]]:
    """The options, and the flags for nsqd. Raises StartError."""
    flags = FlagSet("nsquark.demo", Options)
    line = flags.parse(argv)
    return flags.build(line), line.rest
