"""The files of staged batches: how much there may be, and what a restart finds."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
from pathlib import Path

import pytest

from nsquark.nsqd.staged import application, stage_file, stage_folder
from tests.daemon import PATIENCE
from tests.nsqd.api import running
from tests.nsqd.staged.test_staging import App, bodies_of, mpub_body


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


async def test_two_puts_that_find_a_torn_stage_do_not_cut_each_other_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's recovery ends and it puts, while a second recovery has yet to cut the torn end off."""
    async with running(tmp_path) as api:
        await App(api).put(1, [b"1"])
    path = tmp_path / "staged" / "app" / "1" / "0.a"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:30])  # torn
    recover, number = stage_file.recover, itertools.count()
    put = threading.Event()

    def slow(path: Path, aside: Path) -> stage_file.Contents:
        if next(number) == 0:
            return recover(path, aside)
        size = path.stat().st_size
        assert put.wait(PATIENCE)  # the second has looked at the file, and goes on when the first has put
        os.truncate(path, size)
        return recover(path, aside)

    monkeypatch.setattr(stage_file, "recover", slow)
    async with running(tmp_path) as api:
        folder = api.broker.staging.folder
        stage = folder.apps["app"].batches[1][0, "a"]
        first, second = (asyncio.create_task(folder.recover(stage)) for _ in range(2))
        await first
        api.broker.staging.put(stage, 1, "t", 1, 0, mpub_body([b"2"]))
        put.set()
        await second
        assert next(number) == 1
        assert (await App(api).publish(1, (0, "a", 2)))[1]["messages"] == 2
        assert await bodies_of(api, "t", 2) == [b"1", b"2"]


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


async def test_a_stage_that_grows_goes_to_the_disk_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real = stage_folder.sync_path
    begun, released = threading.Event(), threading.Event()

    def sync_path(path: Path) -> None:
        steps.append(f"begin {path.name}")
        begun.set()
        assert released.wait(10)
        real(path)
        steps.append(f"end {path.name}")

    monkeypatch.setattr(stage_folder, "SYNC_STEP", 200)
    async with running(tmp_path) as api:
        app, folder = App(api), api.broker.staging.folder
        monkeypatch.setattr(stage_folder, "sync_path", sync_path)
        assert (await app.put(7, [b"x" * 50]))[0] == 200
        assert not steps
        assert (await app.put(7, [b"y" * 150], seq=1))[0] == 200
        assert await asyncio.to_thread(begun.wait, 10)
        # What is put meanwhile does not ask for a second fsync beside the first one.
        assert (await app.put(7, [b"z" * 500], seq=2))[0] == 200
        save = folder.save

        async def save_and_release(app: application.App, *stages: application.Stage) -> None:
            asyncio.get_running_loop().call_soon(released.set)
            await save(app, *stages)

        monkeypatch.setattr(folder, "save", save_and_release)
        assert (await app.publish(7, (0, "a", 3)))[0] == 200
        assert steps[:4] == ["begin 0.a", "end 0.a"] * 2
        assert len(await bodies_of(api, "t", 3)) == 3


async def test_a_stage_whose_early_fsync_failed_is_written_again_when_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stage_folder.sync_path, stage_file.rewrite
    failed = threading.Event()
    rewritten: list[str] = []

    def sync_path(path: Path) -> None:
        if path.name == "0.a":
            failed.set()
            raise OSError(errno.EIO, "no")
        real[0](path)

    def rewrite(path: Path) -> None:
        rewritten.append(path.name)
        real[1](path)

    monkeypatch.setattr(stage_folder, "SYNC_STEP", 100)
    monkeypatch.setattr(stage_folder, "sync_path", sync_path)
    monkeypatch.setattr(stage_file, "rewrite", rewrite)
    async with running(tmp_path) as api:
        app = App(api)
        assert (await app.put(7, [b"x" * 200]))[0] == 200
        assert await asyncio.to_thread(failed.wait, 10)
        assert (await app.put(7, [b"y"], seq=1))[0] == 200
        assert (await app.publish(7, (0, "a", 2)))[0] == 200
        assert rewritten == ["0.a"]
        assert await bodies_of(api, "t", 2) == [b"x" * 200, b"y"]
