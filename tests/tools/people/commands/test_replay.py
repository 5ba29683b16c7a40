"""`nsquark replay`: what is replayed, at which rate, and going on after an end of any kind."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.daemon import Nsqd, until
from tests.tools.people.command import Running, failure, nsquark, output


@pytest.fixture
def orders(fresh: list[str]) -> list[str]:
    """An nsqd with 1,000 numbers in the topic `orders`."""
    output("pub", "orders", "-q", *fresh, stdin=b"".join(b"%d\n" % n for n in range(1000)))
    return fresh


def lines(topic: str, at: list[str]) -> list[int]:
    return [int(line) for line in output("tail", topic, "--from", "earliest", "--to", "latest", *at).split()]


def test_a_range_is_published_again_in_order(orders: list[str]) -> None:
    done = nsquark("replay", "orders", "--into", "all", *orders)
    assert (
        done.stderr == "replayed 1,000 messages of topic 'orders' into 'all', up to position 1000 of 1000\n"
    )
    assert lines("all", orders) == list(range(1000))
    output("replay", "orders", "--into", "some", "--from", "10", "--to", "20", *orders)
    assert lines("some", orders) == list(range(10, 20))
    told = json.loads(
        output("replay", "orders", "--into", "some", "--from", "10m", "--to", "5", "--json", *orders)
    )
    assert (told["replayed"], told["position"], told["end"]) == (5, 5, 5)
    # Into itself: what is there at the start, and not what is added on the way.
    output("replay", "orders", "--into", "orders", *orders)
    assert len(lines("orders", orders)) == 2000


def test_a_rate_is_kept(orders: list[str]) -> None:
    begun = time.monotonic()
    output("replay", "orders", "--into", "slow", "--to", "50", "--rate", "50", *orders)
    assert time.monotonic() - begun > 0.8


async def replayed(nsqd: Nsqd, topic: str) -> int:
    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={topic}")
    return sum(each["message_count"] for each in json.loads(answer)["topics"] or ())


async def test_ctrl_c_says_how_to_go_on(nsqd: Nsqd, orders: list[str]) -> None:
    with Running("replay", "orders", "--into", "again", "--rate", "100", *orders) as running:
        await until(lambda: _more_than(nsqd, "again", 20))
        status, _, stderr = running.interrupt()
    assert status == 130
    assert stderr.startswith("interrupted: replayed ")
    words = stderr.partition("go on with ")[2].split()
    assert words[0] == "--from"
    assert 10 <= int(words[1]) < 1000
    assert words[2:] == ["--to", "1000"]
    output("replay", "orders", "--into", "again", *words, *orders)
    # At least once: what was on its way at the end may be there twice.
    found = lines("again", orders)
    assert set(found) == set(range(1000))
    assert len(found) <= 1000 + 500


async def _more_than(nsqd: Nsqd, topic: str, count: int) -> bool:
    return await replayed(nsqd, topic) > count


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
async def test_a_checkpoint_goes_on_by_itself(
    nsqd: Nsqd, orders: list[str], tmp_path: Path, signum: signal.Signals
) -> None:
    words = ["replay", "orders", "--into", "again", "--checkpoint", str(tmp_path / "checkpoint"), *orders]
    with Running(*words, "--rate", "200") as running:
        await until(lambda: _more_than(nsqd, "again", 150))
        running.process.send_signal(signum)
        running.process.wait(20)
    saved = json.loads((tmp_path / "checkpoint").read_text())
    assert 0 < saved["position"] < saved["end"] == 1000
    # What is published meanwhile does not move the end.
    output("pub", "orders", "1000", "-q", *orders)
    done = nsquark(*words)
    assert done.returncode == 0
    found = lines("again", orders)
    assert set(found) == set(range(1000))
    assert len(found) < 1600
    assert "replayed 0 messages" in nsquark(*words).stderr


async def test_a_checkpoint_of_something_else_is_refused(
    nsqd: Nsqd, orders: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    words = ["--checkpoint", str(path), *orders]
    output("replay", "orders", "--into", "a", *words)
    assert "of a replay of 'orders' into 'a'" in failure("replay", "orders", "--into", "b", *words)
    await nsqd.post("/topic/delete?topic=orders")
    await nsqd.post("/pub?topic=orders", b"other")
    assert "deleted and created again" in failure("replay", "orders", "--into", "a", *words)
    path.write_text("{}")
    assert "is no checkpoint" in failure("replay", "orders", "--into", "a", *words)
    assert "No such file or directory" in failure(
        "replay", "orders", "--into", "a", "--checkpoint", "/no/such/folder/c", *orders
    )


async def test_an_nsqd_that_dies_is_told_with_how_far_it_came(nsqd: Nsqd, orders: list[str]) -> None:
    with Running("replay", "orders", "--into", "again", "--rate", "100", *orders) as running:
        await until(lambda: _more_than(nsqd, "again", 10))
        nsqd.kill()
        _, stderr = running.process.communicate(timeout=60)
    assert running.process.returncode == 1
    text = stderr.decode()
    assert "go on with --from " in text
    assert text.count("\n") == 1


def test_a_position_that_is_not_there_is_named(orders: list[str]) -> None:
    assert "not reached position 7777" in failure(
        "replay", "orders", "--into", "x", "--from", "7777", *orders
    )
