"""What the tests of TLS, compression and AUTH share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Nsqd
from tests.security.auth_server import AuthServer
from tests.security.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Has signed `server`, and `client` with the name `a client`."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    authority.sign("server")
    authority.sign("client", "a client")
    return authority


@pytest.fixture(scope="session")
def tls_flags(authority: Authority) -> list[str]:
    return [
        f"--tls-cert={authority.folder / 'server.pem'}",
        f"--tls-key={authority.folder / 'server.key'}",
        "--https-address=127.0.0.1:0",
    ]


@pytest.fixture
async def auth_server() -> AsyncIterator[AuthServer]:
    async with AuthServer() as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Nsqd]]:
    """`start(*flags)` gives a running nsqd, which ends with the test."""
    running: list[Nsqd] = []

    def start_one(*flags: str, **settings: Any) -> Nsqd:
        running.append(Nsqd(tmp_path / f"data{len(running)}", *flags).start(**settings))
        return running[-1]

    yield start_one
    for nsqd in running:
        nsqd.kill()
        # whatever a client does, it is told what is wrong, and nsqd is not surprised
        assert not [line for line in nsqd.lines if "Traceback" in line or "Exception" in line]
