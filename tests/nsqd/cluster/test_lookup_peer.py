"""An nsqlookupd that is there, gone, and there again."""

from __future__ import annotations

from pathlib import Path

from tests.nsqd.api import Api, running
from tests.nsqd.lookupds import ScriptedLookupd, identified


async def test_a_lookupd_that_comes_back_hears_everything_again(api: Api, lookupd: ScriptedLookupd) -> None:
    await api.done("/topic/create?topic=t")
    for number in (1, 2, 3):
        call = await lookupd.called(number)
        await lookupd.until(lambda: call.lines == ["REGISTER t"])  # noqa: B023 - called within the turn
        call.hang_up()
    await lookupd.close()
    await api.done("/topic/create?topic=u")
    await api.done("/topic/delete?topic=t")
    await lookupd.listen()
    call = await lookupd.called(4)
    await lookupd.until(lambda: call.lines == ["REGISTER u"])


async def test_an_address_that_is_none_does_no_harm(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    addresses = ["", "nowhere", "no.such.host.invalid:4160", "127.0.0.1:0", "a:b:c", "\0:1", lookupd.address]
    async with running(tmp_path, lookupd_tcp_address=addresses) as api:
        await lookupd.called()
        await identified(api)
        await api.done("/pub?topic=t", b"body")
