"""The example of an auth server, with a real nsqd before it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import Nsqd
from tests.security.upgraded import auth, connect

EXAMPLE = Path(__file__).parents[2] / "examples" / "auth_server.py"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where it listens."""
    grants = tmp_path / "grants.json"
    publish = {"topic": "^orders$", "channels": ["^$"], "permissions": ["publish"]}
    grants.write_text(json.dumps({"s3cret ü": {"identity": "billing", "authorizations": [publish]}}))
    process = subprocess.Popen(
        [sys.executable, EXAMPLE, grants, "--port=0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process.stdout.readline().split()[-1]
    process.terminate()
    rest, _ = process.communicate()
    assert "s3cret" not in rest


@pytest.mark.parametrize("method", ["get", "post"])
async def test_it_grants_what_its_file_says(tmp_path: Path, address: str, method: str) -> None:
    flags = [f"--auth-http-address={address}", f"--auth-http-request-method={method}"]
    with Nsqd(tmp_path / "data", *flags).start() as nsqd:
        async with await connect(nsqd, secret="s3cret ü") as client:
            await client.pub("orders", b"x")
            client.send(b"SUB orders billing\n")
            assert await client.error() == b'E_UNAUTHORIZED AUTH failed for SUB on "orders" "billing"'
        async with await nsqd.connect() as client:
            client.send(auth("guess"))
            assert await client.error() == b"E_AUTH_FAILED AUTH failed"
