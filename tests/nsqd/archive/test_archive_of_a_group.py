"""What the archive keeps no longer, in a replica group: the primary deletes it, once no member needs it."""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.nsqd.archive.archived import SEGMENT, bodies
from tests.nsqd.replica.processes import Member, until
from tests.replica_group import Group, needs_etcd, replica_group

pytestmark = needs_etcd
COUNT = 200


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with replica_group(tmp_path) as found:
        yield found


def post(member: Member, path: str, body: bytes = b"") -> tuple[int, bytes]:
    return member.ask("POST", path, body)


def told_by(member: Member, suffix: str) -> list[str]:
    folder = member.directory / "topics" / "t"
    return sorted(each.stem for each in folder.glob("*" + suffix)) if folder.is_dir() else []


def archived_pair(group: Group, store: Path) -> tuple[Member, Member]:
    """A pair with a log whose beginning is only in the archive. A channel needs it, and a limit does not."""
    a, b = group.pair(
        f"--archive-url=file://{store}",
        f"--max-bytes-per-file={SEGMENT}",
        "--min-copies=2",
        "--replica-timeout=500ms",
    )
    until(lambda: not a.replica()["refusing"])
    assert post(a, "/topic/create?topic=t")[0] == 200
    assert post(a, "/channel/create?topic=t&channel=c")[0] == 200
    for start in range(0, COUNT, 50):
        sized = [struct.pack(">I", len(each)) + each for each in bodies(50, start)]
        body = struct.pack(">I", len(sized)) + b"".join(sized)
        assert post(a, "/mpub?topic=t&binary=true", body)[0] == 200
    assert post(a, "/channel/empty?topic=t&channel=c")[0] == 200
    until(lambda: len(told_by(a, ".log")) == len(told_by(b, ".log")) == 1)
    assert post(a, "/channel/seek?topic=t&channel=c&to=earliest")[0] == 200
    assert post(a, "/topic/retention?topic=t&archive_bytes=1")[0] == 200
    return a, b


def test_no_object_is_deleted_before_the_standby_knows_that_it_is_no_part_of_the_log(
    group: Group, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    a, b = archived_pair(group, store)
    objects = sorted(store.rglob("*.log"))
    assert len(objects) == len(told_by(a, ".archived")) >= 3
    b.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        emptied = pool.submit(post, a, "/channel/empty?topic=t&channel=c")
        until(lambda: len(told_by(a, ".expired")) == len(objects))
        # The archive is looked after several times before this is answered.
        status, text = emptied.result()
    assert (status, json.loads(text)["message"]) == (503, "NOT_CONFIRMED")
    assert sorted(store.rglob("*.log")) == objects
    b.process.send_signal(signal.SIGCONT)
    until(lambda: not list(store.rglob("*.log")))
    until(lambda: not any(told_by(each, suffix) for each in (a, b) for suffix in (".expired", ".archived")))


def test_the_next_primary_deletes_what_the_last_one_could_not(group: Group, tmp_path: Path) -> None:
    store = tmp_path / "store"
    a, b = archived_pair(group, store)
    objects = sorted(store.rglob("*.log"))
    store.rename(tmp_path / "away")
    assert post(a, "/channel/empty?topic=t&channel=c")[0] == 200
    until(lambda: told_by(b, ".expired") == told_by(a, ".expired") != [])
    assert len(told_by(b, ".expired")) == len(objects)
    a.kill()
    (tmp_path / "away").rename(store)
    assert sorted(store.rglob("*.log")) == objects
    b.serves()
    a.start()
    until(lambda: not list(store.rglob("*.log")))
    until(lambda: not told_by(b, ".expired"))
    assert json.loads(b.ask("GET", "/log/range?topic=t")[1])["first"] > 100
