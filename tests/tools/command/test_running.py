"""How the utilities' common program runs and ends, as real processes."""

import os
import subprocess
import sys

PROGRAM = """
import sys
from dataclasses import dataclass
from nsquark.cli.flags import FlagSet
from nsquark.tools.command.options import Consuming, check_addresses, consumer_config
from nsquark.tools.command.running import Tool

async def run(options):
    config = consumer_config("probe", options)
    print(config.max_attempts, config.max_in_flight, config.user_agent.split()[0])
    for _ in range(100_000):
        print("line")

sys.exit(Tool("probe", FlagSet("probe", Consuming), check_addresses, run).main())
"""


def start(*flags: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *flags], stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def ended(*flags: str) -> tuple[int | None, str, str]:
    process = start(*flags)
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


def test_version_comes_before_any_other_check() -> None:
    code, out, err = ended("--version", "--max-in-flight=3")
    assert (code, out, err) == (0, "probe v1.3.0\n", "")


def test_help_is_on_stderr_and_no_failure() -> None:
    code, out, err = ended("-h")
    assert (code, out) == (0, "")
    assert err.startswith("Usage of probe:\n")


def test_an_unknown_flag_and_a_bad_option_are_errors_of_the_command_line() -> None:
    code, _, err = ended("--nothing")
    assert code == 2
    assert err.startswith("flag provided but not defined: -nothing\nUsage of probe:")
    code, _, err = ended("--nsqd-tcp-address=a:1", "--consumer-opt=max_attempts,many")
    assert code == 2
    assert err.startswith('invalid value "max_attempts,many" for flag -consumer-opt: ')


def test_one_kind_of_address_is_needed() -> None:
    code, _, err = ended()
    assert code == 1
    assert err[20:] == "--nsqd-tcp-address or --lookupd-http-address required\n"
    code, _, err = ended("--nsqd-tcp-address=a:1", "--lookupd-http-address=b:1")
    assert code == 1
    assert err[20:] == "use --nsqd-tcp-address or --lookupd-http-address not both\n"


def test_options_that_do_not_fit_each_other_end_the_program() -> None:
    code, _, err = ended("--nsqd-tcp-address=a:1", "--consumer-opt=heartbeat_interval,90s")
    assert code == 1
    assert "heartbeat_interval" in err
    assert len(err.splitlines()) == 1


def test_attempts_are_unlimited_unless_the_user_says_otherwise() -> None:
    _, out, _ = ended("--nsqd-tcp-address=a:1")
    assert out.splitlines()[0] == "0 200 probe/1.3.0"
    _, out, _ = ended("--nsqd-tcp-address=a:1", "--consumer-opt=max_attempts,5", "--max-in-flight=7")
    assert out.splitlines()[0] == "5 7 probe/1.3.0"


def test_a_closed_pipe_ends_the_program_quietly() -> None:
    process = start("--nsqd-tcp-address=a:1")
    assert process.stdout is not None
    assert process.stderr is not None
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    assert process.wait(20) == 141
    assert process.stderr.read() == ""
    process.stderr.close()
