"""nsqlookupds that hang, lie or do not read: none of them makes nsqd wait."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from nsquark.nsqd.cluster import lookup_connection
from tests.daemon import sized, until
from tests.nsqd.api import Api, running
from tests.nsqd.lookupds import OK, ScriptedLookupd, identified, lookupds, set_lookupds

LIES: dict[str, Callable[[ScriptedLookupd], None]] = {
    "old": lambda lookupd: setattr(lookupd, "answer_identify", sized(b"E_INVALID")),
    "no JSON": lambda lookupd: setattr(lookupd, "answer_identify", OK),
    "list": lambda lookupd: setattr(lookupd, "answer_identify", sized(b"[1]")),
    "wrong types": lambda lookupd: setattr(lookupd, "answer_identify", sized(b'{"http_port":"x"}')),
    "negative": lambda lookupd: setattr(lookupd, "answer_identify", struct.pack(">i", -1)),
    "huge": lambda lookupd: setattr(lookupd, "answer_identify", struct.pack(">i", (1 << 31) - 1)),
    "garbage": lambda lookupd: setattr(lookupd, "answer_identify", os.urandom(1000)),
    "two answers": lambda lookupd: setattr(lookupd, "answer_line", lambda line: OK + OK),
    "huge later": lambda lookupd: setattr(lookupd, "answer_line", lambda line: b"\x7f" * 1000),
    "silent": lambda lookupd: setattr(lookupd, "answer_identify", b""),
    "silent later": lambda lookupd: setattr(lookupd, "answer_line", lambda line: b""),
    "does not read": lambda lookupd: setattr(lookupd, "reads", False),
    "half an answer": lambda lookupd: setattr(lookupd, "answer_line", lambda line: OK[:5]),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lookupd_that_lies_is_given_up_and_tried_again(
    tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_connection, "ANSWER_WITHIN", 0.05)
    async with lookupds(2) as (liar, honest):
        LIES[lie](liar)
        addresses = [liar.address, honest.address]
        async with running(tmp_path, lookupd_tcp_address=addresses) as api:
            client = await api.client()
            await client.pub("orders", b"body")
            await liar.until(lambda: len(liar.calls) >= 3)
            await client.pub("events", b"body")
            await honest.until(lambda: honest.calls and len(honest.calls[0].lines) == 2)
            assert honest.calls[0].lines == ["REGISTER orders", "REGISTER events"]


async def test_an_error_is_logged_and_is_no_reason_to_stop(
    api: Api, lookupd: ScriptedLookupd, caplog: pytest.LogCaptureFixture
) -> None:
    lookupd.answer_line = lambda line: sized(b"E_BAD_TOPIC " + line.encode())
    call = await lookupd.called()
    await api.done("/topic/create?topic=t")
    await until(lambda: "answered b'E_BAD_TOPIC REGISTER t'" in caplog.text)
    lookupd.answer_line = lambda line: OK
    await api.done("/topic/create?topic=u")
    await lookupd.until(lambda: call.lines == ["REGISTER t", "REGISTER u"])


async def test_ten_thousand_topics_cost_a_stuck_lookupd_nothing(tmp_path: Path) -> None:
    """It has answered IDENTIFY and then nothing: what is on its way to it stays small."""
    async with lookupds(1) as (stuck,), running(tmp_path) as api:
        stuck.answer_line = lambda line: b""
        await set_lookupds(api, stuck)
        await identified(api)
        (peer,) = api.broker.lookup._peers.values()
        connection = peer.connection
        assert connection is not None
        for number in range(10_000):
            api.broker.lookup.changed(f"topic{number}", "channel")
        await stuck.until(lambda: len(stuck.calls[0].lines) >= lookup_connection.WINDOW)
        assert connection._unanswered == lookup_connection.WINDOW
        assert connection._transport is None or connection._transport.get_write_buffer_size() == 0
        await api.done("/pub?topic=t", b"body")
