"""Asking auth servers: by GET or POST, one after the other, and without a secret in the log."""

from __future__ import annotations

import logging

import pytest

from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol.auth.auth_servers import AuthServers, Credentials, NotAnswered
from nsquark.nsqd.protocol.certificates import Certificates
from tests.security.auth_server import AuthServer, entry

WHO = Credentials(b"a secret&more", "10.0.0.1", True, "a client")
TOLD = {"common_name": "a client", "remote_ip": "10.0.0.1", "secret": "a secret&more", "tls": "true"}


def servers(*addresses: str, method: str = "get") -> AuthServers:
    options = Options(auth_http_address=list(addresses), auth_http_request_method=method)
    return AuthServers(options, Certificates(options))


@pytest.mark.parametrize("method", ["get", "post"])
async def test_a_server_is_told_who_asks(method: str) -> None:
    async with AuthServer({"a secret&more": [entry()]}) as server:
        granted = await servers(server.address, method=method).query(WHO)
    assert granted.allows("publish", "t")
    assert server.asked == [(method.upper(), TOLD)]


async def test_the_next_server_is_asked_when_one_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with AuthServer({"a secret&more": [entry()]}) as good, AuthServer() as bad:
        for _ in range(10):  # it begins with a random one
            await servers(f"http://user:password@{bad.address}/auth?x=hidden", good.address).query(WHO)
    assert bad.asked
    assert len(good.asked) == 10
    for hidden in ("secret", "password", "hidden"):
        assert hidden not in caplog.text


async def test_without_an_answer_the_reasons_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with AuthServer({"a secret&more": b"{}"}) as server:
        with caplog.at_level(logging.ERROR), pytest.raises(NotAnswered):
            await servers(server.address, "127.0.0.1:1").query(WHO)
    assert "invalid TTL 0" in caplog.text
    assert "127.0.0.1:1" in caplog.text
