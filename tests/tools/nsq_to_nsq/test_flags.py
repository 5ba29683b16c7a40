"""The command line of nsq_to_nsq: what is refused, in which order, and with which exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tools.forward.program import refused

SOURCE = "--nsqd-tcp-address=127.0.0.1:1"
DESTINATION = "--destination-nsqd-tcp-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "--topic and --channel are required"),
        (["--topic=t", "--channel="], "--topic and --channel are required"),
        (["--topic=t", "--topic=a b"], "--topic is invalid: 'a b'"),
        (["--topic=t", "--destination-topic=a b"], "--destination-topic is invalid: 'a b'"),
        (["--topic=t", "--channel=a b"], "--channel is invalid: 'a b'"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            ["--topic=t", SOURCE, "--lookupd-http-address=127.0.0.1:1"],
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (["--topic=t", SOURCE], "--destination-nsqd-tcp-address required"),
        (
            ["--topic=t", SOURCE, DESTINATION, "--mode=best"],
            "--mode is none of hostpool, round-robin, epsilon-greedy: 'best'",
        ),
        (["--topic=t", SOURCE, DESTINATION, "--status-every=-1"], "--status-every is negative: -1"),
        (
            ["--topic=t", SOURCE, "--destination-nsqd-tcp-address=nowhere"],
            "address nowhere: missing port in address",
        ),
        (
            ["--topic=t", SOURCE, DESTINATION, "--producer-opt=heartbeat_interval,90s"],
            "heartbeat_interval 90.0 is longer than read_timeout 60.0",
        ),
    ],
)
def test_flags_that_do_not_fit_each_other_end_it(flags: list[str], text: str) -> None:
    assert refused("nsq_to_nsq", *flags) == (1, text + "\n")


def test_a_source_that_is_not_there_ends_it_in_one_line() -> None:
    expected = 1, "127.0.0.1:1: Connection refused\n"
    assert refused("nsq_to_nsq", "--topic=t", SOURCE, DESTINATION) == expected


@pytest.mark.parametrize("flag", ["--nothing", "--max-in-flight=many", "--producer-opt=tls_v1,perhaps"])
def test_a_command_line_that_does_not_parse_is_2(flag: str) -> None:
    code, text = refused("nsq_to_nsq", flag)
    assert code == 2
    assert "Usage of nsq_to_nsq:" in text


def test_help_is_0_and_says_that_attempts_are_unlimited() -> None:
    code, text = refused("nsq_to_nsq", "-h")
    assert code == 0
    assert text.startswith("Usage of nsq_to_nsq:\n")
    assert "max_attempts is 0 here" in text


def test_the_version_comes_before_the_checks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsquark.tools.nsq_to_nsq", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "nsq_to_nsq v1.3.0\n", "")
