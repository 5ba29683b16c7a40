"""The files of staged batches: how much there may be, and what a restart finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.nsqd.staged import stage_folder
from tests.nsqd.api import running
from tests.nsqd.staged.test_staging import App, bodies_of


@pytest.mark.parametrize("large", [False, True])
async def test_a_restart_finds_what_was_staged_and_published(tmp_path: Path, large: bool) -> None:
    body = b"x" * (100_000 if large else 10)
    async with running(tmp_path) as api:
        await App(api).published(0, [b"zero"])
        await App(api).put(1, [body, b"2"], attempt="before")
        await App(api, ".hidden").put(7, [b"seven"])
    stage = tmp_path / "staged" / "app" / "1" / "0.before"
    stage.write_bytes(stage.read_bytes() + stage.read_bytes()[: 50 if large else 30])  # torn
    async with running(tmp_path) as api:
        app = App(api)
        assert (await app.publish(0))[1]["topics"] == {"t": 1}
        assert await app.put(1, [b"3"], attempt="before", seq=1) == (200, {"known": False})
        assert (await app.publish(1, (0, "before", 3)))[1]["messages"] == 3
        assert await bodies_of(api, "t", 4) == [b"zero", body, b"2", b"3"]
        assert (await App(api, ".hidden").listed())["batches"][0]["batch"] == 7
        assert api.broker.staging.folder.stages == 1


async def test_what_may_be_staged_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_folder, "MAX_APPS", 2)
    monkeypatch.setattr(stage_folder, "MAX_STAGES", 3)
    async with running(tmp_path, staged_max_bytes=1000) as api:
        app = App(api)
        assert (await app.put(0, [b"x" * 600]))[0] == 200
        assert await app.put(0, [b"x" * 600], seq=1) == (503, {"message": "STAGING_FULL"})
        assert (await app.put(0, [b"x"], seq=1))[0] == 200
        assert (await app.put(0, [b"x"], partition=1))[0] == 200
        assert (await app.put(0, [b"x"], partition=2))[0] == 200
        assert await app.put(0, [b"x"], partition=3) == (503, {"message": "STAGING_FULL"})
        assert (await app.publish(0, (0, "a", 2)))[0] == 200
        assert (await App(api, "2").put(0, [b"x"]))[0] == 200
        assert await App(api, "3").put(0, [b"x"]) == (503, {"message": "TOO_MANY_APPS"})


async def test_a_state_that_does_not_read_is_not_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        await App(api).published(0, [b"x"])
    (tmp_path / "staged" / "app" / "app.json").write_text("{")
    with pytest.raises(Exception, match=r"failed to parse staging state in .*app\.json"):
        async with running(tmp_path):
            pass


async def test_the_stages_are_on_the_disk_before_the_state_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = stage_folder.sync_path, stage_folder.write_atomically

    def sync_path(path: Path) -> None:
        synced.append(path.name)
        real[0](path)

    def write_atomically(path: Path, data: bytes) -> None:
        synced.append(path.name)
        real[1](path, data)

    async with running(tmp_path) as api:
        app = App(api)
        assert (await app.put(7, [b"x"]))[0] == 200
        monkeypatch.setattr(stage_folder, "sync_path", sync_path)
        monkeypatch.setattr(stage_folder, "write_atomically", write_atomically)
        assert (await app.publish(7, (0, "a", 1)))[0] == 200
    assert synced[:4] == ["0.a", "7", "app", "app.json"]
