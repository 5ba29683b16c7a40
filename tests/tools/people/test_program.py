"""The program as a whole: help, completion, exit statuses, what it imports."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from nsquark.kernel import COMPILED
from nsquark.tools.people.program import COMMANDS
from tests.daemon import Nsqd, Nsqlookupd
from tests.tools.people.command import PROGRAM, Running, environment, failure, output


def test_help_names_every_command() -> None:
    text = output("--help")
    assert all(f"\n  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    text = output(name, "--help")
    assert text.startswith(f"Usage: nsquark {name} ")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("group", ["topic", "channel", "dead"])
def test_every_command_of_a_group_has_help(group: str) -> None:
    listed = output(group, "--help").partition("Commands:\n")[2].split("\n")
    names = [line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "]
    assert len(names) >= 4
    for name in names:
        assert "Where to connect:" in output(group, name, "--help")


def test_help_imports_neither_the_client_nor_the_servers_nor_spark() -> None:
    code = (
        "import sys; sys.argv = ['nsquark', '--help']\n"
        "from nsquark.tools.people.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'asyncio', 'rich', 'ssl', 'nsquark.client', 'nsquark.nsqd', 'nsquark.kernel', 'pyspark'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "up"])
def test_no_command_imports_spark_or_the_servers(name: str) -> None:
    code = (
        f"import sys, importlib; importlib.import_module('nsquark.tools.people.commands.{name}')\n"
        "print(sorted({'pyspark', 'nsquark.nsqd', 'nsquark.nsqlookupd'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout == "[]\n", done.stderr


def test_a_wrong_call_is_status_2() -> None:
    assert "Did you mean 'topic'?" in failure("topc", status=2)
    assert "No such option" in failure("stat", "--nope", status=2)
    assert "'x' is none of" in failure("tail", "t", "--from", "x", status=2)
    assert "neither host:port" in failure("stat", "--nsqd-http", "nonsense", status=2)


def test_the_version() -> None:
    kernel = "compiled kernel" if COMPILED else "kernel in plain Python"
    assert re.match(rf"nsquark 0\.\S+ \(NSQ 1\.3\.0\), {kernel}", output("--version"))
    pure = output("--version", NSQUARK_PURE="1")
    assert pure.endswith(", kernel in plain Python: NSQUARK_PURE is set\n")


# ---- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    script = output("completion", shell)
    assert f"_NSQUARK_COMPLETE={shell}_complete" in script
    if program := shutil.which(shell):
        flag = "--no-execute" if shell == "fish" else "-n"
        subprocess.run([program, flag], input=script.encode(), check=True, capture_output=True)


def complete(*words: str, **more: str) -> list[str]:
    """What bash would be offered for the last word."""
    line = ["nsquark", *words]
    done = subprocess.run(
        PROGRAM,
        capture_output=True,
        text=True,
        env=environment(
            _NSQUARK_COMPLETE="bash_complete",
            COMP_WORDS=" ".join(line),
            COMP_CWORD=str(len(line) - 1),
            **more,
        ),
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


async def test_commands_flags_topics_and_channels_are_completed(nsqd: Nsqd) -> None:
    assert complete("to") == ["top", "topic"]
    assert complete("topic", "p") == ["pause"]
    assert "--from" in complete("tail", "--f")
    await nsqd.post("/topic/create?topic=orders")
    await nsqd.post("/topic/create?topic=other")
    await nsqd.post("/channel/create?topic=orders&channel=billing")
    here = {"NSQUARK_NSQD_HTTP": nsqd.http_address}
    assert complete("tail", "o", **here) == ["orders", "other"]
    assert complete("channel", "pause", "orders", "b", **here) == ["billing"]
    assert complete("tail", "o", NSQUARK_NSQD_HTTP="127.0.0.1:1") == []


# ---- ends that every command shares


COMMANDS_THAT_CONNECT = [
    ["pub", "t", "x"], ["tail", "t"], ["tail", "t", "--from", "1m"], ["peek", "t"], ["stat"],
    ["topic", "list"], ["topic", "create", "t"], ["topic", "pause", "t"], ["topic", "delete", "t", "-y"],
    ["channel", "list", "t"], ["channel", "create", "t", "c"], ["channel", "empty", "t", "c", "-y"],
    ["channel", "seek", "t", "c", "latest", "-y"], ["dead", "list"], ["dead", "show", "t", "c"],
    ["dead", "send-back", "t", "c"], ["replay", "t", "--into", "u"], ["bench"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS_THAT_CONNECT, ids=" ".join)
def test_a_server_that_is_not_there_is_named(words: list[str]) -> None:
    where = ["--nsqd-http", "127.0.0.1:1", "--nsqd-tcp", "127.0.0.1:1"]
    assert failure(*words, *where) == "nsquark: nsqd 127.0.0.1:1 does not answer: Connection refused\n"
    line = failure(*words, "--lookupd-http", "127.0.0.1:1")
    assert line == "nsquark: nsqlookupd 127.0.0.1:1 does not answer: Connection refused\n"


@pytest.mark.parametrize("words", [["stat"], ["pub", "t", "x"], ["tail", "t", "--from", "1m"]], ids=" ".join)
def test_a_server_that_hangs_is_given_up(words: list[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        line = failure(*words, "--nsqd-http", address, "--nsqd-tcp", address, "--timeout", "300ms")
        assert re.search(rf"{address} does not answer: .*(no answer|0.3 s|in time)", line), line


@pytest.mark.parametrize(
    "words",
    [["tail", "a b"], ["pub", "", "x"], ["channel", "pause", "t", "x" * 65], ["replay", "t", "--into", "ü"]],
    ids=" ".join,
)
def test_a_wrong_name_is_named(words: list[str]) -> None:
    wrong = {"tail": "'a b'", "pub": "''", "channel": "x" * 65, "replay": "'ü'"}[words[0]]
    assert wrong in failure(*words)


def test_a_reader_that_has_gone_is_no_failure(nsqd: Nsqd) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for words in (["--help"], ["stat"], ["stat", "--json"], ["topic", "list"]):
        done = subprocess.run(
            [*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE,
            env=environment(NSQUARK_NSQD_HTTP=nsqd.http_address),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b""), words
    os.close(writing)


def test_streams_that_are_closed_are_no_failure(nsqd: Nsqd) -> None:
    at = f"--nsqd-http {nsqd.http_address} --nsqd-tcp {nsqd.tcp_address}"
    program = " ".join(PROGRAM)
    for line, status in (
        (f"{program} stat {at} >&-", 0),
        (f"{program} pub t x {at} <&- 2>&-", 0),
        (f"{program} tail t --to latest {at} >&-", 0),
        (f"{program} topic delete t {at} <&-", 2),
        (f"LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {program} bench one --seconds 50ms {at}", 0),
    ):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment())
        assert done.returncode == status, (line, done)
        assert "Traceback" not in done.stderr


def test_a_wrong_port_is_told_in_a_line(nsqd: Nsqd, nsqlookupd: Nsqlookupd) -> None:
    assert "it is not an nsqlookupd" in failure("stat", "--lookupd-http", nsqd.http_address)
    assert nsqlookupd.http_address in failure("stat", "--nsqd-http", nsqlookupd.http_address)
    assert nsqd.tcp_address in failure("stat", "--nsqd-http", nsqd.tcp_address)
    assert nsqd.http_address in failure("pub", "t", "x", "--nsqd-tcp", nsqd.http_address)
    assert nsqd.http_address in failure("tail", "t", "--nsqd-tcp", nsqd.http_address)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_wait_for_a_server(signum: signal.Signals) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        with Running(
            "stat", "--nsqd-http", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "60s"
        ) as running:
            peer, _ = silent.accept()
            status, stdout, stderr = running.interrupt(signum)
            peer.close()
    assert (status, stdout, stderr) == (128 + signum, "", "interrupted\n")


def test_nothing_is_coloured_in_a_pipe(nsqd: Nsqd) -> None:
    output("pub", "t", '{"a": 1}', "--nsqd-tcp", nsqd.tcp_address)
    for words in (["stat"], ["peek", "t"], ["tail", "t", "--from", "earliest", "--to", "latest"]):
        assert "\x1b" not in output(*words, "--nsqd-http", nsqd.http_address)
