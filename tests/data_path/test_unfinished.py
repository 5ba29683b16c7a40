"""What is unfinished, read from outside: the same as what nsqd delivers."""

from __future__ import annotations

from pathlib import Path

from nsquark.data_path.unfinished import OWN_QUEUE, Owed, UnfinishedMessages


def of(path: Path, topic: str, paused: bool = False) -> list[Owed]:
    return list(UnfinishedMessages(path / "topics" / topic, [], paused))


def test_each_channel_has_what_it_has_not_finished(data_path: Path) -> None:
    owed = of(data_path, "orders")
    archive = [each for each in owed if "archive" in each.attempts]
    billing = [each for each in owed if "billing" in each.attempts]
    assert (len(archive), len(billing)) == (201, 151)
    assert {each.attempts["archive"] for each in archive} == {0}
    # 100 of them or more were delivered once, and not finished; one of those was requeued with a delay.
    counts = [each.attempts["billing"] for each in billing]
    assert set(counts) == {0, 1}
    assert sum(counts) >= 100
    assert [each.message.body for each in owed if each.due_ns] == [
        b"order 0 of 0 " + b"x" * 60,
        b"much later",
    ]
    assert [each.message.position for each in owed] == sorted(each.message.position for each in owed)


def test_what_no_channel_has_got_is_the_topics_own(data_path: Path) -> None:
    assert [each.attempts for each in of(data_path, "idle")] == [{OWN_QUEUE: 0}] * 5


def test_a_channel_that_nsqd_dat_alone_knows_gets_the_queue(data_path: Path) -> None:
    owed = list(UnfinishedMessages(data_path / "topics" / "idle", ["new"], False))
    assert [each.attempts for each in owed] == [{"new": 0}] * 5


def test_damage_costs_its_batch_and_is_counted(data_path: Path) -> None:
    segments = sorted((data_path / "topics" / "orders").glob("*.log"))
    data = bytearray(segments[1].read_bytes())
    data[100] ^= 1
    segments[1].write_bytes(bytes(data))
    unfinished = UnfinishedMessages(data_path / "topics" / "orders", [], False)
    assert len([each for each in unfinished if "archive" in each.attempts]) == 191
    assert unfinished.lost == 10
