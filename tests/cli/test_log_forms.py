"""Log lines as text and as JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from nsquark.cli.log_forms import FORMS, json_form, line_of
from tests.daemon import Daemon, Nsqadmin, Nsqd, Nsqlookupd

NOW = 1714557600.000123


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "nsquark.x", "levelno": level, "msg": text, "created": NOW})


def test_a_json_line_is_one_object() -> None:
    assert json.loads(json_form("[nsqd] ", record("hello"), "hello", ())) == {
        "time": "2024-05-01T10:00:00.000123Z",
        "level": "info",
        "program": "nsqd",
        "logger": "nsquark.x",
        "message": "hello",
    }


def test_a_traceback_stays_on_the_line() -> None:
    line = json_form("", record("oh", logging.ERROR), "oh", ["Traceback", '  File "x"'])
    assert "\n" not in line
    assert json.loads(line)["exception"] == 'Traceback\n  File "x"'
    assert FORMS["text"]("", record("oh"), "oh", ["Traceback", "\x1b[2J"]).splitlines()[1:] == [
        "    Traceback",
        r"    \x1b[2J",
    ]


@pytest.mark.parametrize("prefix", ["[nsqd] ", "nsqd ", "", "\udcff "])
def test_any_prefix_makes_json(prefix: str) -> None:
    line = line_of(json_form, prefix, logging.CRITICAL, 'quotes " and \x07', NOW)
    assert line.isascii()
    assert json.loads(line)["level"] == "fatal"


def daemons(path: Path) -> list[Daemon]:
    return [Nsqd(path / "data"), Nsqlookupd(), Nsqadmin("--lookupd-http-address=127.0.0.1:1")]


def test_every_daemon_logs_json_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    for daemon in daemons(tmp_path):
        (tmp_path / "data").mkdir(exist_ok=True)
        process = subprocess.Popen(
            [*daemon.command(), "--log-format=json"],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stderr is not None
            lines = [json.loads(process.stderr.readline())]
            while not any("HTTP: listening" in line["message"] for line in lines):
                lines.append(json.loads(process.stderr.readline()))
            process.terminate()
            lines += [json.loads(line) for line in process.stderr]
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
        assert {line["program"] for line in lines} == {daemon.name}
        assert lines[0]["message"].startswith(f"{daemon.name} v1.3.0")


def test_a_start_that_fails_says_so_in_json(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "nsquark.nsqd", f"--data-path={tmp_path}", "--log-format=json"]
    done = subprocess.run([*program, "--tcp-address=127.0.0.1:99999"], capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = [json.loads(line) for line in done.stderr.splitlines() if '"fatal"' in line]
    assert "99999" in line["message"]
    done = subprocess.run([*program, "--log-format=xml"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "invalid log format 'xml' (text, json)" in done.stderr
