"""A batch at several nsqds is published once, wherever the driver dies and however the list changes."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nsquark.spark.errors import OptionError, Unreachable
from nsquark.spark.options import Addresses
from nsquark.spark.sink.application import Application, OutcomeNotKnown
from nsquark.spark.sink.options import SinkOptions
from nsquark.spark.sink.staging_client import StagedPart, StagingClient
from tests.daemon import Nsqlookupd
from tests.spark.broker import Broker, mpub_body

APP = "app"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[Broker]]:
    running = [Broker(tmp_path / f"data{number}").start() for number in range(3)]
    yield running
    for broker in running:
        broker.kill()


class Died(BaseException):
    """The driver."""


def application(brokers: Sequence[Broker], app: str = APP, **more: bool) -> Application:
    urls = tuple(f"http://{broker.http_address}" for broker in brokers)
    options = SinkOptions(Addresses(nsqd_http=urls), "t", False, True, app, None, 1000, 1000, 2, 0.02)
    return Application(options, app, **more)


def stage(writer: Application, batch: int, *partitions: Sequence[int]) -> list[StagedPart]:
    """Rows of a batch, by partition, as tasks put them."""
    staged = []
    for partition, rows in enumerate(partitions):
        attempt = writer.begin_attempt(batch, partition)
        if rows and not attempt.batch_is_known:
            attempt.put("t", 0, mpub_body(b"<row %d>" % row for row in rows), len(rows))
        staged.append(attempt.finish())
    return staged


def write(brokers: Sequence[Broker], batch: int, *partitions: Sequence[int], **more: bool) -> bool:
    """A batch from its beginning to its end; whether it was known."""
    writer = application(brokers, **more)
    return writer.commit(batch, stage(writer, batch, *partitions)).known


def rows(brokers: Sequence[Broker]) -> dict[int, int]:
    """Which rows were published, and how often."""
    found: Counter[int] = Counter()
    for broker in brokers:
        for path in (broker.data_path / "topics" / "t").glob("*.log"):
            found.update(int(number) for number in re.findall(rb"<row (\d+)>", path.read_bytes()))
    return dict(found)


def once(*numbers: int) -> dict[int, int]:
    return dict.fromkeys(numbers, 1)


def home_of(brokers: Sequence[Broker]) -> Broker:
    (told,) = brokers[0].ask("GET", f"/staged?app={APP}")["apps"]
    return next(each for each in brokers if told["home"]["url"] == f"http://{each.http_address}")


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`dies("publish", 2)`: the driver dies instead of publishing for the second time."""

    def at(method: str, call: int) -> None:
        calls = 0
        work = getattr(StagingClient, method)

        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= call:
                raise Died
            return work(*arguments)

        monkeypatch.setattr(StagingClient, method, counted)

    return at


def test_rows_are_published_where_they_were_staged(brokers: list[Broker]) -> None:
    assert not write(brokers, 0, [0, 1], [2], [3], [4])
    assert rows(brokers) == once(0, 1, 2, 3, 4)
    assert all(rows([broker]) for broker in brokers)
    assert not write(brokers, 1, [5], [6])
    # a replay is known, in however many parts it comes
    assert write(brokers, 1, [5, 6])
    assert write(brokers[1:], 1, [6], [5], [])
    assert rows(brokers) == once(*range(7))


def test_without_rows_nothing_is_said(brokers: list[Broker]) -> None:
    assert not application(brokers).commit(0, [StagedPart(APP, 0, 0, "", 0)]).known
    assert not application(brokers, lasting=False).commit(0, [StagedPart("job", 0, 0, "", 0)]).known
    assert rows(brokers) == {}


def test_a_driver_that_dies_before_the_decision_has_published_nothing(
    brokers: list[Broker], dies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not write(brokers, 0, [0])
    with monkeypatch.context():
        dies("publish", 1)
        with pytest.raises(Died):
            write(brokers, 1, [1], [2], [3])
    monkeypatch.undo()
    assert rows(brokers) == once(0)
    assert not write(brokers, 1, [3, 4], [2], [1])
    assert rows(brokers) == once(0, 1, 2, 3, 4)


@pytest.mark.parametrize("left", ["all", "without the home", "the home alone"])
def test_a_driver_that_dies_after_the_decision_has_published_everything(
    brokers: list[Broker], dies: Any, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    assert not write(brokers, 0, [0])
    home = home_of(brokers)
    dies("publish", 2)
    with pytest.raises(Died):
        write(brokers, 1, [1], [2], [3])
    monkeypatch.undo()
    for broker in brokers:  # what was promised is kept, what was decided is known
        broker.kill()
        broker.restart()
    given = {
        "all": brokers,
        "without the home": [each for each in brokers if each is not home],
        "the home alone": [home],
    }[left]
    # the replay has other rows, in other parts: what counts is what was decided
    assert write(given, 1, [3, 9], [2, 1])
    assert rows(brokers) == once(0, 1, 2, 3)
    assert not write(given, 2, [4], [5])
    assert rows(brokers) == once(*range(6))


def test_a_replay_that_fails_does_not_drop_what_was_decided(
    brokers: list[Broker], dies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies("publish", 2)
    with pytest.raises(Died):
        write(brokers, 0, [1], [2], [3])
    monkeypatch.undo()
    writer = application(brokers)
    writer.abort(0, stage(writer, 0, [1], [2], [3]))
    assert write(brokers, 0, [])
    assert rows(brokers) == once(1, 2, 3)


def test_an_abort_lets_go_of_everything(brokers: list[Broker]) -> None:
    writer = application(brokers)
    writer.abort(0, stage(writer, 0, [1], [2], [3]))
    for broker in brokers:
        (app,) = broker.ask("GET", f"/staged?app={APP}")["apps"]
        assert app["batches"] == []


def test_an_nsqd_that_dies_before_it_has_published_does_so_later(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not write(brokers, 0, [0])
    home = home_of(brokers)
    away = next(each for each in brokers if each is not home)
    work = StagingClient.publish

    def then_one_dies(*arguments: Any) -> Any:
        answer = work(*arguments)
        if away.running:
            away.kill()
        return answer

    monkeypatch.setattr(StagingClient, "publish", then_one_dies)
    with pytest.raises(Unreachable):
        write(brokers, 1, [1], [2], [3])
    monkeypatch.undo()
    with pytest.raises(Unreachable, match=r"nsqd \w+, where a part of batch 1 of 'app' is staged"):
        write(brokers, 1, [1, 2, 3])
    away.restart()
    assert write(brokers, 1, [1, 2, 3])
    assert rows(brokers) == once(0, 1, 2, 3)


def test_an_nsqd_that_moves_is_the_same(brokers: list[Broker], dies: Any, monkeypatch: Any) -> None:
    assert not write(brokers, 0, [0])
    dies("publish", 2)
    with pytest.raises(Died):
        write(brokers, 1, [1], [2], [3])
    monkeypatch.undo()
    for broker in brokers:
        broker.kill()
        broker.tcp_address = broker.http_address = "127.0.0.1:0"
        broker.start()
    assert write(brokers, 1, [1, 2, 3])
    assert rows(brokers) == once(0, 1, 2, 3)
    assert not write(brokers, 2, [4])


def test_an_nsqd_that_is_away_is_passed_over_unless_it_decides(brokers: list[Broker]) -> None:
    away = brokers[0]
    away.kill()
    with pytest.raises(Unreachable, match=away.http_address):  # a new application is made known to all
        write(brokers, 0, [0])
    away.restart()
    assert not write(brokers, 0, [0])
    home = home_of(brokers)
    away = next(each for each in brokers if each is not home)
    away.kill()
    assert not write(brokers, 1, [1], [2], [3])
    away.restart()
    home.kill()
    with pytest.raises(Unreachable, match=f"{home.http_address} cannot be .*decides for application 'app'"):
        write(brokers, 2, [4], [5], [6])
    home.restart()
    assert not write(brokers, 2, [4], [5], [6])
    assert rows(brokers) == once(*range(7))


def test_what_cannot_be_known_is_refused(brokers: list[Broker]) -> None:
    first, second, third = brokers
    assert not write([first], 0, [0], may_begin=False)
    with pytest.raises(
        OutcomeNotKnown, match=r"option 'deliveryMode': batch 1 of query app may have been published"
    ):
        write([second], 1, [1], may_begin=False)
    assert not write([second, first], 1, [1], may_begin=False)
    # the one that decides has forgotten, and then its disk is gone
    for lost in (first.data_path / "staged", first.data_path):
        first.kill()
        shutil.rmtree(lost)
        first.restart()
        with pytest.raises(
            OutcomeNotKnown, match=f"{first.http_address} does not know any more which batches"
        ):
            write([second, first], 2, [2])
    # two lists that have nothing in common, and then have
    assert not write([third], 0, [3])
    with pytest.raises(OutcomeNotKnown, match="has two homes"):
        write([second, third], 2, [2])


def test_who_has_no_staged_publishing_is_named(brokers: list[Broker]) -> None:
    with Nsqlookupd().start() as stranger:
        with pytest.raises(OptionError, match=f"{stranger.http_address} has no staged publishing"):
            application([brokers[0], stranger]).check()  # type: ignore[list-item]
