"""What nsqd asks nsqlookupds and auth servers over HTTP."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.http.client.test_single_request import answering
from tests.nsqd.api import running
from tests.nsqd.lookupds import ScriptedLookupd, identified
from tests.security.certificates import Authority


async def test_a_lookupd_that_wants_tls_is_asked_with_tls(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    body = b'{"channels":["archive"]}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    authority = Authority(tmp_path / "certificates")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.sign("lookupd"))
    async with answering(answer, tls=context) as (url, heads):
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % int(url.rpartition(":")[2])
        lookupd.answer_get = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        changes = {
            "lookupd_tcp_address": [lookupd.address],
            "tls_root_ca_file": str(authority.folder / "ca.pem"),
        }
        async with running(tmp_path, **changes) as api:
            await identified(api)
            await api.done("/topic/create?topic=orders")
            assert list(api.broker.topics["orders"].channels) == ["archive"]
    assert heads[0].startswith(b"GET /channels?topic=orders HTTP/1.1\r\n")
