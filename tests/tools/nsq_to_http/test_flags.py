"""The command line of nsq_to_http: what is refused, in which order, and with which exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tools.forward.program import refused

NSQD = "--nsqd-tcp-address=127.0.0.1:1"
POST = "--post=http://127.0.0.1:1/"
NO_HEADER = "--header value format should be 'Name: value': "


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--header=key=value"], NO_HEADER + "'key=value'"),
        (["--header=: value"], NO_HEADER + "': value'"),
        (["--header=Name: "], NO_HEADER + "'Name: '"),
        (["--header=X: a\r\nY: b"], "--header has a character that no header has: 'X: a\\r\\nY: b'"),
        ([], "--topic and --channel are required"),
        (["--topic=t", "--channel="], "--topic and --channel are required"),
        (["--topic=t", "--content-type=text/plain"], "--content-type only used with --post"),
        (["--topic=t", "--content-type=", POST], "--content-type requires a value when used"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            ["--topic=t", NSQD, "--lookupd-http-address=127.0.0.1:1"],
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (
            ["--topic=t", "--content-type=a\nb", POST],
            "--content-type has a character that no header has: 'a\\nb'",
        ),
        (["--topic=t", NSQD], "--get or --post required"),
        (["--topic=t", NSQD, POST, "--get=http://x/%s"], "use --get or --post not both"),
        (["--topic=t", NSQD, "--get=http://x/"], "invalid GET address - must have one %s: 'http://x/'"),
        (
            ["--topic=t", NSQD, "--get=http://x/%s/%s"],
            "invalid GET address - must have one %s: 'http://x/%s/%s'",
        ),
        (
            ["--topic=t", NSQD, "--get=http://%s/"],
            "invalid GET address - %s is neither in its path nor in its query: 'http://%s/'",
        ),
        (["--topic=t", NSQD, POST, "--sample=1.1"], "ERROR: --sample must be between 0.0 and 1.0: 1.1"),
        (["--topic=t", NSQD, POST, "--sample=-0.1"], "ERROR: --sample must be between 0.0 and 1.0: -0.1"),
        (["--topic=t", NSQD, POST, "-n=0"], "-n must be positive: 0"),
        (
            ["--topic=t", NSQD, POST, "--http-client-request-timeout=0s"],
            "--http-client-request-timeout should be positive",
        ),
        (["--topic=t", NSQD, "--post=127.0.0.1/x"], "invalid address - no http or https URL: '127.0.0.1/x'"),
        (
            ["--topic=t", NSQD, "--post=http://x:port/"],
            "invalid address - no http or https URL: 'http://x:port/'",
        ),
        (["--topic=a b", NSQD, POST], "topic 'a b' is no valid name"),
        (["--topic=t", NSQD, POST], "127.0.0.1:1: Connection refused"),
    ],
)
def test_what_does_not_fit_ends_it_in_one_line(flags: list[str], text: str) -> None:
    assert refused("nsq_to_http", *flags) == (1, text + "\n")


@pytest.mark.parametrize("flag", ["--nothing", "-n=many", "--http-client-connect-timeout=2", "--sample=all"])
def test_a_command_line_that_does_not_parse_is_2(flag: str) -> None:
    code, text = refused("nsq_to_http", flag)
    assert code == 2
    assert "Usage of nsq_to_http:" in text


def test_help_is_0_and_names_every_flag() -> None:
    code, text = refused("nsq_to_http", "-h")
    assert code == 0
    for flag in ("-n int", "-post value", "-get value", "-mode string", "-sample float", "-header value"):
        assert f"  {flag}\n" in text


def test_the_version_comes_before_the_checks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsquark.tools.nsq_to_http", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "nsq_to_http v1.3.0\n", "")
