"""The live table, drawn to terminals of several widths."""

from __future__ import annotations

import pytest
from rich.console import Console

from nsquark.tools.nsq_stat.counters import Counters
from nsquark.tools.nsq_stat.polling import Round
from nsquark.tools.nsq_stat.table import StatTable, short


def drawn(table: StatTable, width: int) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=True)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def counters(messages: int, depth: int) -> Counters:
    return Counters(depth, depth // 2, 3, 4, 5, 6, messages, 7)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (99_999, "99999"),
        (-5, "-5"),
        (100_000, "100.0k"),
        (999_499, "999.5k"),
        (999_500, "1.00M"),
        (12_345_678, "12.35M"),
        (99_960_000, "100.0M"),
        (1_234_567_890_123, "1.23T"),
        (-250_000, "-250.0k"),
    ],
)
def test_numbers_are_short(number: int, text: str) -> None:
    assert short(number) == text


def test_rates_are_by_the_time_that_has_passed() -> None:
    table = StatTable("orders", "billing", 2.0)
    table.update(Round({"a:1": counters(1000, 10), "b:1": counters(0, 0)}), 100.0)
    first = drawn(table, 80)
    assert first[1].split() == [
        "nsqd",
        "in/s",
        "out/s",
        "depth",
        "disk",
        "inflt",
        "def",
        "req",
        "t-o",
        "clients",
    ]
    assert first[2].split()[:5] == ["total", "-", "-", "10", "5"]
    table.update(Round({"a:1": counters(1400, 110), "b:1": counters(40, 0)}), 104.0)
    lines = drawn(table, 80)
    assert lines[0].startswith("orders/billing ")
    assert lines[2].split() == ["total", "110", "85", "110", "55", "6", "8", "10", "12", "14"]
    assert lines[3].split() == ["a:1", "100", "75", "110", "55", "3", "4", "5", "6", "7"]
    assert lines[4].split() == ["b:1", "10", "10", "0", "0", "3", "4", "5", "6", "7"]
    assert lines[6].startswith("in  █ 110/s at most")
    assert lines[7].startswith("out █ 85/s at most")


def test_one_nsqd_needs_no_total_and_a_new_one_has_no_rate_yet() -> None:
    table = StatTable("t", "c", 2.0)
    table.update(Round({"a:1": counters(1, 1)}), 0.0)
    assert not any("total" in line for line in drawn(table, 80))
    table.update(Round({"a:1": counters(1, 1), "b:1": counters(10**9, 1)}), 2.0)
    lines = drawn(table, 80)
    assert lines[2].split()[:3] == ["total", "0", "0"]
    assert lines[4].split()[:3] == ["b:1", "-", "-"]


def test_an_nsqd_that_fails_is_told_below() -> None:
    table = StatTable("t", "c", 2.0)
    table.update(Round({"a:1": counters(1, 1)}, {"b:1": "http://b:1/stats: Connection refused"}), 0.0)
    assert "http://b:1/stats: Connection refused" in drawn(table, 80)


@pytest.mark.parametrize("width", [10, 20, 40, 55, 60, 79, 80, 92, 120, 200])
def test_every_width_is_kept(width: int) -> None:
    table = StatTable("a-topic-with-a-long-name" * 2, "a-channel-with-a-long-name", 2.0)
    nodes = {f"a-host-with-a-long-name-{number}:4151": counters(10**12, 10**11) for number in range(3)}
    for moment in range(300):
        table.update(Round(nodes, {"x": "y" * 300}), float(moment))
    assert max(map(len, drawn(table, width))) <= width
