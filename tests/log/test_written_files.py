"""Files that are closed between two writes: which of them, when, and what the next write finds."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.log import Deferred, Journal, TopicLog, files, written_files
from nsquark.log.journal import journal as journal_module
from nsquark.log.written_files import WrittenFiles
from tests.log.contents import Ids, Model, directory, read_all, read_what_is_left, segments
from tests.log.disk import Disk
from tests.log.test_topic_log import ONE, filled, opened


class Written:
    """A file that counts its writes."""

    def __init__(self, files: WrittenFiles) -> None:
        self.files = files
        self.written = 0
        self.synced = True
        self.fails = False
        self.is_open = False
        self.waited = 0

    def write(self, synced: bool = True) -> None:
        if not self.is_open:
            self.files.make_room()
            self.is_open = True
            self.files.add(self)
        self.written += 1
        self.synced = synced

    def rest(self, wait: bool) -> bool:
        if not self.synced and wait:
            self.waited += 1
            self.synced = not self.fails
        if self.synced:
            self.is_open = False
        return self.synced


def crowd(files: WrittenFiles, number: int, synced: bool = True) -> list[Written]:
    made = [Written(files) for _ in range(number)]
    for each in made:
        each.write(synced)
    return made


def open_ones(made: list[Written]) -> list[int]:
    return [number for number, each in enumerate(made) if each.is_open]


# ---- which of them


def test_within_the_limit_all_stay_open() -> None:
    files = WrittenFiles(10)
    assert open_ones(crowd(files, 10)) == list(range(10))
    assert [*files.shrink()] == []


def test_beyond_the_limit_those_are_closed_that_were_opened_first() -> None:
    files = WrittenFiles(10)
    made = crowd(files, 15)
    assert len(open_ones(made)) == len(files) <= 10
    assert made[-1].is_open
    assert not made[0].is_open


def test_a_file_that_is_written_all_the_time_stays_open() -> None:
    files = WrittenFiles(10)
    busy = Written(files)
    for _ in range(100):
        busy.write()
        Written(files).write()
    assert busy.is_open
    assert len(files) <= 11


def test_a_file_that_waits_for_an_fsync_stays_open() -> None:
    files = WrittenFiles(10)
    waiting = crowd(files, 10, synced=False)
    others = crowd(files, 30)
    assert open_ones(waiting) == list(range(10))
    assert len(open_ones(others)) <= 10
    assert not any(each.waited for each in waiting)


def test_at_twice_the_limit_the_next_one_waits_for_the_disk() -> None:
    files = WrittenFiles(10)
    made = crowd(files, 50, synced=False)
    assert len(open_ones(made)) == len(files) == 20
    assert sum(each.waited for each in made) == 30


def test_a_file_whose_fsync_fails_is_not_closed_and_others_are() -> None:
    files = WrittenFiles(10)
    broken = crowd(files, 5, synced=False)
    for each in broken:
        each.fails = True
    crowd(files, 50, synced=False)
    assert open_ones(broken) == list(range(5))
    assert len(files) <= 20 + 5


def test_a_crowd_goes_back_to_the_limit_once_the_disk_holds_it() -> None:
    files = WrittenFiles(10)
    made = crowd(files, 20, synced=False)
    for each in made:
        each.synced = True
    assert len([*files.shrink()]) == 10
    assert [*files.shrink()] == [None]  # the last one had been written since it was opened
    assert len(files) == len(open_ones(made)) == 10


def test_the_limit_is_a_share_of_what_the_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 800
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    files = WrittenFiles()
    assert files.limit == 100
    crowd(files, 300)
    assert len(files) <= 100
    most = 16
    assert files.limit == written_files.LEAST
    most = resource.RLIM_INFINITY
    assert files.limit > 100_000


# ---- logs and journals


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> WrittenFiles:
    """Two files at most are open for writing, or four while they wait for the disk."""
    made = WrittenFiles(2)
    monkeypatch.setattr(files, "WRITTEN_FILES", made)
    monkeypatch.setattr(journal_module, "WRITTEN_FILES", made)
    return made


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.close()


def open_here(path: Path, flags: int = os.O_WRONLY) -> int:
    """How many files below this path the process has open for writing."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{fd}"
        if os.path.lexists(link) and os.readlink(link).startswith(str(path)):
            text = Path(f"/proc/self/fdinfo/{fd}").read_text()
            found += int(text.split("flags:")[1].split()[0], 8) & os.O_ACCMODE == flags
    return found


def attempt(log: TopicLog) -> OSError | None:
    sync = log.start_sync()
    sync.run()
    return log.finish_sync(sync)


def log_files(log: TopicLog) -> files.LogFiles:
    assert log.files is not None
    return log.files


def at_rest(log: TopicLog) -> TopicLog:
    """The log, synced and closed."""
    assert attempt(log) is None
    written = log_files(log)
    assert written.rest(wait=False)
    files.WRITTEN_FILES.remove(written)
    assert written.fd < 0
    return log


def test_many_logs_are_written_with_few_descriptors(tmp_path: Path, few: WrittenFiles) -> None:
    made = [filled(tmp_path / str(number), 1, max_bytes_per_file=3 * ONE) for number in range(12)]
    for count in range(10):
        for log, model in made:
            model.publish(log, [(0, [b"%010d" % count])])
            if count % 2:
                assert attempt(log) is None
        assert len(few) <= 4
    for log, model in made:
        assert attempt(log) is None
        assert read_all(log) == model.frames
    assert open_here(tmp_path) <= 4
    for log, _ in made:
        log.close()
    assert open_here(tmp_path) == len(few) == 0


def test_a_log_that_was_closed_is_the_same_log_after_a_restart(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 3)
    for _ in range(3):
        at_rest(log)
        assert open_here(tmp_path) == 0
        model.publish(log, [(0, [b"more"])])
    log.close()
    assert len(segments(tmp_path)) == 1
    again = opened(tmp_path)
    assert read_all(again) == model.frames
    again.close()


def test_a_log_that_is_opened_has_no_descriptor_until_it_is_written(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 3)
    log.close(sync=False)
    again = opened(tmp_path)
    assert open_here(tmp_path) == 0
    assert again.unsynced == 3  # the process before may have been killed
    assert attempt(again) is None
    assert (again.unsynced, open_here(tmp_path)) == (0, 0)
    model.publish(again, [(0, [b"next"])])
    assert open_here(tmp_path) == 1
    assert read_all(again) == model.frames
    again.close()


def test_a_log_that_was_not_synced_is_not_closed(tmp_path: Path, disk: Disk) -> None:
    log, model = filled(tmp_path / "t", 3)
    assert not log_files(log).rest(wait=False)
    sync = log.start_sync()
    sync.run()
    assert not log_files(log).rest(wait=True)  # what came of that fsync is not known yet
    assert log.finish_sync(sync) is None
    model.publish(log, [(0, [b"behind it"])])
    assert not log_files(log).rest(wait=False)
    disk.asked.clear()
    assert log_files(log).rest(wait=True)
    assert disk.asked == [str(segments(tmp_path / "t")[0])]
    assert attempt(log) is None
    assert log.unsynced == 0
    disk.cut_power(tmp_path / "t", tmp_path / "cut")
    left = opened(tmp_path / "cut")
    assert read_what_is_left(left) == model.frames
    left.close()
    log.close()


def test_an_fsync_that_fails_before_the_file_is_closed_is_made_up_for(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 3)
    disk.refuses = lambda path: path.endswith(".log")
    assert not log_files(log).rest(wait=True)
    assert log.failing
    disk.refuses = lambda path: False
    assert attempt(log) is None
    assert (log.unsynced, log.failing) == (0, False)
    disk.cut_power(path, tmp_path / "cut")
    left = opened(tmp_path / "cut")
    assert read_what_is_left(left) == model.frames
    left.close()
    log.close()


def test_a_file_of_an_earlier_process_is_synced_also_when_another_one_is_begun(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 3)
    log.close(sync=False)
    again = opened(path, max_bytes_per_file=3 * ONE)
    model.publish(again, [(0, [b"%010d" % 4])])
    assert len(segments(path)) == 2
    assert again.unsynced == 4
    disk.asked.clear()
    assert attempt(again) is None
    assert [str(each) for each in segments(path)] == disk.asked[:2]
    assert again.unsynced == 0
    disk.cut_power(path, tmp_path / "cut")
    left = opened(tmp_path / "cut")
    assert read_what_is_left(left) == model.frames
    left.close()
    again.close()


def test_a_close_that_tells_an_error_has_closed_the_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model = filled(tmp_path / "t", 3)
    journal = Journal(tmp_path / "t")
    journal.begin()
    fd, stale = journal.rewrite()
    journal_module.replace_journal(fd, journal.path, stale)
    assert attempt(log) is None
    real = os.close

    def close(fd: int) -> None:
        real(fd)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        assert log_files(log).rest(wait=False)
        assert journal.rest(wait=False)
    written_files.WRITTEN_FILES.remove(log_files(log))
    written_files.WRITTEN_FILES.remove(journal)
    assert open_here(tmp_path) == 0
    model.publish(log, [(0, [b"next"])])
    journal.pump(1)
    journal.flush()
    assert read_all(log) == model.frames
    log.close()
    journal.close()


def test_a_full_file_that_is_closed_is_followed_by_another(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 3, max_bytes_per_file=3 * ONE)
    at_rest(log)
    segments(tmp_path)[0].rename(tmp_path / "away")  # it is not opened again for that
    model.publish(log, [(0, [b"next"])])
    (tmp_path / "away").rename(log.segments[0].path)
    assert read_all(log) == model.frames
    assert attempt(log) is None
    log.close()


def missing(path: Path) -> Callable[[], None]:
    path.rename(path.with_suffix(".away"))
    return lambda: (path.with_suffix(".away").rename(path), None)[1]


def folder_missing(path: Path) -> Callable[[], None]:
    away = path.parent.with_name("away")
    path.parent.rename(away)
    return lambda: (away.rename(path.parent), None)[1]


def shorter(path: Path) -> Callable[[], None]:
    data = path.read_bytes()
    os.truncate(path, len(data) - 1)
    return lambda: (path.write_bytes(data), None)[1]


def longer(path: Path) -> Callable[[], None]:
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    return lambda: os.truncate(path, len(data))


@pytest.mark.parametrize("harm", [missing, folder_missing, shorter, longer])
def test_a_log_that_cannot_be_opened_again_refuses_and_goes_on_when_it_can(
    harm: Callable[[Path], Callable[[], None]], tmp_path: Path
) -> None:
    log, model = filled(tmp_path / "t", 3)
    at_rest(log)
    mend = harm(segments(tmp_path / "t")[0])
    log.add_bodies([b"refused"], 1, 0)
    with pytest.raises(OSError, match=r"No such file|bytes"):
        log.commit()
    assert (log.end, log.pending, log.unsynced, open_here(tmp_path)) == (3, 0, 0, 0)
    mend()
    model.publish(log, [(0, [b"taken"])])
    assert read_all(log) == model.frames
    log.close()


def test_a_log_without_a_descriptor_takes_another_logs(
    tmp_path: Path, few: WrittenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log, model), (other, _) = (filled(tmp_path / name, 1) for name in "ab")
    at_rest(log)
    assert attempt(other) is None
    real = os.open

    def scarce(path: str, flags: int) -> int:
        if open_here(tmp_path) > 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", scarce)
        model.publish(log, [(0, [b"x"])])
        assert log_files(other).fd < 0
        other.add_bodies([b"y"], 1, 0)
        with pytest.raises(OSError, match="Too many"):  # the other one is not synced, and keeps its own
            other.commit()
    assert read_all(log) == model.frames
    log.close()
    other.close()


def test_a_log_that_is_closed_for_good_is_not_opened_again(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 1)
    log.close()
    log.add_bodies([b"x"], 1, 0)
    with pytest.raises(OSError, match="closed"):
        log.commit()
    assert open_here(tmp_path) == 0


def begun(path: Path) -> Journal:
    journal = Journal(path)
    journal.begin()
    journal.identify(7)
    journal.create(0, "c", 0)
    fd, _ = journal.rewrite()
    os.close(fd)
    return journal


def test_a_journal_that_was_closed_goes_on_in_the_same_file(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    for number in range(3):
        assert journal.rest(wait=False)
        assert open_here(tmp_path) == 0
        journal.finish(0, 2 * number, 2 * number + 1)
        journal.flush()
        assert not journal.rest(wait=False)
        fds, _ = journal.start_sync()
        assert len(fds) == 1
        os.close(fds[0])
    assert [path.name for path in tmp_path.iterdir()] == ["journal.000001"]
    journal.close()
    state = Journal(tmp_path).state.channels["c"]
    assert [*state.passed] == [(0, 1), (2, 3), (4, 5)]


def test_a_journal_that_cannot_be_opened_again_is_begun_anew(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    assert journal.rest(wait=False)
    (tmp_path / "journal.000001").unlink()
    journal.defer(Deferred(3, 1, 99))
    with pytest.raises(FileNotFoundError):
        journal.flush()
    assert (journal.complete, journal.overgrown) == (False, True)
    journal.begin()
    journal.identify(8)
    os.close(journal.rewrite()[0])
    assert journal.sound
    journal.close()
    assert Journal(tmp_path).state.epoch == 8


def test_a_closed_journal_is_complete_when_the_next_file_is_begun(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    assert journal.rest(wait=False)
    journal.begin()
    assert journal.complete
    journal.close()


def test_the_next_file_of_a_closed_journal_gets_what_the_closed_one_could_not(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    assert journal.rest(wait=False)
    copy = journal.begin_copy()
    (tmp_path / "journal.000001").rename(tmp_path / "away")
    journal.finish(0, 5, 6)
    with pytest.raises(FileNotFoundError):
        journal.flush()
    assert copy.size > 0
    journal.close()


def test_a_journal_with_a_next_file_is_not_closed(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.begin_copy()
    assert not journal.rest(wait=True)
    journal.give_up_copy()
    assert journal.rest(wait=False)
    journal.close()


def test_a_journal_whose_fsync_fails_before_it_is_closed_is_begun_anew(tmp_path: Path, disk: Disk) -> None:
    journal = begun(tmp_path)
    journal.finish(0, 0, 1)
    journal.flush()
    disk.refuses = lambda path: True
    assert journal.rest(wait=True)  # there is nothing left to learn by its descriptor
    assert (journal.sound, journal.overgrown) == (False, True)
    journal.close()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["publish", "sync", "rest", "wait", "power", "crash"]), max_size=40))
def test_whatever_is_synced_is_there_after_a_power_cut(steps: list[str]) -> None:
    """Two logs with one descriptor between them."""
    with pytest.MonkeyPatch.context() as patch, directory() as path:
        made = WrittenFiles(1)
        patch.setattr(files, "WRITTEN_FILES", made)
        disk = Disk(patch)
        paths = [path / "a", path / "b"]
        logs = [TopicLog(each, opened(None, max_bytes_per_file=4 * ONE).limits, Ids()) for each in paths]
        models = [Model(), Model()]
        for number, step in enumerate(steps):
            at = number % 2
            log, model = logs[at], models[at]
            written = log_files(log)
            if step == "publish":
                model.publish(log, [(0, [b"%010d" % number])])
            elif step == "sync":
                assert attempt(log) is None
                assert log.unsynced == 0
            elif step in ("rest", "wait"):
                if written.fd >= 0 and written.rest(wait=step == "wait"):
                    made.remove(written)
            elif step == "crash":
                log.close(sync=False)
                logs[at] = TopicLog(paths[at], log.limits, Ids(first=(6 + number) << 54))
                assert read_all(logs[at]) == model.frames
            else:
                into = path / f"cut{number}"
                disk.cut_power(paths[at], into)
                left = TopicLog(into, log.limits, Ids())
                assert (
                    read_what_is_left(left)[: log.end - log.unsynced]
                    == model.frames[: log.end - log.unsynced]
                )
                left.close(sync=False)
        for log in logs:
            log.close()
        disk.close()
        assert len(made) == 0
