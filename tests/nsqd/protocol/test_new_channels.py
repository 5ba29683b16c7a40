"""A channel that SUB has created is there after a crash, as soon as SUB is answered."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nsquark.nsqd.protocol.commands import HANDLERS, Commands
from tests.nsqd.api import running


async def test_a_crash_right_behind_the_answer_to_sub_does_not_take_the_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, killed = tmp_path / "data", tmp_path / "killed"
    data.mkdir()
    exec_sub = HANDLERS[b"SUB"]

    def then_crash(commands: Commands, params: list[bytes]) -> None:
        """What a crash would leave here: the command is done, and the turn is not over."""
        exec_sub(commands, params)
        being_written = shutil.ignore_patterns("*.tmp")  # the copy would find them gone
        shutil.copytree(data, killed, ignore=being_written)

    monkeypatch.setitem(HANDLERS, b"SUB", then_crash)
    async with running(data) as api:
        client = await api.client()
        await client.sub("t", "c")
        assert killed.exists()
    async with running(killed) as api:
        assert list(api.broker.topics["t"].channels) == ["c"]
