"""What a client may do by its AUTH, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from nsquark.errors import AuthFailed, AuthFirst, ProtocolError, Unauthorized
from nsquark.nsqd.protocol.auth.auth_servers import Credentials, NotAnswered
from nsquark.nsqd.protocol.auth.authorizations import Authorizations, AuthServerNeeded, parse_answer
from nsquark.nsqd.protocol.auth.client_auth import ClientAuth
from tests.daemon import until

WHO = Credentials(b"s", "127.0.0.1", False, "")
GRANTED = (
    b'{"ttl":1,"identity":"me","authorizations":'
    b'[{"topic":"^t$","channels":["^c$",".*"],"permissions":["subscribe","publish"]}]}'
)


class Servers:
    """Auth servers that answer at once."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.asked: list[Credentials] = []

    async def query(self, who: Credentials) -> Authorizations:
        self.asked.append(who)
        if self.answer is None:
            raise NotAnswered("AUTH failed")
        return parse_answer(self.answer)


def client(answer: bytes | None) -> tuple[ClientAuth, Servers, list[None]]:
    expired: list[None] = []
    servers = Servers(answer)
    unchecked: Any = servers
    return ClientAuth(unchecked, lambda: expired.append(None)), servers, expired


def test_auth_comes_first() -> None:
    auth, _, _ = client(GRANTED)
    with pytest.raises(AuthFirst):
        auth.check("PUB", "t")


async def test_what_is_granted_is_allowed_until_it_expires() -> None:
    auth, servers, expired = client(GRANTED)
    await auth.query(WHO)
    assert auth.authed
    auth.check("PUB", "t")
    auth.check("SUB", "t", "c")
    with pytest.raises(Unauthorized):
        auth.check("PUB", "u")
    await until(lambda: expired)
    with pytest.raises(AuthServerNeeded) as needed:
        auth.check("PUB", "t")
    assert needed.value.who is needed.value.then is None
    await auth.query()
    assert servers.asked == [WHO, WHO]
    auth.check("PUB", "t")
    auth.close()


async def test_no_answer_is_no_authorization() -> None:
    auth, _, _ = client(None)
    with pytest.raises(AuthFailed):
        await auth.query(WHO)
    assert not auth.authed


async def test_an_answer_without_entries_grants_nothing() -> None:
    auth, _, _ = client(b'{"ttl":10}')
    await auth.query(WHO)
    assert not auth.authed
    with pytest.raises(ProtocolError):
        auth.check("SUB", "t", "c")
    auth.close()
