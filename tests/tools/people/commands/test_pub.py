"""`nsquark pub` against a real nsqd."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.daemon import Nsqd
from tests.tools.people.command import Running, failure, nsquark, output


async def bodies(nsqd: Nsqd, topic: str) -> list[str]:
    _, answer = await nsqd.http("GET", f"/topic/peek?topic={topic}&limit=1000")
    return [message["body"] for message in json.loads(answer)["messages"]]


async def test_words_are_messages(shared: Nsqd, at: list[str]) -> None:
    done = nsquark("pub", "words", "one", "two words", "", *at)
    assert done.stderr == "published 2 messages to topic 'words'; 1 empty ones left out\n"
    assert done.stdout == ""
    assert await bodies(shared, "words") == ["one", "two words"]


async def test_lines_of_stdin_are_messages(shared: Nsqd, at: list[str]) -> None:
    done = nsquark("pub", "stdin", *at, stdin=b"one\n\ntwo\nthe last without its line feed")
    assert done.returncode == 0
    assert await bodies(shared, "stdin") == ["one", "two", "the last without its line feed"]


async def test_lines_of_files_and_whole_files(shared: Nsqd, at: list[str], tmp_path: Path) -> None:
    for name, text in (("a", "1\n2\n"), ("b", "3\n")):
        (tmp_path / name).write_text(text)
    files = ["-f", str(tmp_path / "a"), "-f", str(tmp_path / "b")]
    output("pub", "files", *files, "-q", *at)
    output("pub", "files", *files, "--whole", *at)
    assert await bodies(shared, "files") == ["1", "2", "3", "1\n2\n", "3\n"]


async def test_many_lines_arrive_in_order(shared: Nsqd, at: list[str]) -> None:
    lines = b"".join(b"%d\n" % number for number in range(30_000))
    done = nsquark("pub", "many", *at, stdin=lines)
    assert done.stderr.startswith("published 30,000 messages to topic 'many'")
    assert output("tail", "many", "--from", "earliest", "--to", "latest", *at).encode() == lines


async def test_deferred(shared: Nsqd, at: list[str]) -> None:
    output("topic", "create", "later", *at)
    output("channel", "create", "later", "ch", *at)
    output("pub", "later", "x", "y", "--defer", "10m", *at)
    (topic,) = json.loads(output("stat", "later", "--json", *at))
    assert (topic["channels"][0]["depth"], topic["channels"][0]["deferred"]) == (0, 2)


def test_a_rate_is_kept(at: list[str]) -> None:
    begun = time.monotonic()
    output("pub", "slow", "--rate", "50", *at, stdin=b"x\n" * 40)
    assert time.monotonic() - begun > 0.7


def test_ctrl_c_says_how_much_is_stored(at: list[str]) -> None:
    with Running("pub", "endless", *at, stdin=subprocess.PIPE) as running:
        assert running.process.stdin is not None
        running.process.stdin.write(b"one\ntwo\n")
        running.process.stdin.flush()
        while "endless" not in output("topic", "list", *at):
            pass
        status, stdout, stderr = running.interrupt()
    assert (status, stdout) == (130, "")
    assert stderr.startswith("interrupted: published 2 messages ")
    assert "to topic 'endless'" in stderr


def test_a_file_that_is_not_there_is_named(at: list[str], tmp_path: Path) -> None:
    assert (
        failure("pub", "t", "-f", "/no/such/file", *at)
        == "nsquark: /no/such/file: No such file or directory\n"
    )
    assert "Is a directory" in failure("pub", "t", "-f", str(tmp_path), *at)


def test_what_is_too_large_is_refused(at: list[str]) -> None:
    line = failure("pub", "t", "--max-msg-size", "1k", *at, stdin=b"x" * 1025)
    assert line == "nsquark: stdin: a message of more than 1,024 bytes (--max-msg-size)\n"
    # nsqd's own limit is smaller than what we were told
    line = failure("pub", "t", "--max-msg-size", "4M", *at, stdin=b"x" * (2 << 20))
    assert "a body of 2097152 bytes" in line
    assert "takes 1 to 1048576" in line


def test_an_nsqd_that_dies_is_named(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data").start() as nsqd:
        with Running("pub", "t", "--nsqd-tcp", nsqd.tcp_address, stdin=subprocess.PIPE) as running:
            assert running.process.stdin is not None
            running.process.stdin.write(b"one\n")
            running.process.stdin.flush()
            while "t " not in output("topic", "list", "--nsqd-http", nsqd.http_address):
                pass
            nsqd.kill()
            _, stderr = running.process.communicate(b"two\n", timeout=60)
    assert running.process.returncode == 1
    assert "cannot publish to topic 't'" in stderr.decode()
    assert "Traceback" not in stderr.decode()


@pytest.mark.parametrize("words", [["x", "-f", "y"], ["x", "--whole"], ["--rate", "0"], ["--defer", "soon"]])
def test_what_makes_no_sense_is_refused(words: list[str]) -> None:
    failure("pub", "t", *words, status=2)
