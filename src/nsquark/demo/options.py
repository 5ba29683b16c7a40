"""The flags of `python -m nsquark.demo`. Every other flag goes to nsqd as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsquark.cli.flags import BOOL, STRING, FlagSet, HelpRequested, flag


@dataclass(slots=True, repr=False, eq=False)
class Options:
    data_path: str = flag(STRING, "data", "nsqd's data")
    demo: bool = flag(BOOL, True, "publish a small stream and archive it with Spark")
    archive: str = flag(STRING, "", "where the demo stream is archived (default archive in the data path)")
    spark_setup: str = flag(
        STRING,
        "",
        "shell command that installs Spark, run when the servers answer (default: it is installed)",
    )
    nsqd_tcp_address: str = flag(STRING, "127.0.0.1:4150", "<addr>:<port> that nsqd listens on")
    nsqd_http_address: str = flag(STRING, "127.0.0.1:4151", "<addr>:<port> that nsqd listens on for HTTP")
    lookupd_tcp_address: str = flag(STRING, "127.0.0.1:4160", "<addr>:<port> that nsqlookupd listens on")
    lookupd_http_address: str = flag(STRING, "127.0.0.1:4161", "<addr>:<port> that nsqlookupd serves HTTP on")
    admin_http_address: str = flag(
        STRING, "127.0.0.1:4171", "<addr>:<port> that nsqadmin serves its pages on"
    )


def parse(argv: Sequence[str]) -> tuple[Options, list[str]]:
    """The options, and the flags for nsqd. Raises StartError."""
    flags = FlagSet("nsquark.demo", Options)
    ours, nsqds = split(flags, argv)
    return flags.build(flags.parse(ours)), nsqds


def split(flags: FlagSet[Options], argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that are flags of ours, with their values, and all others but `--`."""
    ours: list[str] = []
    nsqds: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in ("-h", "-help", "--help"):
            raise HelpRequested(flags.usage())
        name, equals, _ = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in flags.flags:
            nsqds += [word] if word != "--" else []
            continue
        ours.append(word)
        if not equals and not flags.flags[name].kind.boolean and words:
            ours.append(words.pop(0))
    return ours, nsqds
