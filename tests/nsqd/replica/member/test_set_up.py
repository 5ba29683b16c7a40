"""Groups that are set up wrongly: each mistake gets one clear line, and no data are lost or mixed."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliability.shim import Fault, NoCompiler, Shim
from tests.nsqd.replica.etcd_process import etcd, why_not
from tests.nsqd.replica.member.test_member import NSQD, bodies, post
from tests.nsqd.replica.processes import Member, Nsqd, until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

Start = Callable[..., Member]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    members: list[Member] = []
    with etcd(tmp_path / "etcd") as endpoint:

        def start(name: str, *flags: str, root: Path = tmp_path, python: str = sys.executable) -> Member:
            root.mkdir(exist_ok=True)
            members.append(Member(root, name, endpoint, *flags, python=python))
            return members[-1]

        try:
            yield start
        finally:
            for member in members:
                member.kill()


def problem(member: Member) -> str:
    return str(member.state().get("problem", ""))


def test_an_empty_directory_in_the_place_of_the_last_member_in_sync_does_not_lead(start: Start) -> None:
    a = start("a", "--replica-bootstrap")
    a.serves()
    b = start("b")
    b.is_in_sync()
    post(a, "/pub?topic=t", b"both")
    b.kill()
    until(lambda: a.replica()["isr"] == ["a"])
    a.stop()
    shutil.rmtree(a.directory)
    a.directory.mkdir()
    a.start()
    b.start()
    # Its session is there, and it has read that no member leads.
    until(lambda: len(b.state().get("members", ())) == 2 and b.state()["primary"] is None)
    post(b, "/replica/force")
    b.serves()
    assert bodies(b) == ["both"]
    a.is_in_sync()


def test_a_second_process_of_a_name_waits_and_disturbs_nobody(start: Start, tmp_path: Path) -> None:
    a = start("a", "--replica-bootstrap")
    a.serves()
    b = start("b")
    b.is_in_sync()
    other = start("b", root=tmp_path / "other")
    until(lambda: "no other process may have --replica-member=b" in problem(other))
    post(a, "/pub?topic=t", b"x")
    assert b.replica()["state"] == "in-sync"
    assert "anew" not in a.log
    b.stop()
    other.is_in_sync()
    assert problem(other) == ""


def test_a_second_process_of_the_primary_s_name_waits_too(start: Start, tmp_path: Path) -> None:
    a = start("a", "--replica-bootstrap")
    a.serves()
    other = start("a", "--replica-bootstrap", root=tmp_path / "other")
    until(lambda: "no other process may have --replica-member=a" in problem(other))
    post(a, "/pub?topic=t", b"x")
    assert a.replica()["serving"]
    assert a.replica()["term"] == 1
    assert a.replica()["problem"] == ""


def test_a_group_that_etcd_does_not_have_is_told(start: Start) -> None:
    b = start("b")
    until(lambda: "etcd has no group g" in problem(b))
    assert b.log.count("etcd has no group g") == 1
    start("a", "--replica-bootstrap").serves()
    b.is_in_sync()


def test_a_member_with_the_number_of_another_node_does_not_even_lead_for_a_moment(start: Start) -> None:
    a = start("a", "--replica-bootstrap")
    a.serves()
    assert a.stop() == 0
    a.start("--node-id=8")
    assert a.process.wait(30) == 1
    assert "--node-id is 8, and the group g is node 7" in a.log
    a.start()
    a.serves()
    assert a.replica()["term"] == 2


def test_messages_of_go_s_nsqd_are_told_before_the_group_is_founded(tmp_path: Path) -> None:
    """A standby with them would find that out only when it leads."""
    (tmp_path / "b").mkdir()
    message = struct.pack(">qH", 1, 1) + b"0123456789abcdef" + b"body"
    (tmp_path / "b" / "orders.diskqueue.000000.dat").write_bytes(struct.pack(">I", len(message)) + message)
    (tmp_path / "b" / "orders.diskqueue.meta.dat").write_text(f"1\n0,0\n0,{len(message) + 4}\n")
    flags = ("--replica-group=g", "--replica-member=b", "--replica-etcd=127.0.0.1:1", "--replica-bootstrap")
    done = subprocess.run(
        [*NSQD, f"--data-path={tmp_path / 'b'}", *flags], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "Take them over without --replica-group first" in done.stderr
    assert not (tmp_path / "b" / "nsquark.member").exists()


def test_a_program_that_was_moved_away_ends_instead_of_going_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an upgrade, say. Its clients would go on waiting for answers that never come."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    a = start("a", "--replica-bootstrap", python=str(python))
    a.serves()
    b = start("b")
    b.is_in_sync()
    python.unlink()
    post(a, "/replica/handover")
    assert a.process.wait(30) == 1
    assert "cannot be started anew" in a.log
    b.serves()


def test_the_data_of_another_node_are_neither_mixed_nor_moved(start: Start, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    alone = Nsqd(tmp_path / "b")
    assert alone.ask("POST", "/pub?topic=own", b"own")[0] == 200
    assert alone.stop() == 0
    a = start("a", "--replica-bootstrap")
    a.serves()
    post(a, "/pub?topic=t", b"x")
    b = start("b", "--replica-bootstrap")
    until(lambda: "belongs to node" in problem(b))
    assert a.replica()["isr"] == ["a"]
    assert (tmp_path / "b" / "topics" / "own").is_dir()
    assert not (tmp_path / "b" / ".diverged").exists()


def test_a_standby_that_cannot_write_is_not_handed_over_to(tmp_path: Path) -> None:
    """It could not open its directory, and the old primary would not be in sync any more."""
    try:
        shim = Shim(tmp_path / "b", record=False)
    except NoCompiler as error:
        pytest.skip(str(error))
    with etcd(tmp_path / "etcd") as endpoint:
        a = Member(tmp_path, "a", endpoint, "--replica-bootstrap")
        try:
            a.serves()
            with pytest.MonkeyPatch.context() as patch:
                for name, value in shim.environment.items():
                    patch.setenv(name, value)
                b = Member(tmp_path, "b", endpoint)
            try:
                b.is_in_sync()
                shim.refuse(*(Fault("open", f"nsquark.{end}*", errno.ENOSPC) for end in ("member", "dat")))
                post(a, "/replica/handover")
                until(lambda: "so this member does not lead" in b.log)
                until(lambda: a.state()["serving"] and a.state()["term"] == 2)
                post(a, "/pub?topic=t", b"x")
            finally:
                b.kill()
        finally:
            a.kill()
