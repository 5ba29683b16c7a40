"""Spark through failovers: a topic of a replica group is copied exactly once while its primary is lost.

The query reads the topic and writes it to another one, exactly once (copy_driver.py). It knows one address,
which leads to the member that serves, as a virtual IP or HAProxy does.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nsqd.replica.etcd_process import etcd, why_not
from tests.nsqd.replica.processes import Member, until
from tests.spark.test_exactly_once import ROUNDS, Publisher, finish, started
from tests.spark.test_sink_exactly_once import PROGRAM

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


class MovingAddress:
    """Takes connections, and connects each to the member that serves then."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.http_address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def primary(self) -> Member | None:
        return next((each for each in self._members if each.state().get("serving")), None)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        primary = self.primary()
        try:
            if primary is None:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", primary.http_port), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for one, other in ((client, server), (server, client)):
            threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()

    def publish(self, topic: str, bodies: list[bytes]) -> None:
        """Raises OSError if there is no OK."""
        data = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
        connection = http.client.HTTPConnection(self.http_address, timeout=20)
        try:
            connection.request(
                "POST", f"/mpub?topic={topic}&binary=true", struct.pack(">I", len(bodies)) + data
            )
            answer = connection.getresponse()
            if answer.status != 200 or answer.read() != b"OK":
                raise ConnectionError(answer.status)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from None
        finally:
            connection.close()

    def close(self) -> None:
        self._listener.close()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    for each in (one, other):
        each.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[list[Member]]:
    members: list[Member] = []
    with etcd(tmp_path / "etcd") as endpoint:
        try:
            flags = ("--retention-time=1h", "--min-copies=1")
            members.append(Member(tmp_path, "a", endpoint, "--replica-bootstrap", *flags))
            members[0].serves()
            members.append(Member(tmp_path, "b", endpoint, *flags))
            members[1].is_in_sync()
            yield members
        finally:
            for member in members:
                member.kill()


def _kill(primary: Member, standby: Member) -> None:
    primary.kill()
    standby.serves()  # first: a primary that is back at once may lead again
    primary.start()


def _hand_over(primary: Member, standby: Member) -> None:
    primary.ask("POST", "/replica/handover")
    standby.serves()


@pytest.mark.timeout(240 + 60 * ROUNDS)
def test_a_topic_is_copied_exactly_once_through_failovers(group: list[Member], tmp_path: Path) -> None:
    address = MovingAddress(group)
    for topic in ("t", "out"):
        assert group[0].ask("POST", f"/topic/create?topic={topic}")[0] == 200
    publisher = Publisher(address)  # type: ignore[arg-type]  # it has what a publisher wants of a broker
    publisher.start()
    failovers: list[Callable[[Member, Member], None]] = [_kill, _hand_over]
    try:
        for number in range(max(2, ROUNDS)):
            driver = started(address.http_address, tmp_path, PROGRAM)
            try:
                time.sleep(random.random() * 0.3)  # somewhere in a batch
                primary = until(address.primary)
                standby = next(each for each in group if each is not primary)
                until(lambda: standby.name in primary.state().get("isr", ()))  # noqa: B023
                failovers[number % 2](primary, standby)
                driver.wait_for_batches(random.randint(1, 3))
            finally:
                driver.kill()
    finally:
        publisher.stop()
    until(address.primary)
    finish(address.http_address, tmp_path, PROGRAM)
    address.close()
    lines = (tmp_path / "values").read_text().split("\n")[:-1]
    rows = Counter(int(line.split()[0]) for line in lines)
    assert len(publisher.answered) > 200
    assert [each for each in publisher.answered if rows[each] != 1] == []
    assert max(rows.values()) == 1
    assert rows.keys() <= set(publisher.answered) | set(publisher.unanswered)
    assert len({line.split()[1] for line in lines}) == len(lines)
