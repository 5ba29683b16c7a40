"""A standby at work, with a primary that a test plays."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from nsquark.nsqd.options import Options
from nsquark.nsqd.replica.changes.frames import APPEND, CREATE, PUT, Operation, pack_frame
from nsquark.nsqd.replica.changes.manifest import WINDOW
from nsquark.nsqd.replica.copy import standby as module
from nsquark.nsqd.replica.copy import warm_copy
from nsquark.nsqd.replica.copy.fetching import FrameConnection, Refused
from nsquark.nsqd.replica.copy.standby import Standby
from nsquark.nsqd.replica.copy.warm_copy import WarmCopy
from nsquark.nsqd.storage import node as node_file

TERM = 3
JOURNAL = "topics/t/0.journal"
NODE = os.urandom(16).hex()
NODE_FILE = node_file.pack(NODE, 0, 0, TERM)


class Played:
    """A primary: its files, and the streams that were opened. `backlog` says whether a stream can go on."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.sequence = 10
        self.manifests = 0
        self.wanted_whole: list[str] = []  # paths that were asked for without a comparison
        self.compared: list[tuple[str, int]] = []  # what was asked for a comparison alone
        self.streams: list[tuple[int, FrameConnection]] = []
        self.too_far_behind = 0  # how many streams are refused
        self.opened = asyncio.Event()

    async def get(self, route: str, query: dict[str, object]) -> bytes:
        if route == "/replica/manifest":
            self.manifests += 1
            sizes = {path: len(data) for path, data in self.files.items()}
            told = {"term": TERM, "node": NODE, "stream": "s", "sequence": self.sequence, "files": sizes}
            return json.dumps(told).encode()
        if "crc" not in query and query["from"] == 0:
            self.wanted_whole.append(str(query["path"]))
        begin, size = int(str(query["from"])), int(str(query["size"]))
        if size == 0 and begin and begin % WINDOW == 0:
            self.compared.append((str(query["path"]), begin))
        return self.files[str(query["path"])][begin : begin + size]

    async def open_stream(self, stream: str, sequence: int, more: dict[str, object]) -> FrameConnection:
        if self.too_far_behind:
            self.too_far_behind -= 1
            raise Refused(409, "TOO_FAR_BEHIND")
        connection = FrameConnection()
        connection.end = self.sequence
        self.streams.append((sequence, connection))
        self.opened.set()
        return connection


class Heard:
    """What the standby reported, as the automaton would hear of it. It lets everything be fetched."""

    def __init__(self) -> None:
        self.standby: Standby | None = None
        self.settled = True
        self.told: list[tuple[object, ...]] = []
        self.news = asyncio.Event()

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        self.news.set()

    async def until(self, *what: object) -> None:
        async with asyncio.timeout(30):
            while what not in self.told:
                self.news.clear()
                await self.news.wait()

    def stream_refused(self) -> None:
        self._tell("refused")

    def stream_lost(self) -> None:
        self._tell("lost")

    def manifest_received(self, term: int, sequence: int, alters: bool) -> None:
        self._tell("manifest", sequence, alters)
        if alters:
            assert self.standby is not None
            self.standby.fetch()

    def fetched(self, term: int, sequence: int) -> None:
        self._tell("fetched", sequence)

    def heard(self, term: int) -> None:
        self._tell("heard")

    def frames_written(self, term: int, first: int, last: int) -> None:
        self._tell("written", last)

    def frame_synced(self, term: int, sequence: int) -> None:
        self._tell("synced", sequence)

    def fsync_failed(self, paths: frozenset[str]) -> None:
        for path in sorted(paths):
            self._tell("failed", path)

    def handover_received(self, term: int) -> None:
        self._tell("handover")


Begin = Callable[..., tuple[Standby, Played, Heard]]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Make a standby of a primary with one file. To be called where an event loop runs."""

    def begin(
        ack: str = "written", data: bytes = b"0123456789", doubtful: str = "", torn: bool = False
    ) -> tuple[Standby, Played, Heard]:
        primary, heard = Played({"nsquark.dat": NODE_FILE, JOURNAL: data}), Heard()
        monkeypatch.setattr(module, "Primary", lambda *_: primary)
        options = Options(data_path=str(tmp_path), replica_ack=ack)
        heard.standby = Standby(options, "b@1", heard, [doubtful] if doubtful else [], torn=torn)
        return heard.standby, primary, heard

    return begin


def fail_to_sync(_fd: int) -> None:
    raise OSError(errno.EIO, "input/output error")


def frame(sequence: int, *operations: Operation) -> bytes:
    return pack_frame(TERM, sequence, operations)


def appended(sequence: int, offset: int, data: bytes) -> bytes:
    return frame(sequence, Operation(APPEND, JOURNAL, offset, data))


class Stuck:
    """A function that waits until it is let go."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.let_go = threading.Event()

    def __call__(self, *arguments: object) -> object:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.let_go.wait(30)
        return self._function(*arguments)


def test_a_thread_of_a_dropped_catch_up_ends_before_the_next_one_begins(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cut the file to what it was, after more was applied and acknowledged."""

    async def run() -> None:
        standby, primary, heard = begin()
        stuck = Stuck(WarmCopy.write)

        class StuckCopy(WarmCopy):
            def write(self, path: str, offset: int, data: bytes) -> None:
                (stuck if path == JOURNAL else WarmCopy.write)(self, path, offset, data)

        monkeypatch.setattr(module, "WarmCopy", StuckCopy)
        standby.connect("", TERM)
        await stuck.begun.wait()
        monkeypatch.undo()
        monkeypatch.setattr(module, "Primary", lambda *_: primary)
        standby.connect("", TERM)
        for _ in range(10):
            await asyncio.sleep(0)
        assert primary.manifests == 1
        stuck.let_go.set()
        await heard.until("fetched", 10)
        primary.streams[-1][1]._take(appended(11, 10, b"abc"))
        await heard.until("written", 11)
        await standby.close()
        assert (tmp_path / JOURNAL).read_bytes() == b"0123456789abc"

    asyncio.run(run())


def test_a_slow_disk_does_not_make_a_catch_up_look_dead(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        standby, _, heard = begin()
        stuck = Stuck(WarmCopy.put_unknown_aside)

        class StuckCopy(WarmCopy):
            def put_unknown_aside(self, known: dict[str, int]) -> int:
                return cast(int, stuck(self, known))

        monkeypatch.setattr(module, "WarmCopy", StuckCopy)
        standby.connect("", TERM)
        await stuck.begun.wait()
        await heard.until("heard")
        stuck.let_go.set()
        await heard.until("fetched", 10)
        await standby.close()

    asyncio.run(run())


def test_after_a_frame_that_failed_everything_is_compared_again(begin: Begin, tmp_path: Path) -> None:
    """A disk that becomes full leaves a frame done in part, which does not fit any more."""

    async def run() -> None:
        standby, primary, heard = begin()
        standby.connect("", TERM)
        await heard.until("fetched", 10)
        bad = Operation(PUT, "topics/t/0.journal/x", 0, b"")  # no folder is there
        primary.streams[-1][1]._take(frame(11, Operation(APPEND, JOURNAL, 10, b"abc"), bad))
        await heard.until("lost")
        primary.files[JOURNAL] += b"abc"
        primary.sequence = 11
        standby.connect("", TERM)
        await heard.until("fetched", 11)
        assert primary.manifests == 2
        await standby.close()
        assert (tmp_path / JOURNAL).read_bytes() == b"0123456789abc"

    asyncio.run(run())


def test_a_stream_that_goes_on_is_not_reported_before_its_bytes_are_synced(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report is acknowledged as synced."""

    async def run() -> None:
        standby, primary, heard = begin("synced")
        standby.connect("", TERM)
        await heard.until("fetched", 10)
        stuck = Stuck(warm_copy.sync)
        monkeypatch.setattr(module, "sync", stuck)
        primary.streams[-1][1]._take(appended(11, 10, b"abc"))
        await heard.until("written", 11)
        await stuck.begun.wait()
        primary.streams[-1][1].fail(ConnectionError("cut"))
        await heard.until("lost")
        standby.connect("", TERM)
        for _ in range(10):
            await asyncio.sleep(0)
        assert ("manifest", 11, False) not in heard.told
        stuck.let_go.set()
        await heard.until("manifest", 11, False)
        await standby.close()

    asyncio.run(run())


@pytest.mark.parametrize("ack", ["written", "synced"])
def test_a_failed_fsync_is_reported_with_its_files_and_nothing_counts_as_synced(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, ack: str
) -> None:
    async def run() -> None:
        standby, primary, heard = begin(ack)
        standby.connect("", TERM)
        await heard.until("fetched", 10)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail_to_sync)
            primary.streams[-1][1]._take(appended(11, 10, b"abc"))
            await heard.until("failed", JOURNAL)
        assert ("synced", 11) not in heard.told
        await standby.close()

    asyncio.run(run())


def test_a_failed_fsync_at_the_end_is_reported(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        standby, primary, heard = begin()
        standby.connect("", TERM)
        await heard.until("fetched", 10)
        monkeypatch.setattr(module, "SYNC_INTERVAL", 1000.0)
        standby._sync_at = float("inf")
        primary.streams[-1][1]._take(appended(11, 10, b"abc"))
        monkeypatch.setattr(os, "fsync", fail_to_sync)
        await standby.close()
        assert ("failed", JOURNAL) in heard.told

    asyncio.run(run())


@pytest.mark.parametrize("doubtful", [JOURNAL, "topics/t"])
def test_a_file_whose_fsync_failed_is_fetched_as_a_whole(begin: Begin, tmp_path: Path, doubtful: str) -> None:
    """Its bytes may be right in memory and wrong on the disk, so that no comparison tells."""

    async def run() -> None:
        (tmp_path / "topics/t").mkdir(parents=True)
        (tmp_path / JOURNAL).write_bytes(b"0123456789")
        (tmp_path / "nsquark.dat").write_bytes(NODE_FILE)
        before = (tmp_path / JOURNAL).stat().st_ino
        standby, primary, heard = begin(doubtful=doubtful)
        standby.connect("", TERM)
        await heard.until("fetched", 10)
        assert (tmp_path / JOURNAL).read_bytes() == b"0123456789"
        assert (tmp_path / JOURNAL).stat().st_ino != before
        assert JOURNAL in primary.wanted_whole
        primary.streams[-1][1]._take(appended(11, 10, b"abc"))
        await heard.until("written", 11)
        await standby.close()
        assert (tmp_path / JOURNAL).read_bytes() == b"0123456789abc"

    asyncio.run(run())


def test_after_a_power_loss_every_byte_is_compared_once(begin: Begin, tmp_path: Path) -> None:
    """Not again where the first catch-up was too slow for the primary's backlog."""

    async def run() -> None:
        data = bytes(3 * WINDOW + 5)
        (tmp_path / "topics/t").mkdir(parents=True)
        (tmp_path / JOURNAL).write_bytes(data)
        (tmp_path / "nsquark.dat").write_bytes(NODE_FILE)
        standby, primary, heard = begin(data=data, torn=True)
        primary.too_far_behind = 1
        standby.connect("", TERM)
        await heard.until("lost")
        assert primary.compared == [(JOURNAL, at * WINDOW) for at in (1, 2, 3)]
        standby.connect("", TERM)
        await heard.until("fetched", 10)
        assert len(primary.compared) == 3
        await standby.close()

    asyncio.run(run())


def test_files_that_fitted_the_manifest_are_synced_before_they_are_acknowledged(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process before this one may have left them in the memory of the system."""

    async def run() -> None:
        standby, _, heard = begin("synced")
        (tmp_path / "topics/t").mkdir(parents=True)
        (tmp_path / JOURNAL).write_bytes(b"0123456789")
        (tmp_path / "nsquark.dat").write_bytes(NODE_FILE)
        stuck = Stuck(lambda: None)
        monkeypatch.setattr(os, "sync", stuck)
        standby.connect("", TERM)
        await stuck.begun.wait()
        assert ("fetched", 10) not in heard.told
        stuck.let_go.set()
        await heard.until("fetched", 10)
        await standby.close()

    asyncio.run(run())


def test_bytes_that_come_after_the_stream_was_dropped_are_not_applied(begin: Begin, tmp_path: Path) -> None:
    async def run() -> None:
        standby, primary, heard = begin()
        standby.connect("", TERM)
        await heard.until("fetched", 10)
        standby.drop()
        primary.streams[-1][1]._take(frame(11, Operation(CREATE, "topics/t/1.journal")))
        await standby.close()
        assert not (tmp_path / "topics/t/1.journal").exists()

    asyncio.run(run())


def test_a_piece_is_written_whole_where_the_disk_takes_less_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data)[:3], offset))
    WarmCopy(tmp_path).write(JOURNAL, 0, b"0123456789")
    assert (tmp_path / JOURNAL).read_bytes() == b"0123456789"


def test_a_member_that_has_won_does_not_wait_for_an_fsync_that_takes_long(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        standby, primary, heard = begin()
        stuck = Stuck(os.fsync)
        standby.connect("", TERM)
        await heard.until("fetched", 10)
        monkeypatch.setattr(os, "fsync", stuck)
        primary.streams[-1][1]._take(frame(10))  # a heartbeat: what was fetched goes to the disk
        await stuck.begun.wait()
        await standby.close(sync_files=False)
        assert standby._syncing is not None
        stuck.let_go.set()
        await asyncio.wait([standby._syncing])

    asyncio.run(run())
