"""A warm copy, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nsqd.replica.processes import Nsqd, files, until

Start = Callable[..., Nsqd]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Nsqd] = []

    def begin(directory: Path, *flags: str) -> Nsqd:
        running.append(Nsqd(directory, *flags))
        return running[-1]

    yield begin
    for each in running:
        each.kill()


def in_sync(follower: Nsqd) -> bool:
    told = follower.replica()
    return told["state"] == "in-sync" and told["connected"]


def caught_up(primary: Nsqd, follower: Nsqd) -> bool:
    end = primary.replica()["sequence"]
    return in_sync(follower) and follower.replica()["written"] >= end


def bodies(nsqd: Nsqd, topic: str) -> list[bytes]:
    from nsquark.data_path.dump import messages

    return [each.body for each in messages(nsqd.directory / "topics" / topic)]


class Load:
    """Publishes, finishes, requeues, pauses, deletes and stages until the primary is gone."""

    def __init__(self, primary: Nsqd) -> None:
        self.published: list[tuple[bytes, int]] = []  # body, and the primary's sequence behind its answer
        self._primary = primary
        self._threads = [
            threading.Thread(target=self._run, args=(each,))
            for each in (self._publish, self._change, self._consume)
        ]
        for each in self._threads:
            each.start()

    def join(self) -> None:
        for each in self._threads:
            each.join(30)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, ValueError):
            pass
        except Exception as error:
            if "http.client" not in type(error).__module__:
                raise

    def _publish(self) -> None:
        number = 0
        while True:
            body = b"message %d" % number
            if number % 3 == 0:
                status, _ = self._primary.ask("POST", "/pub?topic=orders", body)
            elif number % 3 == 1:
                status, _ = self._primary.ask("POST", "/mpub?topic=orders", body + b"\n" + b"x" * 5000)
            else:
                status, _ = self._primary.ask("POST", "/pub?topic=orders&defer=50", body)
            if status == 200:
                self.published.append((body, self._primary.replica()["sequence"]))
            number += 1

    def _change(self) -> None:
        number = 0
        while True:
            ask = self._primary.ask
            ask("POST", "/channel/create?topic=brief&channel=c")
            ask("POST", "/pub?topic=brief", b"gone soon")
            ask("POST", "/channel/pause?topic=brief&channel=c")
            ask(
                "POST",
                f"/staged/put?app=nightly&batch={number}&partition=0&attempt=a&seq=0&topic=orders",
                b"\0\0\0\x01\0\0\0\x06staged",
            )
            ask("POST", "/topic/delete?topic=brief")
            number += 1

    def _consume(self) -> None:
        with socket.create_connection(("127.0.0.1", self._primary.tcp_port)) as client:
            client.sendall(b"  V2SUB orders c\nRDY 20\n")
            reader = client.makefile("rb")
            number = 0
            while size := int.from_bytes(reader.read(4), "big"):
                frame = reader.read(size)
                if frame[:4] == b"\0\0\0\2":
                    message = frame[14:30]
                    client.sendall(b"REQ %s 0\n" % message if number % 7 == 6 else b"FIN %s\n" % message)
                    number += 1
                elif frame[4:] == b"_heartbeat_":
                    client.sendall(b"NOP\n")


def test_a_killed_primary_lives_on_in_its_follower(tmp_path: Path, start: Start) -> None:
    primary = start(tmp_path / "a", "--max-bytes-per-file=20000", "--retention-bytes=100000000")
    primary.ask("POST", "/pub?topic=orders", b"before")
    primary.ask("POST", "/channel/create?topic=orders&channel=c")
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: in_sync(follower))
    load = Load(primary)
    until(lambda: len(load.published) > 300, 60)
    primary.kill()
    load.join()
    written = until(lambda: not (told := follower.replica())["connected"] and told)["written"]
    follower.kill()
    before, copied = files(primary.directory), files(follower.directory)
    # Files that only one side has are those of the last frames: a killed primary had not sent them.
    for name in before.keys() & copied.keys():
        if name.endswith(".log") or "/journal." in name or name.startswith("staged/"):
            if not name.endswith("app.json") and "brief" not in name:
                assert before[name].startswith(copied[name]), name
    assert len([name for name in copied if name.startswith("topics/orders/") and name.endswith(".log")]) > 5
    acknowledged = {body for body, sequence in load.published if sequence <= written}
    assert len(acknowledged) > 200
    heir = start(follower.directory, "--retention-bytes=100000000")
    assert heir.replica()["term"] == 1
    assert acknowledged <= set(bodies(heir, "orders"))
    assert heir.ask("POST", "/pub?topic=orders", b"after") == (200, b"OK")
    assert "damaged" not in heir.log
    assert heir.stop() == 0
    assert bodies(heir, "orders")[-1] == b"after"
    assert list((heir.directory / "topics" / "orders").glob("*.t000001.log"))
    assert list((heir.directory / "topics" / "orders").glob("journal.*.t000001"))


def test_promoting_by_request_goes_on_in_the_same_process(tmp_path: Path, start: Start) -> None:
    primary = start(tmp_path / "a")
    primary.ask("POST", "/pub?topic=orders", b"one")
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: in_sync(follower))
    assert follower.ask("POST", "/pub?topic=orders", b"no")[0] == 404
    assert follower.ask("GET", "/ping") == (200, b"OK")
    assert b"nsqd_replica_lag 0" in follower.ask("GET", "/metrics")[1]
    node = primary.replica()["node"]
    primary.stop()
    assert follower.ask("POST", "/replica/promote")[0] == 200
    follower.promoted()
    assert until(lambda: follower.ask("POST", "/pub?topic=orders", b"two")) == (200, b"OK")
    told = follower.replica()
    assert (told["state"], told["term"], told["node"]) == ("primary", 1, node)
    assert bodies(follower, "orders") == [b"one", b"two"]


def test_the_old_primary_follows_and_keeps_what_diverged(tmp_path: Path, start: Start) -> None:
    primary = start(tmp_path / "a")
    primary.ask("POST", "/pub?topic=orders", b"both")
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: caught_up(primary, follower))
    follower.kill()
    primary.ask("POST", "/pub?topic=orders", b"never copied")
    primary.kill()
    heir = start(tmp_path / "b")
    heir.ask("POST", "/pub?topic=orders", b"of term 1")
    old = start(tmp_path / "a", f"--replica-of={heir.url}")
    until(lambda: caught_up(heir, old))
    assert bodies(old, "orders") == bodies(heir, "orders") == [b"both", b"of term 1"]
    kept = [
        each
        for each in (tmp_path / "a" / ".diverged").rglob("*.log@*")
        if b"never copied" in each.read_bytes()
    ]
    assert len(kept) == 1


def test_a_follower_that_was_away_catches_up(tmp_path: Path, start: Start) -> None:
    primary = start(tmp_path / "a")
    primary.ask("POST", "/pub?topic=orders", b"one")
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: caught_up(primary, follower))
    follower.kill()
    primary.ask("POST", "/topic/delete?topic=orders")
    for number in range(50):
        primary.ask("POST", "/pub?topic=orders", b"again %d" % number)
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: caught_up(primary, follower))
    until(lambda: files(follower.directory) == files(primary.directory))


@pytest.mark.parametrize("boot", ["another", None])
def test_a_hole_that_a_power_loss_has_left_is_found_wherever_it_is(
    tmp_path: Path, start: Start, boot: str | None
) -> None:
    """The end of a file may have reached the disk, and what is before it not."""
    primary = start(tmp_path / "a")
    for number in range(40):
        primary.ask("POST", "/pub?topic=orders", b"%02d" % number * 50_000)
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: caught_up(primary, follower))
    follower.kill()
    (segment,) = (tmp_path / "b" / "topics" / "orders").glob("*.log")
    with segment.open("r+b") as file:
        file.seek(1_000_000)
        file.write(bytes(8192))
    mark = tmp_path / "b" / "nsquark.replica"
    known = json.loads(mark.read_bytes())
    known.pop("boot")  # as an earlier release leaves it
    mark.write_text(json.dumps(known | ({} if boot is None else {"boot": boot})))
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: caught_up(primary, follower))
    until(lambda: files(follower.directory) == files(primary.directory))


def test_a_follower_that_does_not_read_is_dropped_and_costs_no_more(tmp_path: Path, start: Start) -> None:
    primary = start(tmp_path / "a")
    primary.ask("POST", "/pub?topic=orders", b"one")
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: caught_up(primary, follower))
    follower.process.send_signal(signal.SIGSTOP)
    sent, body = 0, b"x" * (1 << 20)
    while primary.replica()["followers"]:
        assert primary.ask("POST", "/pub?topic=orders", body) == (200, b"OK")
        assert primary.replica()["backlog_bytes"] <= 64 << 20
        assert (sent := sent + 1) < 120
    follower.process.send_signal(signal.SIGCONT)
    until(lambda: caught_up(primary, follower))
    until(lambda: files(follower.directory) == files(primary.directory))


def test_the_directory_of_another_node_is_left_as_it_is(tmp_path: Path, start: Start) -> None:
    primary, other = start(tmp_path / "a"), start(tmp_path / "b")
    other.ask("POST", "/pub?topic=orders", b"its own")
    other.kill()
    before = files(other.directory)
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: "belongs to node" in follower.replica()["problem"])
    follower.kill()
    assert files(other.directory) == before
    assert not (other.directory / ".diverged").exists()


def test_a_primary_of_a_lower_term_is_not_followed(tmp_path: Path, start: Start) -> None:
    primary = start(tmp_path / "a")
    follower = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: caught_up(primary, follower))
    follower.kill()
    heir = start(tmp_path / "b")  # of term 1
    heir.ask("POST", "/pub?topic=orders", b"of term 1")
    heir.kill()
    wrong = start(tmp_path / "b", f"--replica-of={primary.url}")
    until(lambda: "has term 0" in wrong.replica()["problem"])
    wrong.kill()
    assert bodies(heir, "orders") == [b"of term 1"]


def test_a_copy_that_is_not_complete_is_not_served(tmp_path: Path, start: Start) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "nsquark.replica").write_text(json.dumps({"state": "catching-up"}))
    with pytest.raises(AssertionError, match="not complete"):
        start(tmp_path / "b")


@pytest.mark.parametrize(
    "sent", [b"GARBAGE" * 10, b"NQA1" + b"\xff" * 20, b"NQA1" + bytes(4) + b"\0" * 15 + b"\1"]
)
def test_strange_answers_end_the_stream_and_nothing_else(tmp_path: Path, start: Start, sent: bytes) -> None:
    primary = start(tmp_path / "a")
    manifest = json.loads(primary.ask("GET", "/replica/manifest")[1])
    with socket.create_connection(("127.0.0.1", primary.http_port)) as client:
        target = f"/replica/stream?stream={manifest['stream']}&from={manifest['sequence']}"
        client.sendall(
            f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: n\r\n\r\n".encode()
        )
        assert client.recv(12) == b"HTTP/1.1 101"
        client.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass
    until(lambda: not primary.replica()["followers"])
    assert primary.ask("POST", "/pub?topic=orders", b"one") == (200, b"OK")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "topics/../../x", "nsquark.replica", "topics//x", ".diverged/x"]
)
def test_files_outside_of_the_copy_are_not_given(tmp_path: Path, start: Start, path: str) -> None:
    primary = start(tmp_path / "a")
    assert primary.ask("GET", f"/replica/file?path={path}&from=0&size=10")[0] == 400


def test_what_is_no_file_of_the_copy_is_answered_in_one_line(tmp_path: Path, start: Start) -> None:
    primary = start(tmp_path / "a")
    assert primary.ask("POST", "/pub?topic=orders", b"one")[0] == 200
    folder = primary.directory / "topics" / "orders"
    os.mkfifo(folder / "fifo")  # to open it would wait for ever
    (folder / "link").symlink_to("/etc/passwd")
    file = next(folder.glob("*.log")).name
    for path in ("orders", "orders/fifo", "orders/link", "orders/" + "x" * 300, f"orders/{file}/x"):
        route = f"/replica/file?path=topics/{path}&from=0&size=10"
        assert primary.ask("GET", route) == (404, b'{"message":"NO_SUCH_FILE"}'), path
    for offset in (1 << 63, (1 << 63) - 1, 9999999999999999999):
        route = f"/replica/file?path=topics/orders/{file}&from={offset}&size=10"
        for more in ("", "&crc=1"):
            assert primary.ask("GET", route + more) == (400, b'{"message":"INVALID_ARG_FROM"}')
    assert "Traceback" not in primary.log


def test_a_secret_is_asked_for_and_compared(tmp_path: Path, start: Start) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123\n")
    primary = start(tmp_path / "a", f"--replica-secret-file={secret}")
    assert primary.ask("GET", "/replica/manifest")[0] == 403
    assert primary.ask("GET", "/replica/manifest", **{"X-Nsquark-Replica-Secret": "wrong"})[0] == 403
    follower = start(tmp_path / "b", f"--replica-of={primary.url}", f"--replica-secret-file={secret}")
    until(lambda: in_sync(follower))
