"""docs/reference/permissions.md is what daemons do, no log holds a secret, no file is open to others."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from reliability.permissions import nsqd_http, nsqd_tcp, page, world
from reliability.permissions.table import YES, Table
from tests.daemon import Nsqd, Nsqlookupd

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "permissions.md"


class Tried(NamedTuple):
    tables: list[Table]
    log: list[str]
    hidden: list[str]


@pytest.fixture
async def tried(tmp_path: Path) -> AsyncIterator[Tried]:
    async with world.running(tmp_path) as running:
        yield Tried(await page.tables(running), running.log(), running.hidden())


async def test_the_page_is_what_daemons_do_and_no_log_holds_a_secret(tried: Tried) -> None:
    assert page.markdown(tried.tables) == PAGE.read_text(), "python -m reliability.permissions --markdown"
    # The superuser may do everything, so what the others are refused they are refused for who they are.
    http = tried.tables[1]
    assert set(http.column("secret for everything").values()) == {YES}
    # Every daemon logs at level debug, and what it was asked.
    assert {line for line in tried.log if "DEBUG" in line}
    assert [line for line in tried.log if "401 POST /pub" in line or "/channel/create" in line]
    assert len(tried.hidden) > 10
    assert [line for line in tried.log if any(secret in line for secret in tried.hidden)] == []
    assert [line for line in tried.log if "Traceback" in line] == []


def test_a_route_or_command_that_is_not_tried_is_an_error() -> None:
    with pytest.raises(nsqd_http.NotTried, match="/new/route"):
        nsqd_http.check_complete([*nsqd_http.TRIES, ("POST", "/new/route")])
    with pytest.raises(nsqd_http.NotTried, match="/ping"):
        nsqd_http.check_complete([each for each in nsqd_http.TRIES if each[1] != "/ping"])
    with pytest.raises(nsqd_http.NotTried, match="NEW"):
        nsqd_tcp.check_complete([*nsqd_tcp.TRIES, "NEW"])


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """For processes that are started within."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_what_nsqd_writes_is_its_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with umask(0), Nsqd(data, "--max-bytes-per-file=2000", "--max-attempts=1").start() as nsqd:
        before = mode(data)
        async with await nsqd.connect() as client:
            await client.sub("t", "c", 10)
            for _ in range(5):
                await client.pub("t", b"x" * 1000)
            await client.dpub("t", 3_600_000, b"later")
            client.fin(await client.message())
            client.req(await client.message(), 3_600_000)
            await client.caught_up()
        put = "/staged/put?app=a&batch=1&partition=0&attempt=a&seq=0&topic=t"
        await nsqd.post(put, (1).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"x")
        nsqd.stop()
        written = [path for path in data.rglob("*") if not path.is_symlink()]
        assert {path.name.partition(".")[0] for path in written} >= {"nsqd", "topics", "staged"}
        assert len([path for path in written if path.is_file()]) >= 6
        loose = {str(path.relative_to(data)): oct(mode(path)) for path in written if mode(path) & 0o077}
        assert loose == {}
        assert mode(data) == before  # the directory itself is the operator's


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o002])
async def test_a_unix_socket_has_the_mode_of_the_umask_as_in_nsq(tmp_path: Path, mask: int) -> None:
    sockets = tmp_path / "tcp", tmp_path / "http"
    nsqd = Nsqd(tmp_path / "data")
    nsqd.tcp_address, nsqd.http_address = map(str, sockets)
    with umask(mask), nsqd.start():
        assert [mode(path) for path in sockets] == [0o777 & ~mask] * 2
        nsqd.stop()
    assert not [path for path in sockets if path.exists()]


def test_nsqlookupd_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(world.__file__).parents[2] / "src")]))
    monkeypatch.chdir(tmp_path)
    with Nsqlookupd().start() as nsqlookupd:
        nsqlookupd.stop()
    assert list(tmp_path.iterdir()) == []
