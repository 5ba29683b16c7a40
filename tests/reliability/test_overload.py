"""A short run of `python -m reliability.overload`."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliability.overload.__main__ import line, tried
from reliability.overload.situations import MEBI, SITUATIONS, SMALL, Result


@pytest.mark.parametrize("name", [name for name in SITUATIONS if name != "nothing"])
def test_a_little_of_each_is_borne(name: str) -> None:
    (result,) = tried([name], SMALL)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.faults == [], line(result)
    assert result.count > 0
    assert result.there is not None
    assert result.there.pubs > 0


def test_too_much_memory_for_each_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(_folder: Path, _size: object) -> Result:
        return Result("greedy", "connection", 1000, before=30 * MEBI, after=300 * MEBI)

    monkeypatch.setitem(SITUATIONS, "greedy", greedy)
    (result,) = tried(["greedy"], SMALL)
    assert result.faults == ["283116 bytes for each connection, 40000 are allowed"]
    assert line(result).endswith("failed")
