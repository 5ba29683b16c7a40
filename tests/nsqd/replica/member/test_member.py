"""Replica groups as processes: a real etcd, real nsqds, failovers."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.nsqd.replica.etcd_process import etcd, why_not
from tests.nsqd.replica.processes import Member, files, until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

Start = Callable[..., Member]
NSQD = (sys.executable, "-m", "nsquark.nsqd", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    members: list[Member] = []
    with etcd(tmp_path / "etcd") as endpoint:

        def start(name: str, *flags: str) -> Member:
            members.append(Member(tmp_path, name, endpoint, *flags))
            return members[-1]

        try:
            yield start
        finally:
            for member in members:
                member.kill()


@pytest.fixture
def pair(start: Start) -> tuple[Member, Member]:
    """A primary and a standby in sync."""
    a = start("a", "--replica-bootstrap")
    a.serves()
    b = start("b")
    b.is_in_sync()
    return a, b


class Client:
    """V2 on a socket, one command at a time."""

    def __init__(self, member: Member) -> None:
        self.socket = socket.create_connection(("127.0.0.1", member.tcp_port), timeout=30)
        self.socket.sendall(b"  V2")
        self._file = self.socket.makefile("rb")

    def read(self) -> bytes:
        """The data of the next frame; nothing if the connection has ended."""
        try:
            size = self._file.read(4)
        except ConnectionResetError:
            return b""
        return self._file.read(struct.unpack(">I", size)[0])[4:] if len(size) == 4 else b""

    def pub(self, topic: str, body: bytes) -> bytes:
        self.socket.sendall(b"PUB %s\n%s%s" % (topic.encode(), struct.pack(">I", len(body)), body))
        return self.read()

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def post(member: Member, path: str, body: bytes = b"") -> None:
    status, text = member.ask("POST", path, body)
    assert status == 200, text


def channel(member: Member, topic: str = "t", name: str = "c") -> dict[str, Any]:
    found = json.loads(member.ask("GET", f"/stats?format=json&topic={topic}&channel={name}")[1])
    channel: dict[str, Any] = found["topics"][0]["channels"][0]
    return channel


def bodies(member: Member, topic: str = "t", limit: int = 1000) -> list[str]:
    found = json.loads(member.ask("GET", f"/topic/peek?topic={topic}&from=0&limit={limit}")[1])
    return [each["body"] for each in found["messages"]]


def create(member: Member) -> None:
    post(member, "/topic/create?topic=t")
    post(member, "/channel/create?topic=t&channel=c")


def test_the_standby_has_what_was_answered_when_the_primary_is_killed(pair: tuple[Member, Member]) -> None:
    a, b = pair
    create(a)
    client = Client(a)
    for number in range(100):
        assert client.pub("t", b"%d" % number) == b"OK"
    a.kill()
    b.serves()
    assert channel(b)["depth"] == 100
    assert bodies(b) == [str(number) for number in range(100)]
    assert b.replica()["term"] == 2
    assert b.replica()["isr"] == ["b"]


def test_a_killed_primary_comes_back_as_a_standby_and_its_files_become_equal(
    pair: tuple[Member, Member],
) -> None:
    a, b = pair
    create(a)
    post(a, "/mpub?topic=t", b"\n".join(b"%d" % number for number in range(50)))
    a.kill()
    b.serves()
    post(b, "/pub?topic=t", b"of term 2")
    a.start()
    a.is_in_sync()
    post(b, "/pub?topic=t", b"for both")
    until(lambda: a.replica()["sequence"] == b.replica()["sequence"])
    assert files(a.directory) == files(b.directory)


def test_members_tell_the_role_of_each_other(pair: tuple[Member, Member]) -> None:
    a, b = pair
    until(lambda: roles(a) == {"a": "primary", "b": "in-sync"})
    until(lambda: roles(b) == {"a": "primary", "b": "in-sync"})
    b.kill()
    until(lambda: roles(a)["b"] == "away")  # etcd sees its session for a while
    b.start()
    until(lambda: roles(a) == {"a": "primary", "b": "in-sync"})


def roles(member: Member) -> dict[str, str]:
    return {each["member"]: each["role"] for each in member.replica()["members"]}


def test_a_stopped_primary_hands_over_at_once_and_nothing_is_lost(pair: tuple[Member, Member]) -> None:
    a, b = pair
    create(a)
    post(a, "/pub?topic=t", b"before")
    assert a.stop() == 0
    b.serves()
    assert "handed over" not in b.log
    assert bodies(b) == ["before"]
    assert channel(b)["depth"] == 1


def test_a_handover_by_an_operator_makes_the_primary_a_standby_in_the_same_process(
    pair: tuple[Member, Member],
) -> None:
    a, b = pair
    create(a)
    pid = a.process.pid
    post(a, "/replica/handover")
    b.serves()
    a.is_in_sync()
    assert a.process.pid == pid
    assert a.process.poll() is None
    post(b, "/pub?topic=t", b"after")
    assert bodies(b) == ["after"]


def test_a_standby_refuses_clients_and_says_who_leads(pair: tuple[Member, Member]) -> None:
    a, b = pair
    with pytest.raises(ConnectionRefusedError):
        Client(b)
    status, text = b.ask("GET", "/replica/primary")
    assert status == 503
    assert json.loads(text)["primary"]["tcp_address"] == a.tcp_address
    for method, path, body in (
        ("POST", "/pub?topic=t", b"x"),
        ("POST", "/mpub?topic=t", b"x" * 300_000),
        ("POST", "/topic/create?topic=t", b""),
        ("GET", "/stats", b""),
    ):
        status, text = b.ask(method, path, body)
        assert (status, json.loads(text)["message"]) == (503, "NOT_PRIMARY")
    assert json.loads(b.ask("POST", "/pub?topic=t", b"x")[1])["primary"]["tcp_address"] == a.tcp_address
    assert b.ask("POST", "/ping")[0] == 405
    assert a.ask("GET", "/replica/primary")[0] == 200
    assert b.ask("GET", "/replica/in-sync")[0] == 200


def test_a_primary_tells_of_its_own_disk_only_where_it_waits_for_it(pair: tuple[Member, Member]) -> None:
    a, _ = pair
    create(a)
    synced = {each["member"]: each["synced"] for each in a.replica()["members"]}
    assert synced["a"] is None
    assert synced["b"] is not None


def test_a_member_that_says_it_serves_has_everything_that_nsqd_has(pair: tuple[Member, Member]) -> None:
    a, b = pair
    post(a, "/topic/create?topic=orders")
    post(a, "/channel/create?topic=orders&channel=c")
    a.kill()
    answers: list[tuple[int, bytes]] = []

    def serves() -> bool:
        answers.append(b.ask("GET", "/replica/primary"))
        return answers[-1][0] == 200

    until(serves)
    assert b.ask("POST", "/channel/pause?topic=orders&channel=c")[0] == 200
    told = json.loads(answers[-1][1])
    assert (told["member"], told["term"]) == ("b", 2)
    assert told["tcp_address"].endswith(f":{b.tcp_port}")


@pytest.mark.parametrize("left", [None, b"", b'{"node": "12'])
def test_a_catch_up_that_broke_off_at_the_nodes_file_is_done_anew(
    pair: tuple[Member, Member], left: bytes | None
) -> None:
    a, b = pair
    post(a, "/pub?topic=orders", b"one")
    b.kill()
    kept = json.loads((b.directory / "nsquark.member").read_bytes())
    (b.directory / "nsquark.member").write_text(json.dumps(kept | {"settled": False}))
    node = (b.directory / "nsquark.dat").read_bytes()
    if left is None:
        (b.directory / "nsquark.dat").unlink()
    else:
        (b.directory / "nsquark.dat").write_bytes(left)
    b.start()
    b.is_in_sync()
    assert (b.directory / "nsquark.dat").read_bytes() == node


def test_a_publish_is_answered_only_when_the_standby_has_it(pair: tuple[Member, Member]) -> None:
    a, b = pair
    create(a)
    b.process.send_signal(signal.SIGSTOP)
    client = Client(a)
    client.socket.sendall(b"PUB t\n\0\0\0\1x")
    # Until the primary has removed the standby, no consumer gets to see the message.
    assert client.read() == b"OK"
    assert a.replica()["isr"] == ["a"]
    b.process.send_signal(signal.SIGCONT)
    until(lambda: a.replica()["isr"] == ["a", "b"])
    a.kill()
    b.serves()
    assert bodies(b) == ["x"]


def test_with_too_few_copies_publishes_are_refused_and_nothing_is_written(start: Start) -> None:
    a = start("a", "--replica-bootstrap", "--min-copies=2")
    a.serves()
    post(a, "/topic/create?topic=t")
    client = Client(a)
    assert client.pub("t", b"x") == b"E_PUB_FAILED PUB failed replica group: 1 of 2 copies"
    status, text = a.ask("POST", "/pub?topic=t", b"x")
    assert status == 503
    assert json.loads(text) == {"message": "NOT_STORED", "reason": "replica group: 1 of 2 copies"}
    assert bodies(a) == []
    start("b", "--min-copies=2").is_in_sync()
    until(lambda: not a.replica()["refusing"])
    assert Client(a).pub("t", b"y") == b"OK"
    assert bodies(a) == ["y"]


def test_a_primary_that_was_paused_finds_another_one_and_answers_nobody(pair: tuple[Member, Member]) -> None:
    a, b = pair
    create(a)
    client = Client(a)
    assert client.pub("t", b"first") == b"OK"
    a.process.send_signal(signal.SIGSTOP)
    client.socket.sendall(b"PUB t\n\0\0\0\6second")
    b.serves()
    assert Client(b).pub("t", b"third") == b"OK"
    a.process.send_signal(signal.SIGCONT)
    a.is_in_sync()
    assert client.read() == b""
    assert bodies(b) == ["first", "third"]
    until(lambda: a.replica()["sequence"] == b.replica()["sequence"])
    assert files(a.directory) == files(b.directory)


def test_changes_over_http_outlive_the_primary(pair: tuple[Member, Member]) -> None:
    a, b = pair
    create(a)
    post(a, "/mpub?topic=t", b"1\n2\n3\n4")
    post(a, "/channel/create?topic=t&channel=d")
    post(a, "/channel/pause?topic=t&channel=c")
    post(a, "/topic/pause?topic=t")
    post(a, "/channel/commit?topic=t&channel=c&to=2")
    post(a, "/topic/create?topic=gone")
    post(a, "/topic/delete?topic=gone")
    a.kill()
    b.serves()
    found = json.loads(b.ask("GET", "/stats?format=json")[1])["topics"]
    assert [topic["topic_name"] for topic in found] == ["t"]
    assert found[0]["paused"]
    channels = {each["channel_name"]: each for each in found[0]["channels"]}
    assert set(channels) == {"c", "d"}
    assert channels["c"]["paused"]
    assert channels["c"]["depth"] == 2


def test_etcd_may_be_away_while_primary_and_standby_hear_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "etcd"
    members: list[Member] = []
    try:
        with etcd(folder) as endpoint:
            members = [Member(tmp_path, "a", endpoint, "--replica-bootstrap")]
            members[0].serves()
            members.append(Member(tmp_path, "b", endpoint))
            members[1].is_in_sync()
            create(members[0])
        a, b = members
        client = Client(a)
        # Longer than any lease: each publish waits for the standby.
        until(lambda: a.replica()["etcd"] and b.replica()["etcd"])
        for _ in range(20):
            assert client.pub("t", b"x") == b"OK"
        with etcd(folder, port=int(endpoint.rpartition(":")[2])):
            until(lambda: not a.replica()["etcd"])
            assert client.pub("t", b"x") == b"OK"
            assert a.replica()["term"] == 1
            a.kill()
            b.serves()
            assert len(bodies(b)) == 21
    finally:
        for member in members:
            member.kill()


def test_a_group_is_founded_anew_in_an_empty_etcd(tmp_path: Path) -> None:
    members: list[Member] = []
    try:
        with etcd(tmp_path / "etcd") as endpoint:
            members = [Member(tmp_path, "a", endpoint, "--replica-bootstrap")]
            a = members[0]
            a.serves()
            create(a)
            post(a, "/pub?topic=t", b"x")
        with etcd(tmp_path / "another", port=int(endpoint.rpartition(":")[2])):
            a.kill()
            a.start()
            # Another member may have more, so the flag alone founds nothing.
            until(lambda: not a.state().get("etcd", "?"))
            assert a.replica()["isr"] == []
            a.kill()
            (a.directory / "nsquark.member").unlink()
            a.start()
            a.serves()
            assert a.replica()["term"] > 1
            assert bodies(a) == ["x"]
            members.append(Member(tmp_path, "b", endpoint))
            members[1].is_in_sync()
    finally:
        for member in members:
            member.kill()


def test_a_member_can_be_forced_to_lead_and_readers_are_told(pair: tuple[Member, Member]) -> None:
    a, b = pair
    create(a)
    post(a, "/pub?topic=t", b"both")
    b.kill()
    until(lambda: a.replica()["isr"] == ["a"])
    post(a, "/pub?topic=t", b"lost")
    epoch = json.loads(a.ask("GET", "/log/range?topic=t")[1])["epoch"]
    a.kill()
    b.start()
    until(lambda: b.state().get("isr") == ["a"] and b.state()["primary"] is None)
    assert not b.replica()["serving"]
    post(b, "/replica/force")
    b.serves()
    assert bodies(b) == ["both"]
    assert json.loads(b.ask("GET", "/log/range?topic=t")[1])["epoch"] != epoch
    # What only the old primary had is no longer served, and not deleted either.
    a.start()
    a.is_in_sync()
    aside = [path for path in (a.directory / ".diverged").rglob("*") if path.is_file()]
    assert any(b"lost" in path.read_bytes() for path in aside)


def test_a_hole_that_a_power_loss_has_left_is_found_wherever_it_is(pair: tuple[Member, Member]) -> None:
    """The end of a file may have reached the disk, and what is before it not."""
    a, b = pair
    create(a)
    for number in range(40):
        post(a, "/pub?topic=t", b"%02d" % number * 50_000)
    until(lambda: b.replica()["sequence"] == a.replica()["sequence"])
    b.kill()
    (segment,) = (b.directory / "topics" / "t").glob("*.log")
    with segment.open("r+b") as file:
        file.seek(1_000_000)
        file.write(bytes(8192))
    # The file is written in its place, which says whose it is.
    known = json.loads((b.directory / "nsquark.member").read_bytes())
    (b.directory / "nsquark.member").write_text(json.dumps(known | {"boot_id": "another"}))
    b.start()
    until(lambda: len(a.replica()["isr"]) == 2 and b.state()["state"] == "in-sync")
    until(lambda: b.replica()["sequence"] == a.replica()["sequence"])
    assert files(a.directory) == files(b.directory)


def test_a_members_directory_is_not_served_without_its_group(pair: tuple[Member, Member]) -> None:
    _, b = pair
    b.kill()
    done = subprocess.run(
        [*NSQD, f"--data-path={b.directory}"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert "belongs to a member of a replica group" in done.stderr


def test_three_members_go_on_without_one_and_then_without_two(start: Start) -> None:
    a = start("a", "--replica-bootstrap")
    a.serves()
    b, c = start("b"), start("c")
    b.is_in_sync()
    c.is_in_sync()
    create(a)
    post(a, "/pub?topic=t", b"1")
    a.kill()
    until(lambda: b.state()["serving"] or c.state()["serving"])
    first, second = (b, c) if b.state()["serving"] else (c, b)
    post(first, "/pub?topic=t", b"2")
    until(lambda: second.name in first.state().get("isr", ()))
    second.is_in_sync()
    first.kill()
    second.serves()
    assert bodies(second) == ["1", "2"]


def test_synced_acknowledgements_survive_both(start: Start) -> None:
    a = start("a", "--replica-bootstrap", "--replica-ack=synced")
    a.serves()
    b = start("b", "--replica-ack=synced")
    b.is_in_sync()
    create(a)
    client = Client(a)
    for number in range(20):
        assert client.pub("t", b"%d" % number) == b"OK"
    assert a.replica()["ack"] == "synced"
    a.kill()
    b.kill()
    b.start()
    b.serves()
    assert len(bodies(b)) == 20


def test_messages_are_not_delivered_before_they_are_committed(pair: tuple[Member, Member]) -> None:
    a, b = pair
    create(a)
    consumer = Client(a)
    consumer.socket.sendall(b"SUB t c\nRDY 10\n")
    assert consumer.read() == b"OK"
    b.process.send_signal(signal.SIGSTOP)
    publisher = Client(a)
    publisher.socket.sendall(b"PUB t\n\0\0\0\1x")
    log = a.directory / "topics" / "t"
    until(lambda: any(path.stat().st_size for path in log.glob("*.t000001.log")))
    # It is in the primary's log, and not where readers see it.
    while json.loads(a.ask("GET", "/log/range?topic=t")[1])["next"] == 0:
        assert a.replica()["isr"] == ["a", "b"] or a.replica()["isr"] == ["a"]
    assert a.replica()["isr"] == ["a"]  # so the primary has removed the standby first
    assert publisher.read() == b"OK"
    assert consumer.read()[26:] == b"x"
    b.process.send_signal(signal.SIGCONT)


def test_the_flags_are_checked_in_one_line(tmp_path: Path) -> None:
    for flags, expected in (
        (["--replica-group=g"], "--replica-group needs --replica-member"),
        (["--replica-group=g", "--replica-member=a"], "--replica-group needs --replica-etcd"),
        (["--replica-member=a"], "--replica-member needs --replica-group"),
        (
            ["--replica-group=g", "--replica-member=a", "--replica-etcd=x:1", "--min-copies=0"],
            "--min-copies must be [1,3], not 0",
        ),
        (
            ["--replica-group=g/x", "--replica-member=a", "--replica-etcd=127.0.0.1:1"],
            "'g/x' is no name",
        ),
    ):
        done = subprocess.run(
            [
                *NSQD,
                f"--data-path={tmp_path}",
                *flags,
            ],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 1
        assert expected in done.stderr


def test_a_primary_that_is_told_to_stop_ends_although_it_loses_its_term_meanwhile(
    pair: tuple[Member, Member],
) -> None:
    a, b = pair
    create(a)
    post(a, "/pub?topic=t", b"in flight")
    client = Client(a)
    client.socket.sendall(b"SUB t c\nRDY 1\n")
    assert client.read() == b"OK"
    assert client.read().endswith(b"in flight")
    a.process.terminate()
    until(lambda: "consumers have" in a.log)  # what is in flight is waited for, and another member takes over
    post(a, "/replica/handover")
    b.serves()
    assert a.process.wait(30) == 0
    assert channel(b)["depth"] == 1


@pytest.mark.parametrize("incarnation", ["", "b", "b@", "b@1/../x", "a@1"])
def test_a_stream_is_for_incarnations_of_other_members(start: Start, incarnation: str) -> None:
    a = start("a", "--replica-bootstrap")
    a.serves()
    manifest = json.loads(a.ask("GET", "/replica/manifest")[1])
    query = f"stream={manifest['stream']}&from={manifest['sequence']}&term={manifest['term']}"
    status, text = a.ask("GET", f"/replica/stream?{query}&incarnation={incarnation}")
    assert (status, json.loads(text)["message"]) == (400, "INVALID_ARG_INCARNATION")


def test_a_change_that_no_other_member_confirms_is_answered_in_the_end(start: Start) -> None:
    flags = ("--min-copies=2", "--replica-timeout=500ms")
    a = start("a", "--replica-bootstrap", *flags)
    a.serves()
    b = start("b", *flags)
    b.is_in_sync()
    until(lambda: not a.replica()["refusing"])
    b.process.send_signal(signal.SIGSTOP)
    status, text = a.ask("POST", "/topic/create?topic=t")
    assert (status, json.loads(text)["message"]) == (503, "NOT_CONFIRMED")
    b.process.send_signal(signal.SIGCONT)
    until(lambda: a.ask("POST", "/topic/create?topic=t")[0] == 200)


def test_a_connection_that_a_standby_took_is_served_when_the_standby_leads(
    pair: tuple[Member, Member],
) -> None:
    """Of a load balancer or nsqadmin, say, which keep theirs open."""
    a, b = pair
    create(a)
    kept = HTTPConnection("127.0.0.1", b.http_port, timeout=30)
    kept.request("GET", "/stats")
    answer = kept.getresponse()
    answer.read()
    assert answer.status == 503
    a.kill()
    b.serves()
    kept.request("GET", "/stats")
    assert kept.getresponse().status == 200
    kept.close()


def test_the_epoch_of_a_new_log_is_told_to_nobody_before_the_standby_has_it(start: Start) -> None:
    """A failover could take the log back, and a reader would know it by an epoch that never was."""
    flags = ("--min-copies=2", "--replica-timeout=500ms")
    a = start("a", "--replica-bootstrap", *flags)
    a.serves()
    b = start("b", *flags)
    b.is_in_sync()
    until(lambda: not a.replica()["refusing"])
    b.process.send_signal(signal.SIGSTOP)
    client = Client(a)
    client.socket.sendall(b"PUB t\n\0\0\0\1x")
    until(lambda: json.loads(a.ask("GET", "/stats?format=json")[1])["topics"])
    for path in ("/log/range?topic=t", "/log/read?topic=t"):
        status, text = a.ask("GET", path)
        assert (status, json.loads(text)["message"]) == (503, "NOT_CONFIRMED")
    b.process.send_signal(signal.SIGCONT)
    until(lambda: a.ask("GET", "/log/range?topic=t")[0] == 200)


def test_a_channel_is_answered_for_to_nobody_before_the_standby_has_it(start: Start) -> None:
    """Not to the second client that subscribes to it, either."""
    flags = ("--min-copies=2", "--replica-timeout=500ms")
    a = start("a", "--replica-bootstrap", *flags)
    a.serves()
    b = start("b", *flags)
    b.is_in_sync()
    until(lambda: not a.replica()["refusing"])
    post(a, "/topic/create?topic=t")
    b.process.send_signal(signal.SIGSTOP)
    first, second = Client(a), Client(a)
    first.socket.sendall(b"SUB t c\n")
    until(lambda: json.loads(a.ask("GET", "/stats?format=json&topic=t")[1])["topics"][0]["channels"])
    second.socket.sendall(b"SUB t c\n")
    until(lambda: channel(a)["client_count"] == 2)
    second.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.socket.recv(1)
    second.socket.settimeout(30)
    b.process.send_signal(signal.SIGCONT)
    assert first.read() == b"OK"
    assert second.read() == b"OK"
