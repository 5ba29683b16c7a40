"""nsq_to_file from start to end, against real daemons."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, Signals

import pytest

from tests.daemon import Nsqd, until
from tests.security.certificates import Authority
from tests.tools.nsq_to_file.archiver import Archiver, ended, files, unfinished

QUICK = "--sync-interval=50ms"
Start = Callable[..., Archiver]


@pytest.fixture
def start(nsqd: Nsqd, tmp_path: Path) -> Iterator[Start]:
    """Starts an nsq_to_file for topic t, which writes to `out`."""
    started = []

    def start_one(*flags: str) -> Archiver:
        archiver = Archiver(tmp_path / "out", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", *flags)
        started.append(archiver.start())
        return archiver

    yield start_one
    for archiver in started:
        archiver.kill()


async def publish(nsqd: Nsqd, *bodies: bytes) -> None:
    async with await nsqd.connect() as client:
        await client.mpub("t", bodies)


async def all_finished(nsqd: Nsqd) -> None:
    async def is_empty() -> bool:
        return await unfinished(nsqd, "t") == 0

    await until(is_empty)


async def test_a_restart_appends(nsqd: Nsqd, start: Start) -> None:
    for body in (b"before", b"after"):
        archiver = start("--filename-format=<TOPIC><REV>.log", QUICK)
        await publish(nsqd, body)
        await all_finished(nsqd)
        assert await asyncio.to_thread(archiver.stop) == 0
    assert archiver.files == {"t.log": b"before\nafter\n"}


async def test_a_torn_line_is_not_glued_to_the_next_message(nsqd: Nsqd, tmp_path: Path, start: Start) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t.log").write_bytes(b"whole\nto")
    archiver = start("--filename-format=t.log", QUICK)
    await publish(nsqd, b"next")
    await all_finished(nsqd)
    assert archiver.files == {"t.log": b"whole\nto\nnext\n"}
    archiver.wait_for_line("WARNING: .*t.log ends with a torn line, which is ended")


async def test_the_default_name_has_topic_host_and_hour(nsqd: Nsqd, start: Start) -> None:
    before = datetime.now()
    archiver = start("--host-identifier=box")
    await publish(nsqd, b"a\0b\r")
    await all_finished(nsqd)
    names = {f"t.box.{now:%Y-%m-%d_%H}.log" for now in (before, datetime.now())}
    (name,) = archiver.files
    assert name in names
    assert archiver.files[name] == b"a\0b\r\n"


async def test_files_are_rotated_by_size(nsqd: Nsqd, start: Start) -> None:
    archiver = start("--filename-format=t<REV>.log", "--rotate-size=100", QUICK)
    await publish(nsqd, *[b"x" * 12] * 20)
    await all_finished(nsqd)
    assert [len(data) for data in archiver.files.values()] == [104, 104, 52]


async def test_files_are_rotated_by_time_even_if_empty(nsqd: Nsqd, start: Start) -> None:
    archiver = start("--filename-format=t<REV>.log", "--rotate-interval=100ms", QUICK)
    await publish(nsqd, b"one")
    await until(lambda: len(archiver.files) > 3)
    assert archiver.written == [b"one"]
    assert list(archiver.files)[:3] == ["t-000000.log", "t-000001.log", "t-000002.log"]


async def test_a_silent_topic_makes_nothing_without_empty_files(
    nsqd: Nsqd, tmp_path: Path, start: Start
) -> None:
    archiver = start("--filename-format=t<REV>.log", "--rotate-interval=50ms", "--skip-empty-files", QUICK)
    archiver.wait_for_line("connected to t/nsq_to_file")
    await publish(nsqd, b"one")
    archiver.wait_for_line("since last open, rotating")
    await publish(nsqd, b"two")
    await until(lambda: len(archiver.files) == 2)
    await all_finished(nsqd)
    assert archiver.files == {"t-000000.log": b"one\n", "t-000001.log": b"two\n"}


async def test_no_directory_is_made_for_nothing(start: Start, tmp_path: Path) -> None:
    archiver = start("--skip-empty-files", "--gzip", QUICK)
    archiver.wait_for_line("connected to t/nsq_to_file")
    assert await asyncio.to_thread(archiver.stop) == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_what_is_finished_can_be_decompressed_while_the_file_grows(
    nsqd: Nsqd, start: Start, compression: str
) -> None:
    archiver = start(f"--{compression}", f"--{compression}-level=9", "--filename-format=t<REV>.log", QUICK)
    extension = {"gzip": "gz", "zstd": "zst"}[compression]
    for n in range(5):
        await publish(nsqd, b"line %d" % n)
        await all_finished(nsqd)
        expected = b"".join(b"line %d\n" % each for each in range(n + 1))
        assert archiver.files == {f"t-000000.log.{extension}": expected}
    assert await asyncio.to_thread(archiver.stop) == 0
    assert archiver.files == {f"t-000000.log.{extension}": expected}


async def test_jsonl_has_what_nsqd_knows_of_a_message(nsqd: Nsqd, start: Start) -> None:
    archiver = start("--format=jsonl", QUICK)
    before = time.time_ns()
    await publish(nsqd, b"two\nlines", b"\xff")
    await all_finished(nsqd)
    text, binary = map(json.loads, archiver.written)
    assert text["body"] == "two\nlines"
    assert binary["body_base64"] == "/w=="
    assert re.fullmatch("[0-9a-f]{16}", text["id"])
    assert before <= text["timestamp_ns"] <= time.time_ns()
    assert (text["attempts"], text["node"]) == (1, nsqd.tcp_address)


# ---- the work directory


@pytest.fixture
def other_file_system() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("place", ["beside", "on another file system"])
async def test_finished_files_leave_the_work_directory(
    nsqd: Nsqd, tmp_path: Path, other_file_system: Path, start: Start, place: str
) -> None:
    work = tmp_path / "work" if place == "beside" else other_file_system
    archiver = start(
        f"--work-dir={work}", "--filename-format=<TOPIC>/t<REV>.log", "--skip-empty-files", QUICK
    )
    for n in range(3):
        await publish(nsqd, b"line %d" % n)
        await all_finished(nsqd)
        assert list(files(work).values()) == [b"line %d\n" % n]
        archiver.signal(SIGHUP)
        await until(lambda n=n: len(archiver.files) == n + 1)  # type: ignore[misc]
    await publish(nsqd, b"last")
    await all_finished(nsqd)
    assert await asyncio.to_thread(archiver.stop) == 0
    assert archiver.files == {
        "t/t-000000.log": b"line 0\n",
        "t/t-000001.log": b"line 1\n",
        "t/t-000002.log": b"line 2\n",
        "t/t-000003.log": b"last\n",
    }
    assert files(work) == {}


async def test_what_a_killed_run_has_left_is_moved_by_the_next(
    nsqd: Nsqd, tmp_path: Path, start: Start
) -> None:
    flags = (f"--work-dir={tmp_path / 'work'}", "--filename-format=t<REV>.log", QUICK)
    first = start(*flags)
    await publish(nsqd, b"before")
    await all_finished(nsqd)
    first.kill()
    assert files(tmp_path / "work") == {"t-000000.log": b"before\n"}
    second = start(*flags)
    await until(lambda: second.files.get("t-000000.log") == b"before\n")
    await publish(nsqd, b"after")
    await all_finished(nsqd)
    assert await asyncio.to_thread(second.stop) == 0
    assert second.files == {"t-000000.log": b"before\n", "t-000001.log": b"after\n"}


# ---- signals


async def test_a_file_that_was_renamed_is_left_alone_after_sighup(
    nsqd: Nsqd, tmp_path: Path, start: Start
) -> None:
    archiver = start("--filename-format=t.log", QUICK)
    await publish(nsqd, b"old")
    await all_finished(nsqd)
    os.rename(tmp_path / "out" / "t.log", tmp_path / "out" / "t.log.1")
    archiver.signal(SIGHUP)
    archiver.wait_for_line("closed .*t.log")
    await publish(nsqd, b"new")
    await all_finished(nsqd)
    assert archiver.files == {"t.log": b"new\n", "t.log.1": b"old\n"}


async def test_sighup_begins_the_next_revision(nsqd: Nsqd, start: Start) -> None:
    archiver = start("--filename-format=t<REV>.log", "--rotate-size=1000", "--skip-empty-files", QUICK)
    for n in range(3):
        await publish(nsqd, b"line %d" % n)
        await all_finished(nsqd)
        archiver.signal(SIGHUP)
        archiver.wait_for_line("closed", n + 1)
    assert list(archiver.files.values()) == [b"line 0\n", b"line 1\n", b"line 2\n"]


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
async def test_a_signal_ends_it_with_a_line_on_what_was_done(
    nsqd: Nsqd, start: Start, number: Signals
) -> None:
    archiver = start("--sync-interval=1h")
    await publish(nsqd, *[b"line"] * 100)
    await until(lambda: len(archiver.written) == 100)
    begin = time.monotonic()
    archiver.signal(number)
    archiver.signal(SIGTERM)  # swallowed
    assert await asyncio.to_thread(archiver.ended) == 0
    assert time.monotonic() - begin < 20  # a second, were the machine idle; --sync-interval is an hour
    assert archiver.lines[-1].endswith("INFO: archived 100 messages of 1 topics in 1 files")
    await all_finished(nsqd)


async def test_it_ends_while_no_nsqd_answers(tmp_path: Path) -> None:
    archiver = Archiver(tmp_path, "--topic=t", "--nsqd-tcp-address=127.0.0.1:1")
    with archiver.start():
        archiver.wait_for_line("no connection")
        assert await asyncio.to_thread(archiver.stop) == 0


async def test_a_graceful_end_under_load_repeats_nothing(nsqd: Nsqd, start: Start) -> None:
    bodies = [b"%06d" % n for n in range(30_000)]
    archived: list[bytes] = []
    async with await nsqd.connect() as client:
        for first in range(0, len(bodies), 1000):
            await client.mpub("t", bodies[first : first + 1000])
    for share in (5_000, 10_000, 15_000, 29_999):
        archiver = start("--filename-format=t<REV>.log", "--rotate-size=50000", QUICK)
        await until(partial(_has_written, archiver, share))
        assert await asyncio.to_thread(archiver.stop) == 0, archiver.lines
        archived = archiver.written
        await until(partial(_are_left, nsqd, len(bodies) - len(archived)))
    assert len(set(archived)) == len(archived)


async def _are_left(nsqd: Nsqd, count: int) -> bool:
    return await unfinished(nsqd, "t") == count


def _has_written(archiver: Archiver, count: int) -> bool:
    return len(archiver.written) > count


# ---- the log, and what goes through --consumer-opt


async def test_log_lines_have_the_form_of_nsq_and_their_prefix(start: Start) -> None:
    archiver = start("--log-prefix=here ", "--log-level=INFO")
    archiver.wait_for_line(r"^here \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: .*connected to t/nsq_to_file$")
    quiet = start("--log-level=error", "--channel=other")
    await asyncio.to_thread(archiver.stop)
    await asyncio.to_thread(quiet.stop)
    assert quiet.lines == []


@pytest.mark.parametrize("more", [(), ("--consumer-opt=snappy",), ("--consumer-opt=deflate",)])
async def test_tls_and_compression_come_through_consumer_options(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.sign("nsqd")
    tls_flags = (f"--tls-cert={certificate}", f"--tls-key={key}", "--https-address=127.0.0.1:0")
    with Nsqd(tmp_path / "data", *tls_flags, "--tls-required=tcp-https").start() as nsqd:
        await nsqd.post("/pub?topic=t", b"over TLS")
        tls = ("--consumer-opt=tls_v1", f"--consumer-opt=tls_root_ca_file,{authority.file}", *more)
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        archiver = Archiver(tmp_path / "out", "--topic=t", address, *tls, QUICK)
        with archiver.start():
            await all_finished(nsqd)
            assert archiver.written == [b"over TLS"]
            assert await asyncio.to_thread(archiver.stop) == 0


async def test_a_certificate_that_is_not_believed_ends_the_program(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "tls").sign("nsqd")
    other = Authority(tmp_path / "other")
    tls_flags = (f"--tls-cert={certificate}", f"--tls-key={key}", "--https-address=127.0.0.1:0")
    with Nsqd(tmp_path / "data", *tls_flags).start() as nsqd:
        code, _, err = await asyncio.to_thread(
            ended,
            "--topic=t",
            f"--output-dir={tmp_path}",
            f"--nsqd-tcp-address={nsqd.tcp_address}",
            "--consumer-opt=tls_v1",
            f"--consumer-opt=tls_root_ca_file,{other.file}",
        )
    assert code == 1
    assert f"FATAL: [t/nsq_to_file] {nsqd.tcp_address}: TLS: " in err
