"""NSQ's line, to the byte."""

from nsquark.tools.nsq_stat.counters import Counters
from nsquark.tools.nsq_stat.plain import HEADERS, line


def test_numbers_are_right_aligned_under_their_headings() -> None:
    old = Counters(depth=100, messages=1000)
    new = Counters(4200, 4000, 30, 40, 50, 60, 7000, 8)
    assert line(old, new, 2.0) == (
        "   3000     950 |    4200     200    4000    30    40 |      50      60         7000       8\n"
    )
    assert {len(each) for each in [*HEADERS.splitlines(), line(old, new, 2.0).rstrip("\n")]} == {92}


def test_numbers_that_are_too_long_push_the_rest() -> None:
    big = Counters(123456789, 0, 0, 0, 0, 0, 0, 0)
    assert line(big, big, 1.0).startswith("      0       0 | 123456789 123456789       0 ")
