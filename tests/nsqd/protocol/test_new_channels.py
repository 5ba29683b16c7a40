"""A channel that SUB has created is there after a crash, as soon as SUB is answered."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.nsqd.api import running


async def test_a_crash_right_behind_the_answer_to_sub_does_not_take_the_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, killed = tmp_path / "data", tmp_path / "killed"
    data.mkdir()
    async with running(data) as api:
        turn = api.broker.turn
        real = turn.run

        def run() -> None:
            """What a crash would leave here: the commands are done, and the turn is not over."""
            if "t" in api.broker.topics and not killed.exists():
                shutil.copytree(data, killed)
            real()

        monkeypatch.setattr(turn, "run", run)
        client = await api.client()
        await client.sub("t", "c")
        assert killed.exists()
    async with running(killed) as api:
        assert list(api.broker.topics["t"].channels) == ["c"]
