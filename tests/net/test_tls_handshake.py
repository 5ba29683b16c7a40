"""Handshakes are limited in number, and each in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsquark.net.tls_handshake import HANDSHAKE_RECORD, NOT_TLS, Handshakes, TlsHandshake
from tests.daemon import until


class Layers:
    def __init__(self) -> None:
        self.over: list[tuple[object, str | None]] = []
        self.aborted = False

    def handshake_over(self, tls: object, reason: str | None) -> None:
        self.over.append((tls, reason))

    def abort(self) -> None:
        self.aborted = True


class Tls:
    """Is done after so many bytes."""

    def __init__(self, needed: int = 1 << 30) -> None:
        self._needed = needed

    def received(self, data: memoryview) -> None:
        self._needed -= len(data)

    def handshake(self) -> bool:
        return self._needed <= 0


def begun(shared: Handshakes, needed: int = 1 << 30) -> tuple[TlsHandshake, Layers]:
    layers: Any = Layers()
    new: Any = lambda: Tls(needed)  # noqa: E731
    return TlsHandshake(layers, shared, new), layers


def bytes_of(size: int) -> memoryview:
    return memoryview(bytes([HANDSHAKE_RECORD]) + bytes(size - 1))


def ignore(tls: object) -> None:
    pass


async def test_it_ends_with_tls() -> None:
    handshake, layers = begun(Handshakes(), needed=20)
    handshake.received(bytes_of(10), ignore)
    assert not layers.over
    handshake.received(bytes_of(10), ignore)
    [(tls, reason)] = layers.over
    assert (type(tls), reason) == (Tls, None)


async def test_what_is_no_tls_is_told_at_once() -> None:
    handshake, layers = begun(Handshakes())
    handshake.received(memoryview(b"GET / HTTP/1.1"), ignore)
    assert layers.over == [(None, NOT_TLS)]


async def test_it_has_so_much_time_and_size() -> None:
    slow, large = begun(Handshakes(timeout=0.01)), begun(Handshakes())
    large[0].received(bytes_of(100 << 10), ignore)
    large[0].received(bytes_of(100 << 10), ignore)
    assert large[1].over == [(None, "tls: handshake too long")]
    await until(lambda: slow[1].over)
    assert slow[1].over == [(None, "i/o timeout")]


async def test_one_too_many_ends_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    shared = Handshakes(room=2)
    made = [begun(shared) for _ in range(4)]
    for handshake, _ in made:
        handshake.received(bytes_of(10), ignore)
    reason = "tls: too many handshakes at once"
    assert [layers.over for _, layers in made] == [[(None, reason)], [(None, reason)], [], []]
    assert "more than 2 handshakes at once" in caplog.text
    shared.close()
    assert [layers.aborted for _, layers in made] == [False, False, True, True]
    for handshake, _ in made[2:]:
        handshake.cancel()


async def test_a_handshake_that_is_cancelled_says_nothing() -> None:
    handshake, layers = begun(Handshakes(timeout=0.001))
    handshake.cancel()
    await asyncio.sleep(0.01)
    assert not layers.over
