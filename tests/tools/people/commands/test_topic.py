"""`nsquark topic` and `nsquark channel` against a real nsqd."""

from __future__ import annotations

import json

import pytest

from tests.daemon import Nsqd
from tests.tools.people.command import failure, output, terminal


def figures(at: list[str], topic: str) -> dict[str, object]:
    (found,) = json.loads(output("stat", topic, "--json", *at))
    assert isinstance(found, dict)
    return found


def test_a_topic_from_its_beginning_to_its_end(at: list[str]) -> None:
    assert output("topic", "create", "orders", *at).startswith("created topic 'orders' at nsqd 127.0.0.1:")
    assert "paused topic 'orders'" in output("topic", "pause", "orders", *at)
    assert figures(at, "orders")["paused"] is True
    output("topic", "unpause", "orders", *at)
    assert figures(at, "orders")["paused"] is False
    output("pub", "orders", "1", "2", "-q", *at)
    assert figures(at, "orders")["depth"] == 2
    assert "emptied topic 'orders'" in output("topic", "empty", "orders", "--yes", *at)
    assert figures(at, "orders")["depth"] == 0
    listed = output("topic", "list", *at).splitlines()
    assert listed[0].split() == ["topic", "depth", "channels", "messages", "nsqds"]
    assert ["orders", "0", "0", "2", "1"] in [line.split() for line in listed]
    assert "deleted topic 'orders'" in output("topic", "delete", "orders", "-y", *at)
    assert failure("stat", "orders", *at) == "nsquark: there is no topic 'orders'\n"


def test_how_much_is_kept_of_a_topic_and_for_a_channel(fresh: list[str]) -> None:
    output("pub", "kept", "1", "2", "-q", *fresh)
    assert "not at all (flag)  not at all (flag)" in output("topic", "retention", "kept", *fresh)
    shown = output("topic", "retention", "kept", "--time", "30d", "--bytes", "20k", *fresh)
    assert "up to 20.5 KB  for 720h0m0s" in shown
    shown = output("topic", "retention", "kept", "--bytes", "unlimited", "--time", "default", *fresh)
    assert "without limit  without limit (flag)" in shown  # 0 is no limit beside another one
    shown = output("topic", "retention", "kept", "--bytes", "default", "--time", "1h", *fresh)
    assert "without limit (flag)  for 1h0m0s" in shown
    output("topic", "retention", "kept", "--bytes", "unlimited", "--time", "default", *fresh)
    (told,) = json.loads(output("topic", "retention", "kept", "--json", *fresh))
    assert (told["own_bytes"], told["own_time"], told["next"]) == (-1, None, 2)
    assert "nope" in failure("topic", "retention", "nope", *fresh)
    output("channel", "create", "kept", "ch", *fresh)
    head, line = output("channel", "list", "kept", *fresh).splitlines()
    assert head.split()[-5:] == ["clients", "log", "kept", "unread", "for"]
    assert line.split()[:2] == ["ch", "2"]
    assert "kept for 72h0m0s" in output("channel", "hold", "kept", "ch", "3d", *fresh)
    assert "kept without limit" in output("channel", "hold", "kept", "ch", "unlimited", *fresh)
    assert "kept without limit" in output("channel", "hold", "kept", "ch", "default", *fresh)
    assert "no channel" in failure("channel", "hold", "kept", "nope", "1h", *fresh)


def test_a_channel_from_its_beginning_to_its_end(fresh: list[str]) -> None:
    output("pub", "c", "1", "2", "3", "-q", *fresh)
    assert "position 1 with a depth of 2" in output("channel", "create", "c", "ch", "--from", "1", *fresh)
    assert "was there" in output("channel", "create", "c", "ch", "--from", "0", *fresh)
    output("channel", "create", "c", "other", *fresh)
    assert [each["channel"] for each in json.loads(output("channel", "list", "c", "--json", *fresh))] == [
        "ch",
        "other",
    ]
    output("channel", "pause", "c", "ch", *fresh)
    assert "paused" in output("channel", "list", "c", *fresh)
    output("channel", "unpause", "c", "ch", *fresh)
    assert "paused" not in output("channel", "list", "c", *fresh)
    moved = output("channel", "seek", "c", "ch", "earliest", "-y", *fresh)
    assert moved.endswith("now at position 0 with a depth of 3\n")
    assert "depth of 0" in output("channel", "seek", "c", "ch", "latest", "-y", *fresh)
    assert "depth of 3" in output("channel", "seek", "c", "ch", "10m", "-y", *fresh)
    assert "depth of 0" in output("channel", "seek", "c", "ch", "2199-01-01T00:00Z", "-y", *fresh)
    assert "POSITION_NOT_REACHED" in failure("channel", "seek", "c", "ch", "77", "-y", *fresh)
    output("channel", "seek", "c", "ch", "earliest", "-y", *fresh)
    output("channel", "empty", "c", "ch", "-y", *fresh)
    assert figures(fresh, "c")["channels"][0]["depth"] == 0  # type: ignore[index]
    output("channel", "delete", "c", "ch", "-y", *fresh)
    line = failure("channel", "delete", "c", "ch", "-y", *fresh)
    assert line == "nsquark: there is no channel 'ch' of topic 'c'\n"


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "pause", "nope"], ["topic", "delete", "nope", "-y"], ["topic", "empty", "nope", "-y"],
        ["channel", "list", "nope"], ["channel", "create", "nope", "c"], ["channel", "pause", "nope", "c"],
        ["channel", "seek", "nope", "c", "latest", "-y"], ["stat", "nope"], ["peek", "nope"],
        ["replay", "nope", "--into", "t"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_topic_that_is_not_there_is_named(at: list[str], words: list[str]) -> None:
    assert "'nope'" in failure(*words, *at)


@pytest.mark.parametrize(
    "words",
    [["channel", "pause", "u", "nope"], ["channel", "empty", "u", "nope", "-y"], ["peek", "u", "nope"],
     ["stat", "u", "nope"], ["channel", "seek", "u", "nope", "latest", "-y"]],
    ids=" ".join,
)  # fmt: skip
def test_a_channel_that_is_not_there_is_named(at: list[str], words: list[str]) -> None:
    output("topic", "create", "u", *at)
    assert "channel 'nope' of topic 'u'" in failure(*words, *at)


DESTROYING = [
    ["topic", "empty", "keep"], ["topic", "delete", "keep"], ["channel", "empty", "keep", "ch"],
    ["channel", "delete", "keep", "ch"], ["channel", "seek", "keep", "ch", "latest"],
]  # fmt: skip


@pytest.fixture
def keep(at: list[str]) -> list[str]:
    output("pub", "keep", "x", "-q", *at)
    output("channel", "create", "keep", "ch", *at)
    output("pub", "keep", "y", "-q", *at)
    return at


@pytest.mark.parametrize("words", DESTROYING, ids=" ".join)
def test_nothing_is_destroyed_without_a_yes(keep: list[str], words: list[str]) -> None:
    before = output("stat", "keep", "--json", *keep)
    line = failure(*words, *keep, status=2)
    assert line.count("\n") == 1
    assert "'keep'" in line
    assert "say --yes" in line
    for answer in (b"n\r", b"\r"):
        with terminal(*words, *keep) as screen:
            screen.wait_for(r"\[y/N\]")
            screen.type(answer)
            assert screen.end() == 1
            assert "nothing was done" in screen.text
    with terminal(*words, *keep) as screen:
        screen.wait_for(r"\[y/N\]")
        assert screen.interrupt() == 130
    assert output("stat", "keep", "--json", *keep) == before


def test_a_person_may_say_yes(keep: list[str]) -> None:
    with terminal("topic", "delete", "keep", *keep) as screen:
        screen.wait_for(r"Delete topic 'keep' \(1 channel, \d+ unfinished messages\)")
        screen.type(b"y\r")
        assert screen.end() == 0
    assert "keep" not in output("topic", "list", *keep)


async def test_peeking_takes_nothing(nsqd: Nsqd, fresh: list[str]) -> None:
    output("pub", "p", "1", "2", "3", "-q", *fresh)
    output("channel", "create", "p", "ch", "--from", "earliest", *fresh)
    output("pub", "p", "later", "--defer", "1h", "-q", *fresh)
    newest = [
        json.loads(line)["body"] for line in output("peek", "p", "-n", "2", "--json", *fresh).splitlines()
    ]
    assert newest == ["3", "later"]
    table = output("peek", "p", "--from", "1", "-n", "1", *fresh).splitlines()
    assert table[0].split() == ["position", "published", "size", "body"]
    assert table[1].split()[0] == "1"
    assert table[1].endswith(" 1 B  2")
    async with await nsqd.connect() as client:
        await client.sub("p", "ch", rdy=1)
        await client.message()
        in_flight = output("peek", "p", "ch", "--state", "in_flight", *fresh).splitlines()
        assert in_flight[0].split() == ["position", "published", "attempts", "with", "for", "size", "body"]
        assert len(in_flight) == 2
        ready = output("peek", "p", "ch", *fresh).splitlines()
        assert [line.split()[-1] for line in ready[1:]] == ["2", "3"]
    deferred = output("peek", "p", "ch", "--state", "deferred", *fresh)
    assert "59m" in deferred or "1h00m" in deferred
    assert "name one" in failure("peek", "p", "--state", "ready", *fresh, status=2)


async def test_the_age_of_the_oldest_is_told(at: list[str]) -> None:
    output("pub", "age", "1", "-q", *at)
    output("channel", "create", "age", "ch", *at)
    output("channel", "create", "age", "idle", "--from", "latest", *at)
    ch, idle = json.loads(output("stat", "age", "--oldest", "--json", *at))[0]["channels"]
    assert 0 <= ch["oldest"] < 600
    assert idle["oldest"] is None
    header, *_ = output("stat", "age", "ch", "--oldest", *at).splitlines()
    assert header.split()[-1] == "oldest"
