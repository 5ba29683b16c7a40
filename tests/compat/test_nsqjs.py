"""nsqjs, NSQ's client for Node, over the layers, where `NSQUARK_NSQJS` names the folder it is installed in.

npm install --prefix DIR nsqjs && NSQUARK_NSQJS=DIR pytest tests/compat/test_nsqjs.py
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.daemon import PATIENCE, Nsqd
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority

SCRIPT = Path(__file__).with_name("nsqjs.js")
FOLDER = os.environ.get("NSQUARK_NSQJS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="NSQUARK_NSQJS says where nsqjs is")


@pytest.mark.parametrize("auth", [False, True], ids=["open", "auth"])
@pytest.mark.parametrize("compression", ["", "snappy", "deflate"], ids=["none", "snappy", "deflate"])
@pytest.mark.parametrize("security", ["plain", "tls", "mtls"])
async def test_nsqjs(tmp_path: Path, security: str, compression: str, auth: bool) -> None:
    authority = Authority(tmp_path / "certificates")
    cert, key = authority.sign("server")
    client_cert, client_key = authority.sign("client")
    flags: list[str] = []
    options: dict[str, object] = {compression: True} if compression else {}
    if security != "plain":
        flags += [f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0", "--tls-required"]
        options |= {"tls": True, "ca": str(authority.file)}
    if security == "mtls":
        flags += ["--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={authority.file}"]
        options |= {"key": str(client_key), "cert": str(client_cert)}
    if auth:
        options["authSecret"] = "s3cret"
    async with AuthServer({"s3cret": [entry()]}) as auth_server:
        if auth:
            flags.append(f"--auth-http-address={auth_server.address}")
        with Nsqd(tmp_path / "data", *flags).start() as nsqd:
            settings = json.dumps({"address": nsqd.tcp_address, "options": options})
            process = await asyncio.create_subprocess_exec(
                "node",
                SCRIPT,
                settings,
                env={**os.environ, "NODE_PATH": str(Path(FOLDER) / "node_modules")},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            async with asyncio.timeout(PATIENCE):
                said, _ = await process.communicate()
    assert said == b"OK\n", said.decode()
