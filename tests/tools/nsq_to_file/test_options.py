"""What the command line is refused for, with real processes."""

from __future__ import annotations

import pytest

from nsquark.tools.nsq_to_file.options import FLAGS
from tests.tools.nsq_to_file.archiver import ended

NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["word"], "unknown arguments: [word]"),
        (["--version", "word"], "unknown arguments: [word]"),
        (["--version", "--log-level=loud"], "--log-level 'loud' is none of debug, info, warn, error, fatal"),
        (["--channel="], "--channel is required"),
        (["--http-client-connect-timeout=0"], "--http-client-connect-timeout should be positive"),
        (["--http-client-request-timeout=-1s"], "--http-client-request-timeout should be positive"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        (["--topic=t", NSQD, LOOKUPD], "use --nsqd-tcp-address or --lookupd-http-address not both"),
        (["--gzip-level=0", NSQD], "invalid --gzip-level value (0), should be 1-9"),
        ([NSQD], "--topic or --topic-pattern required"),
        (["--topic-pattern=t", NSQD], "--lookupd-http-address must be specified when no --topic specified"),
        (["--topic=t", "--zstd-level=23", NSQD], "invalid --zstd-level value (23), should be 1-22"),
        (["--topic=t", "--gzip", "--zstd", NSQD], "use --gzip or --zstd not both"),
        (["--topic=t", "--format=xml", NSQD], "--format 'xml' is none of plain, jsonl"),
        (["--topic=t", "--sync-interval=0", NSQD], "--sync-interval should be positive"),
        (["--topic-pattern=t", "--topic-refresh=0", LOOKUPD], "--topic-refresh should be positive"),
        (["--topic=t", "--max-in-flight=0", NSQD], "--max-in-flight should be positive"),
        (["--topic=a b", NSQD], "topic 'a b' is no valid name"),
        (["--topic=t", "--channel=a b", NSQD], "channel 'a b' is no valid name"),
        (["--topic=t", "--nsqd-tcp-address=host"], "address host: missing port in address"),
        (
            ["--topic-pattern=t", "--lookupd-http-address=host"],
            "nsqlookupd 'host' is neither host:port nor a URL with a port",
        ),
        (["--topic=t", "--topic-pattern=x", NSQD], "--topic-pattern 'x' matches no --topic"),
        (
            ["--topic=..", "--filename-format=<TOPIC>/a", NSQD],
            "topic ..: '../a' is no name for a file",
        ),
        *(
            (
                ["--topic=t", flag, "--filename-format=a.log", NSQD],
                "missing <REV> in --filename-format 'a.log' when compression, rotation, or work dir enabled",
            )
            for flag in (
                "--gzip",
                "--zstd",
                "--rotate-size=1",
                "--rotate-interval=1s",
                "--work-dir=/work-dir",
            )
        ),
    ],
)
def test_a_bad_combination_is_one_line_and_exit_code_1(flags: list[str], text: str) -> None:
    code, out, err = ended(*flags)
    assert (code, out, err[20:]) == (1, "", text + "\n")


def test_an_invalid_pattern_is_refused() -> None:
    code, _, err = ended("--topic-pattern=(", LOOKUPD)
    assert code == 1
    assert err[20:].startswith("invalid --topic-pattern '(': ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "flags", [["--nothing"], ["--gzip-level=x"], ["--sync-interval=5"], ["--consumer-opt=no_such_option,1"]]
)
def test_a_command_line_that_does_not_parse_is_exit_code_2(flags: list[str]) -> None:
    code, _, err = ended("--topic=t", NSQD, *flags)
    assert code == 2
    assert "\nUsage of nsq_to_file:\n" in err


def test_options_that_do_not_fit_each_other_are_exit_code_1() -> None:
    code, _, err = ended("--topic=t", NSQD, "--consumer-opt=heartbeat_interval,90s")
    assert code == 1
    assert "heartbeat_interval" in err


def test_the_version_is_told_before_any_other_check() -> None:
    code, out, err = ended("--version", "--gzip-level=77", "--log-level=DEBUG")
    assert (code, err) == (0, "")
    assert out.startswith("nsq_to_file v1.3.0")


def test_help_names_this_program_and_where_it_differs() -> None:
    code, out, err = ended("-h")
    assert (code, out) == (0, "")
    assert err.startswith("Usage of nsq_to_file:\n")
    assert "max_attempts is 0 here" in err


def test_flags_are_read_as_go_reads_them() -> None:
    line = [
        "-topic",
        "a",
        "--topic=b,c",
        "--gzip=false",
        "--gzip",
        "-sync-interval=1m30s",
        "--rotate-size",
        "0x10",
    ]
    options = FLAGS.build(FLAGS.parse([*line, "--channel=one", "--channel=two"]))
    assert options.topic == ["a", "b,c"]
    assert (options.gzip, options.sync_interval, options.rotate_size, options.channel) == (
        True,
        90.0,
        16,
        "two",
    )
