"""Objects that are to be deleted: what a store that refuses to delete them holds up, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.errors import ArchiveAway
from nsquark.nsqd import broker as broker_module
from nsquark.nsqd.archive import archive as archive_module
from nsquark.nsqd.archive import deletions
from nsquark.nsqd.archive.object_store import ObjectStore
from tests.daemon import until
from tests.nsqd.api import Api, running
from tests.nsqd.archive.archived import SEGMENT


async def consumed(api: Api, count: int) -> None:
    """Have a topic roll its files, and let its channel finish everything."""
    for _ in range(count):
        await api.done("/pub?topic=t", b"x" * (SEGMENT - 1000))
    await api.done("/channel/empty?topic=t&channel=c")


async def test_what_cannot_be_deleted_keeps_no_segment_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nsqd may write to a bucket, and may not delete from it."""
    monkeypatch.setattr(broker_module, "TRIM_INTERVAL", 0.01)
    monkeypatch.setattr(archive_module, "INTERVAL", 0.01)
    monkeypatch.setattr(deletions, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(deletions, "LAST_RETRY", 0.01)
    real, refused = ObjectStore.delete, ["AccessDenied"]

    def delete(store: ObjectStore, key: str) -> None:
        if refused:
            raise ArchiveAway(refused[0])
        real(store, key)

    monkeypatch.setattr(ObjectStore, "delete", delete)
    (tmp_path / "data").mkdir()
    url = f"file://{tmp_path / 'store'}"
    async with running(
        tmp_path / "data",
        archive_url=url,
        archive_retention_bytes=1,
        max_bytes_per_file=SEGMENT,
        sync_every=1,
    ) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        await consumed(api, 3)
        archive, files = api.broker.archive, api.broker.topics["t"].log.files
        assert archive is not None
        assert files is not None
        await until(lambda: len(files.expired) == 2)
        await until(lambda: archive.deletions.failure)
        await consumed(api, 3)
        await until(lambda: archive.uploaded == 5)  # although nothing can be deleted
        assert (archive.failure, archive.deletions.deleted) == ("", 0)
        assert "AccessDenied" in (await api.stats())["archive"]["failure"]
        refused.clear()
        await until(lambda: archive.deletions.deleted == 5)
        assert (await api.stats())["archive"]["failure"] == ""
        assert not list((tmp_path / "store").rglob("*.log"))
