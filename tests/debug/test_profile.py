from __future__ import annotations

import pytest

from nsquark.debug import profile as profile_module
from nsquark.debug.profile import Place, Profile, gzipped
from tests.debug.pprof_reader import read

INNER = Place("inner", "/a.py", 10, 12)
OUTER = Place("Outer.method", "/b;c.py", 200, 300)


def sample_profile() -> Profile:
    profile = Profile([("samples", "count"), ("cpu", "nanoseconds")], 10_000_000)
    profile.add("main", (INNER, OUTER), 1, 7)
    profile.add("main", (INNER, OUTER), 1, 1 << 40)
    profile.add("", (OUTER,), 1, 0)
    profile.duration_ns = 5
    return profile


def test_pprof_reads_as_it_was_written() -> None:
    told = read(gzipped(b"".join(sample_profile().pprof())))
    assert told.kinds == [("samples", "count"), ("cpu", "nanoseconds")]
    assert told.samples == [
        (["inner", "Outer.method"], [2, (1 << 40) + 7], {"thread": "main"}),
        (["Outer.method"], [1, 0], {}),
    ]
    assert (told.duration_ns, told.period) == (5, 10_000_000)


def test_collapsed_stacks_are_lines_from_the_outside_in() -> None:
    assert list(sample_profile().collapsed()) == [
        b"main;Outer.method (/b,c.py:300);inner (/a.py:12) %d\n" % ((1 << 40) + 7),
        b"Outer.method (/b,c.py:300) 0\n",
    ]


def test_stacks_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "MAX_STACKS", 3)
    profile = Profile([("samples", "count")])
    for line in range(10):
        profile.add("", (Place("f", "f.py", 1, line),), 1)
    assert len(profile.samples) == 4
    assert sum(values[0] for values in profile.samples.values()) == 10
    assert profile.samples["", profile_module.BEYOND] == [7]
