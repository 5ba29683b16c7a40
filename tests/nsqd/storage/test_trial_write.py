"""A disk that has refused and works again is noticed without a publish."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nsquark.log import WRITTEN_FILES
from nsquark.nsqd import broker as broker_module
from nsquark.nsqd.storage.trial_write import FILE_NAME
from tests.daemon import pub, until
from tests.nsqd.api import running


class FullDisk:
    """`os.write` and `os.open` refuse while the disk is full: logs, and the file of the trial."""

    def __init__(self, patch: pytest.MonkeyPatch, call: str, error: int) -> None:
        self.full = False
        self.tried = 0
        real = getattr(os, call)

        def refuse(target: int | Path, *arguments: object) -> object:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
            if self.full and path.endswith((".log", FILE_NAME)):
                self.tried += path.endswith(FILE_NAME)
                raise OSError(error, os.strerror(error))
            return real(target, *arguments)

        patch.setattr(os, call, refuse)


@pytest.mark.parametrize(("call", "error"), [("write", errno.ENOSPC), ("open", errno.EMFILE)])
async def test_nsqd_is_ready_again_without_a_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    monkeypatch.setattr(broker_module, "TRIM_INTERVAL", 0.02)
    disk = FullDisk(monkeypatch, call, error)
    async with running(tmp_path, sync_timeout=0.01) as api:
        client = await api.client()
        await client.pub("t", b"before")
        log = api.broker.topics["t"].log
        await until(lambda: not log.unsynced)
        assert log.files is not None
        assert log.files.rest(wait=False)  # so that the next write opens it
        WRITTEN_FILES.remove(log.files)
        disk.full = True
        client.send(pub("t", b"refused"))
        assert (await client.error()).endswith(os.strerror(error).encode())
        await until(lambda: disk.tried > 3)
        for path, status in (("/ping", 500), ("/ready", 503)):
            answer = await api.get(path)
            assert answer.status == status
            assert os.strerror(error).encode() in answer.body
        disk.full = False
        await until(lambda: api.broker.health == "OK")
        assert [(await api.get(path)).status for path in ("/ping", "/ready")] == [200, 200]
        assert not (tmp_path / FILE_NAME).exists()
        tried = disk.tried
        client = await api.client()
        await client.pub("t", b"after")
        assert disk.tried == tried


async def test_a_start_deletes_what_a_crash_has_left_of_a_trial(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"x")
    async with running(tmp_path):
        assert not (tmp_path / FILE_NAME).exists()
