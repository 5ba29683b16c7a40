"""`nsquark replica` against a real group, and against members that answer as a test tells them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Nsqd
from tests.nsqd.replica.processes import Member, until
from tests.replica_group import Group, needs_etcd, replica_group
from tests.tools.people.command import failure, nsquark, output, terminal

PRIMARY = {"member": "a", "term": 5, "http_address": "", "tcp_address": ""}
MEMBERS = [
    {
        "member": "a",
        "role": "primary",
        "in_sync": True,
        "connected": True,
        "written": 10,
        "synced": 9,
        "lag": 0,
        "http_address": "a:1",
    },
    {
        "member": "b",
        "role": "in-sync",
        "in_sync": True,
        "connected": True,
        "written": 1007,
        "synced": 5,
        "lag": 3,
        "http_address": "b:1",
    },
    {"member": "c", "role": "away", "in_sync": False, "lag": None, "http_address": "c:1"},
]
TOLD = {
    "group": "g", "member": "a", "state": "primary", "term": 5, "sequence": 1010, "isr": ["a", "b"],
    "min_copies": 2, "ack": "synced", "primary": PRIMARY, "members": MEMBERS, "refusing": "", "etcd": "",
    "problem": "",
}  # fmt: skip
ALONE = {
    **TOLD, "member": "c", "state": "catching-up", "primary": None, "sequence": 1000, "members": MEMBERS[2:],
}  # fmt: skip


class Played:
    """A member whose `/replica` says `told`, and which answers a POST with `refusal`."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.refusal: tuple[int, str] | None = None
        self.posts: list[tuple[str, str]] = []  # the path, and the secret
        self.after: dict[str, Any] | None = None  # what it says after a POST

    def serve(self) -> type[BaseHTTPRequestHandler]:
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, played.told)

            def do_POST(self) -> None:
                played.posts.append((self.path, self.headers.get("X-Nsquark-Replica-Secret", "")))
                if played.refusal is not None:
                    self._answer(played.refusal[0], {"message": played.refusal[1]})
                else:
                    played.told = played.after or played.told
                    self._answer(200, {"state": "campaign"})

            def _answer(self, status: int, document: object) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("X-NSQ-Content-Type", "nsq; version=1.0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def played(told: dict[str, Any]) -> Iterator[tuple[Played, list[str]]]:
    """The member, and the flags that lead to it."""
    member = Played(told)
    server = ThreadingHTTPServer(("127.0.0.1", 0), member.serve())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield member, ["--nsqd-http", f"127.0.0.1:{server.server_port}"]
    finally:
        server.shutdown()
        server.server_close()


# ---- status


def test_a_group_is_a_table() -> None:
    with played(TOLD) as (_, at):
        shown = output("replica", "status", *at).splitlines()
    assert shown[0] == (
        "group g: a leads in term 5; 2 in sync: a, b; OK when synced by all in sync, at least 2"
    )
    assert [line.split() for line in shown[1:]] == [
        ["member", "state", "in", "sync", "written", "synced", "lag", "http"],
        ["a", "primary", "yes", "10", "9", "0", "a:1"],
        ["b", "in-sync", "yes", "1,007", "5", "3", "b:1"],
        ["c", "away", "no", "-", "-", "-", "c:1"],
    ]


def test_what_is_wrong_with_a_group_is_said() -> None:
    troubles = {"refusing": "1 of 2 copies", "etcd": "no leader", "problem": "the disk", "isr": ["a", "x"]}
    with played({**TOLD, **troubles}) as (_, at):
        shown = output("replica", "status", *at)
    assert "member 'x' is in sync and is not there\n" in shown
    assert "member 'a' refuses publishes: 1 of 2 copies\n" in shown
    assert "member 'a' has trouble with etcd: no leader\n" in shown
    assert "member 'a': the disk\n" in shown


def test_a_group_without_a_primary_is_a_failure_that_is_shown() -> None:
    with played(ALONE) as (_, at):
        done = nsquark("replica", "status", *at)
    assert done.returncode == 1
    assert "group g: no primary, term 5" in done.stdout
    assert done.stderr == "nsquark: replica group 'g' has no primary\n"


def test_status_waits_for_members_in_sync() -> None:
    away = {**MEMBERS[1], "role": "away"}  # etcd has it in sync, and the primary has no stream to it
    with played({**TOLD, "members": [MEMBERS[0], away]}) as (member, at):
        done = nsquark("replica", "status", "--in-sync", "2", "--wait", "300ms", *at)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "nsquark: replica group 'g' has 1 of 2 members in sync, after 300ms\n"
        member.told = {**TOLD, "refusing": "1 of 2 copies"}
        done = nsquark("replica", "status", "--in-sync", "2", "--wait", "300ms", *at)
        assert "and refuses publishes: 1 of 2 copies, after" in done.stderr
        later = threading.Timer(0.5, setattr, (member, "told", TOLD))
        later.start()
        assert "2 in sync: a, b" in output("replica", "status", "--in-sync", "2", *at)
        later.join()


def test_status_waits_for_an_nsqd_that_does_not_answer_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
    done = nsquark("replica", "status", "--in-sync", "1", "--wait", "300ms", "--nsqd-http", at)
    assert done.returncode == 1
    assert done.stderr == f"nsquark: nsqd {at} does not answer: Connection refused, after 300ms\n"


def test_json_is_what_the_member_says() -> None:
    with played(TOLD) as (_, at):
        assert json.loads(output("replica", "status", "--json", *at)) == [TOLD]


def test_an_nsqd_in_no_group_is_a_failure(nsqd: Nsqd) -> None:
    at = ["--nsqd-http", nsqd.http_address]
    expected = f"nsquark: nsqd {nsqd.http_address} is in no replica group\n"
    for command in (["status"], ["handover"], ["force", "--yes"]):
        assert failure("replica", *command, *at) == expected
    assert "does not answer" in failure("replica", "status", "--nsqd-http", "127.0.0.1:1")


# ---- handover


def test_nobody_to_hand_over_to() -> None:
    with played({**TOLD, "isr": ["a"]}) as (member, at):
        assert "no other member is in sync with 'a'" in failure("replica", "handover", *at)
        assert member.posts == []


def test_a_handover_that_does_not_come_about_ends_in_time() -> None:
    with played(TOLD) as (_, at):
        done = nsquark("replica", "handover", "--wait", "300ms", *at)
    assert done.stdout == "group g: a hands over to b\n"
    assert done.returncode == 1
    assert done.stderr.startswith("nsquark: replica group 'g': no other member leads after 300ms")


def test_the_secret_of_the_group(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    with played(TOLD) as (member, at):
        member.refusal = (403, "REPLICA_SECRET_WRONG")
        done = nsquark("replica", "handover", *at)
        assert (done.returncode, "wants the group's secret: give --replica-secret-file" in done.stderr) == (
            1,
            True,
        )
        done = nsquark("replica", "handover", "--replica-secret-file", str(secret), *at)
        assert "has another secret than --replica-secret-file" in done.stderr
        assert [each for _, each in member.posts] == ["", "0123456789abcdef"]
        missing = ["--replica-secret-file", str(tmp_path / "none")]
        assert "none: No such file" in failure("replica", "handover", *missing, *at, status=2)


# ---- force


def test_force_says_what_it_costs_and_asks() -> None:
    with played(ALONE) as (member, at):
        member.after = {**ALONE, "primary": {**PRIMARY, "member": "c"}, "term": 6}
        done = nsquark("replica", "force", *at)
        assert done.returncode == 2
        assert "say --yes" in done.stderr
        assert member.posts == []
        for said in (
            "in sync were: a, b",
            "its directory ends at frame 1,000 of term 5",
            "what a and b stored behind that is lost, also what was answered OK",
            "every log gets a new epoch",
            "EPOCH_CHANGED",
            "Spark queries stop",
        ):
            assert said in done.stderr, said
        with terminal("replica", "force", *at) as screen:
            screen.wait_for("Type the name of the group")
            screen.type(b"yes\r")
            assert screen.end() == 1
            assert "nothing was done" in screen.text
        assert member.posts == []
        with terminal("replica", "force", *at, columns=200) as screen:
            screen.wait_for("Type the name of the group")
            screen.type(b"g\r")
            assert screen.end() == 0
            assert "c leads in term 6" in screen.text
        assert member.posts == [("/replica/force", "")]


def test_force_is_not_for_a_group_with_a_primary() -> None:
    with played(TOLD) as (member, at):
        assert "has a primary, 'a': use nsquark replica handover" in failure("replica", "force", "--yes", *at)
        assert member.posts == []


def test_force_needs_one_member() -> None:
    flags = ["--nsqd-http", "127.0.0.1:1", "--nsqd-http", "127.0.0.1:2"]
    assert "name the one member" in failure("replica", "force", "--yes", *flags, status=2)


def test_why_a_member_does_not_lead() -> None:
    with played(ALONE) as (member, at):
        member.refusal = (409, "the group's state is not known")
        done = nsquark("replica", "force", "--yes", *at)
        assert done.returncode == 1
        assert done.stderr.endswith("the group's state is not known\n")


# ---- a real group


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with replica_group(tmp_path) as running:
        yield running


def at(member: Member) -> list[str]:
    return ["--nsqd-http", f"127.0.0.1:{member.http_port}"]


@needs_etcd
@pytest.mark.timeout(180)
def test_a_real_group_is_shown_handed_over_and_forced(group: Group) -> None:
    a, b = group.pair()
    for member in (a, b):  # the standby knows which member to ask
        shown = output("replica", "status", *at(member))
        assert "group g: a leads in term 1; 2 in sync: a, b" in shown
        rows = {line.split()[0]: line.split() for line in shown.splitlines()[2:]}
        assert rows["a"][1:3] == ["primary", "yes"]
        assert rows["b"][1:3] == ["in-sync", "yes"]
        assert all(row[-1].startswith("127.0.0.1:") for row in rows.values())

    said = output("replica", "handover", *at(b)).splitlines()
    assert said[0] == "group g: a hands over to b"
    assert said[1].startswith("group g: b leads in term 2, after ")
    a.is_in_sync()

    a.kill()
    until(lambda: b.state().get("isr") == ["b"])
    b.kill()
    a.start()
    until(lambda: a.state().get("isr") == ["b"] and a.state()["primary"] is None)
    done = nsquark("replica", "force", "--yes", *at(a))
    assert done.returncode == 0, done
    assert "what b stored behind that is lost" in done.stderr
    assert "a leads in term 3" in done.stdout
    assert "every log has a new epoch" in done.stdout
    a.serves()
