"""nsqlookupd's `/metrics`, `/live` and `/ready`."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from nsquark import kernel
from tests.daemon import Nsqd, Nsqlookupd, until


async def scrape(nsqlookupd: Nsqlookupd) -> dict[str, float]:
    status, body = await nsqlookupd.http("GET", "/metrics")
    assert status == 200
    families = text_string_to_metric_families(body.decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


async def test_what_the_directory_holds(tmp_path: Path, nsqlookupd: Nsqlookupd) -> None:
    told = await scrape(nsqlookupd)
    assert (told["nsqlookupd_producers"], told["nsqlookupd_topics"]) == (0, 0)
    with Nsqd(tmp_path / "data").start(f"--lookupd-tcp-address={nsqlookupd.tcp_address}") as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=a")
        await nsqd.post("/channel/create?topic=t&channel=b")

        async def registered() -> bool:
            told = await scrape(nsqlookupd)
            return (told["nsqlookupd_producers"], told["nsqlookupd_channels"]) == (1, 2)

        await until(registered)
        told = await scrape(nsqlookupd)
        assert (told["nsqlookupd_topics"], told["nsqlookupd_connections"]) == (1, 1)
        assert told["nsqlookupd_silent_producers"] == 0
        assert told["process_resident_memory_bytes"] > 0
        assert told["nsqlookupd_start_time_seconds"] > 1.7e9


async def test_it_says_which_kernel_runs(nsqlookupd: Nsqlookupd) -> None:
    _, body = await nsqlookupd.http("GET", "/metrics")
    assert f'nsqlookupd_info{{kernel="{kernel.KERNEL}"' in body.decode()


async def test_it_is_alive_and_ready(nsqlookupd: Nsqlookupd) -> None:
    assert await nsqlookupd.http("GET", "/live") == (200, b"OK")
    assert await nsqlookupd.http("GET", "/ready") == (200, b"OK")
