import fcntl
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from nsquark.cli import logs

LINE = re.compile(rb"\[t\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} ([A-Z]+): (.*)\n")

logger = logging.getLogger("nsquark.tests")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave the process's logging as it was."""
    root, ours = logging.getLogger(), logging.getLogger("nsquark")
    levels = root.level, ours.level
    switches = logging._srcfile, logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    yield
    if logs._handler is not None:
        root.removeHandler(logs._handler)
        logs._handler.close()
        logs._handler = None
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging._srcfile, logging.logThreads, logging.logProcesses, logging.logMultiprocessing = switches


class Pipe:
    """A pipe whose reading end is only read on demand."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.stream: IO[bytes] = os.fdopen(self.reader, "rb")

    def line(self) -> bytes:
        return self.stream.readline()

    def close_reader(self) -> None:
        self.stream.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.stream.close()
    os.close(pipe.writer)


def set_up(prefix: str, level: str, fd: int) -> None:
    """As the daemons do, and without pytest listening to the same records."""
    logs.set_up(prefix, level, fd)
    logging.getLogger().handlers[:] = [h for h in logging.getLogger().handlers if h is logs._handler]


def run(program: str, **kwargs: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program], **kwargs)  # type: ignore[call-overload,no-any-return]


# The line.


def test_a_line_has_prefix_local_time_with_microseconds_level_and_text() -> None:
    now = time.mktime((2024, 5, 1, 12, 0, 0, 0, 0, -1)) + 0.000123
    assert logs.format_line("[nsqd] ", "INFO", "text", now) == "[nsqd] 2024/05/01 12:00:00.000123 INFO: text"
    assert logs.timestamp(now) == "2024/05/01 12:00:00"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü ☃", "plain äöü ☃"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x1b[2J\x00", "\\x1b[2J\\x00"),
        ("tabs\tstay", "tabs\tstay"),
        ("back\\slash", "back\\slash"),
        ("half \udcff", "half \\udcff"),
    ],
)
def test_what_a_client_says_can_neither_forge_lines_nor_control_the_terminal(text: str, shown: str) -> None:
    assert logs.format_line("", "INFO", text, 0).partition("INFO: ")[2] == shown


def test_each_level_prints_its_nsq_name(pipe: Pipe) -> None:
    set_up("[t] ", "debug", pipe.writer)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, "number %d", level)
    found = [LINE.fullmatch(pipe.line()) for _ in range(5)]
    assert [m and m.groups() for m in found] == [
        (b"DEBUG", b"number 10"),
        (b"INFO", b"number 20"),
        (b"WARNING", b"number 30"),
        (b"ERROR", b"number 40"),
        (b"FATAL", b"number 50"),
    ]


def test_the_prefix_is_used_as_it_is(pipe: Pipe) -> None:
    set_up("nsqd%s>", "info", pipe.writer)
    logger.info("hello")
    assert pipe.line().startswith(b"nsqd%s>20")
    set_up(os.fsdecode(b"\xff "), "info", pipe.writer)
    logger.info("hello")
    assert pipe.line().startswith(b"\xff 20")


def test_a_traceback_follows_indented_so_that_no_line_of_it_looks_like_ours(pipe: Pipe) -> None:
    set_up("[t] ", "info", pipe.writer)
    try:
        raise ValueError("first\n[t] 2024/05/01 12:00:00.000000 FATAL: forged")
    except ValueError:
        logger.exception("it failed")
    logger.info("end")
    lines = [pipe.line()]
    while not lines[-1].endswith(b"INFO: end\n"):
        lines.append(pipe.line())
    assert lines[0].endswith(b" ERROR: it failed\n")
    assert lines[1] == b"    Traceback (most recent call last):\n"
    assert all(line.startswith(b"    ") for line in lines[1:-1])
    assert any(b"FATAL: forged" in line for line in lines[1:-1])


def test_arguments_that_do_not_fit_the_format_are_logged_and_not_raised(pipe: Pipe) -> None:
    set_up("[t] ", "info", pipe.writer)
    logger.info("%d topics", "x")
    line = pipe.line()
    assert b"INFO: cannot log '%d topics' with ('x',): TypeError(" in line


# Levels.


def test_the_level_can_change_while_running(pipe: Pipe) -> None:
    set_up("[t] ", "warn", pipe.writer)
    logger.info("off")
    logs.set_level("debug")
    logger.debug("on")
    logs.set_level("fatal")
    logger.error("off again")
    logger.critical("last")
    assert pipe.line().endswith(b"DEBUG: on\n")
    assert pipe.line().endswith(b"FATAL: last\n")


def test_a_level_that_is_off_makes_no_record_and_a_word_that_is_none_is_refused(pipe: Pipe) -> None:
    set_up("[t] ", "info", pipe.writer)
    assert not logger.isEnabledFor(logging.DEBUG)
    with pytest.raises(KeyError):
        logs.set_level("loud")


def test_other_peoples_libraries_are_heard_from_warnings_on(pipe: Pipe) -> None:
    set_up("[t] ", "debug", pipe.writer)
    theirs = logging.getLogger("asyncio")
    theirs.debug("chatter")
    theirs.warning("slow")
    assert pipe.line().endswith(b"WARNING: slow\n")
    logs.set_level("error")
    theirs.warning("slow")
    theirs.error("broken")
    assert pipe.line().endswith(b"ERROR: broken\n")


def test_setting_up_again_replaces_prefix_level_and_descriptor(pipe: Pipe) -> None:
    set_up("[a] ", "info", pipe.writer)
    logger.info("one")
    set_up("[b] ", "warn", pipe.writer)
    logger.info("two")
    logger.warning("three")
    assert pipe.line().endswith(b"INFO: one\n")
    assert re.fullmatch(rb"\[b\] .* WARNING: three\n", pipe.line())


# A reader that does not read.


def test_nobody_reading_never_blocks_and_what_was_dropped_is_told_later(pipe: Pipe) -> None:
    total = 60_000
    set_up("[t] ", "info", pipe.writer)
    for number in range(total):
        logger.info("line %d of many, with some text to fill the pipe and the queue with", number)
    # We got here: nothing waited for us. Now read, until the lines are all there or accounted for.
    read, read_bytes, dropped = 0, 0, 0
    while read + dropped < total:
        line = pipe.line()
        match = LINE.fullmatch(line)
        assert match
        level, text = match.groups()
        if level == b"WARNING":
            told = re.fullmatch(
                rb"(\d+) log lines? (?:was|were) dropped here: stderr did not take them", text
            )
            assert told
            dropped += int(told[1])
        else:
            number = int(text.split()[1])
            # In order, and a gap is told before the line that follows it.
            assert number == read + dropped
            read += 1
            read_bytes += len(line)
    assert dropped > 0
    assert logs.QUEUE_BYTES <= read_bytes < 2 * logs.QUEUE_BYTES
    logger.info("after")
    assert pipe.line().endswith(b"INFO: after\n")


def test_a_single_dropped_line_is_told_in_the_singular(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "QUEUE_BYTES", 0)
    set_up("[t] ", "info", pipe.writer)
    logger.info("dropped")
    monkeypatch.undo()
    logger.info("kept")
    assert pipe.line().endswith(b"WARNING: 1 log line was dropped here: stderr did not take them\n")
    assert pipe.line().endswith(b"INFO: kept\n")


def test_flush_waits_for_the_writing_but_not_for_ever(pipe: Pipe) -> None:
    set_up("[t] ", "info", pipe.writer)
    assert logs.flush()
    logger.info("short")
    assert logs.flush()
    assert pipe.line().endswith(b"INFO: short\n")
    logger.info("long %s", "x" * 200_000)
    assert not logs.flush(0.05)
    # A reader that was waited for in vain gets only a moment more.
    before = time.monotonic()
    assert not logs.flush(60)
    assert time.monotonic() - before < 30
    assert len(pipe.line()) > 200_000
    while not logs.flush():
        pass


def test_a_process_ends_in_time_though_nobody_reads_its_stderr() -> None:
    program = (
        "import logging; from nsquark.cli import logs; logs.set_up('[t] ')\n"
        "for i in range(20000): logging.getLogger('nsquark').info('line %d %s', i, 'x' * 100)\n"
        "logs.flush(); print('done', flush=True)"
    )
    before = time.monotonic()
    with run(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"done\n"
        assert process.wait(timeout=30) == 0
        assert time.monotonic() - before < 20
        assert process.stderr
        assert process.stderr.readline().endswith(b"INFO: line 0 " + b"x" * 100 + b"\n")


def test_everything_logged_is_written_before_a_process_ends() -> None:
    program = (
        "import logging; from nsquark.cli import logs; logs.set_up('[t] ')\n"
        "for i in range(500): logging.getLogger('nsquark').info('line %d', i)"
    )
    with run(program, stderr=subprocess.PIPE) as process:
        assert process.stderr
        lines = process.stderr.readlines()
        assert process.wait() == 0
    assert len(lines) == 500
    assert lines[-1].endswith(b"INFO: line 499\n")


def test_a_non_blocking_stderr_loses_nothing(pipe: Pipe) -> None:
    flags = fcntl.fcntl(pipe.writer, fcntl.F_GETFL)
    fcntl.fcntl(pipe.writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    set_up("[t] ", "info", pipe.writer)
    logger.info("a %s", "x" * 150_000)
    logger.info("b")
    assert len(pipe.line()) > 150_000
    assert pipe.line().endswith(b"INFO: b\n")


# A stderr that is gone.


def test_a_reader_that_went_away_silences_the_log(pipe: Pipe) -> None:
    set_up("[t] ", "info", pipe.writer)
    pipe.close_reader()
    logger.info("into the void")
    assert logs.flush(60)
    logger.info("again")
    assert logs.flush(60)


def test_a_stderr_closed_at_the_start_is_silence_and_no_data_file_gets_the_log(tmp_path: Path) -> None:
    program = (
        "import logging, os; from nsquark.cli import logs\n"
        f"fd = os.open({str(tmp_path / 'data')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "assert fd == 2, fd\n"
        "logs.set_up('[t] '); logging.getLogger('nsquark').error('x'); logs.flush()\n"
        "print(os.fstat(fd).st_size)"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program], stdout=subprocess.PIPE, check=True
    )
    assert done.stdout == b"0\n"


def test_a_descriptor_that_does_not_exist_is_silence() -> None:
    set_up("[t] ", "info", 10**6)
    logger.info("x")
    assert logs.flush()


def test_a_full_disk_drops_lines_and_later_tells_how_many(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up("[t] ", "info", pipe.writer)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logs.os, "write", full)
    logger.info("one")
    assert logs.flush(60)
    monkeypatch.setattr(logs.os, "write", write)
    logger.info("two")
    assert pipe.line().endswith(b"WARNING: 1 log line was dropped here: stderr did not take them\n")
    assert pipe.line().endswith(b"INFO: two\n")


def test_logging_after_the_end_is_silence(pipe: Pipe) -> None:
    handler = logs.LineHandler("[t] ", pipe.writer)
    record = logging.makeLogRecord({"msg": "x", "levelno": logging.INFO, "levelname": "INFO"})
    handler.handle(record)
    handler.flush()
    handler.close()
    handler.close()
    handler.handle(record)
    handler.flush()
    logs.LineHandler("[t] ", pipe.writer).close()
    assert pipe.line().endswith(b"INFO: x\n")


def test_no_thread_is_started_before_the_first_line(pipe: Pipe) -> None:
    set_up("[t] ", "info", pipe.writer)
    assert logs._handler is not None
    assert logs._handler._thread is None
