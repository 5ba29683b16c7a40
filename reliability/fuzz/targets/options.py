"""Command lines and config files: flags as Go reads them, TOML, durations and numbers.

The input is a config file; its comment lines that begin with `#!` are the words of the command line.
"""

from __future__ import annotations

from nsquark.cli.flags import StartError
from nsquark.gotext import format_duration, parse_bool, parse_duration, parse_float, parse_int, quote
from nsquark.nsqd.options import FLAGS, parse
from nsquark.nsqd.options_check import validate
from reliability.fuzz.target import Target, Wrong, folder, require_same


def _options(config: bytes, words: list[str]) -> object:
    with folder() as path:
        file = path / "nsqd.toml"
        file.write_bytes(config)
        try:
            options = parse([f"--config={file}", *words])
            validate(options)
        except StartError as error:
            return type(error).__name__, str(error).replace(str(path), "")
        shown = []
        for name, flag in FLAGS.flags.items():
            value = getattr(options, flag.field)
            shown.append((name, flag.kind.shown(value), repr(flag.kind.config_value(value))))
        return repr(shown).replace(str(path), "")


def _texts(text: str) -> list[object]:
    """Each of Go's readers of words: a value, or ValueError. A duration reads as it is shown."""
    found: list[object] = [quote(text)]
    for read in (parse_bool, parse_int, parse_float, parse_duration):
        try:
            value = read(text)
        except ValueError as error:
            found.append(str(error))
            continue
        found.append(repr(value))
        if read is parse_duration:
            require_same("the duration as it is shown", value, parse_duration(format_duration(int(value))))
        if read is parse_int and not -(1 << 63) <= value < 1 << 63:
            raise Wrong(f"{value} is no int64")
    return found


def run(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    words = [line[2:].replace("\0", "") for line in text.split("\n") if line.startswith("#!")]
    return _options(data, words), [_texts(each.rpartition("=")[2]) for each in words[:4]]


def seeds() -> list[bytes]:
    return [
        b'#!--max-msg-size=1048576\n#!-max-rdy-count=0x10\ntcp_address = "h:0"\nmax_msg_timeout = "15m"\n',
        b'#!--node-id=5\n#!--msg-timeout=1m30.5s\nlog_level = "debug"\nmem_queue_size = 100\nsnappy = false',
        b"#!--e2e-processing-latency-percentile=0.5,99\n#!--statsd-mem-stats=false\n",
        b'lookupd_tcp_address = ["a:1","b:2"]\n',
        b"#!--tls-required=tcp-https\n#!--h\nsync_timeout = 2000\nmax_bytes_per_file = 1e3\n",
        b'#!--worker-id=1\n#!--deflate\n#!true\ne2e_processing_latency_percentiles = "0.1, 0.9"\n',
        b"[table]\na = {b = 1}\n",
        b"#!--x\nmax_msg_size = 1979-05-27T07:32:00Z\n",
        b"#!--max-deflate-level=6\n#!--\n#!-x\na = " + b"[" * 100,
        b"#!-1h\n#!9223372036854775807ns\n#!-0x1p-2\n#!.5us\nlog_level = 1\n",
    ]


TARGET = Target(
    name="options",
    run=run,
    seeds=seeds,
    modules=("nsquark.cli.flags", "nsquark.cli.flag_kinds", "nsquark.gotext"),
    words=(
        b"#!--",
        b"\n",
        b" = ",
        b"true",
        b"1e400",
        b"nan",
        b"inf",
        b"9223372036854775808",
        b"1h",
        b"max_msg_size",
        b"log_level",
        b"e2e_processing_latency_percentiles",
        b"lookupd_tcp_address",
        b"tls_min_version",
        b"node_id",
        b'"""',
        b"[[",
        b"0x",
        b"1979-05-27",
        b"\xc2\xb5s",
    ),
    max_length=1500,
)
