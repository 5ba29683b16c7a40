"""Every page in Chromium: light and dark, wide and narrow, hostile names, a dead nsqd, ACL on."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.daemon import Client, Nsqd, identify
from tests.nsqadmin.pages.browser import Reader, chromium, needs_chromium, reading
from tests.nsqadmin.served import Admin, Cluster, serving

pytestmark = [needs_chromium, pytest.mark.timeout(180)]

EVIL = "\"'><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}"
WIDE = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture
async def evil_client(daemons: Cluster, admin: Admin) -> AsyncIterator[Client]:
    """A consumer whose every free text is markup, with a message in flight."""
    async with await daemons.nsqds[0].connect() as client:
        client.send(identify(client_id=EVIL, hostname=EVIL, user_agent=EVIL, heartbeat_interval=60000))
        await client.answer()
        await client.sub("orders", "archive", rdy=1)
        await client.message()
        yield client


def paths(nsqd: Nsqd) -> dict[str, str]:
    return {
        "topics": "/",
        "topic": "/topics/orders",
        "channel": "/topics/orders/archive",
        "nodes": "/nodes",
        "node": f"/nodes/127.0.0.1:{nsqd.http_port}",
        "pipelines": "/pipelines",
        "lookup": "/lookup",
        "counter": "/counter",
        "search": "/search?q=a",
        "peek": "/peek?topic=orders",
        "peek-in-flight": "/peek?topic=orders&channel=archive&state=in_flight",
        "dead": "/dead?topic=orders&channel=archive",
        "seek": "/seek?topic=orders&channel=archive&place=earliest",
        "publish": "/act?do=publish&topic=orders",
        "delete": "/act?do=delete&topic=orders",
        "retention": "/act?do=retention&topic=orders",
    }


@pytest.mark.parametrize(("theme", "window"), [("light", WIDE), ("dark", PHONE)])
async def test_every_page_is_readable_for_everybody(
    daemons: Cluster,
    admin: Admin,
    evil_client: Client,
    browser: Browser,
    theme: str,
    window: dict[str, object],
) -> None:
    async with reading(browser, admin.address, color_scheme=theme, **window) as reader:
        for name, path in paths(daemons.nsqds[0]).items():
            assert await reader.goto(path) == 200, path
            await reader.check_access()
            await reader.shoot(f"{name}-{theme}-{'phone' if window is PHONE else 'wide'}")


@pytest.mark.parametrize(("theme", "window"), [("light", WIDE), ("dark", PHONE)])
async def test_pipelines_that_report_are_readable_for_everybody(
    daemons: Cluster, admin: Admin, browser: Browser, theme: str, window: dict[str, object]
) -> None:
    now = int(time.time() * 1000)
    reports = [
        {"query_id": "a", "query_name": "archive", "state": "running", "timestamp_ms": now, "batch": batch,
         "rows": 1000 + batch, "processed_rate": 250.0 + batch, "lag_messages": 12 * batch,
         "lag_seconds": 75.0, "batch_ms": 218, "sink": "files", "ui_url": "http://driver:4040/x"}
        for batch in range(5)
    ]  # fmt: skip
    reports.append({"query_id": "b", "query_name": EVIL, "state": "failed", "error": f"{EVIL}\n" + "x" * 500})
    reports.append({"query_id": "c", "state": "ended"})
    for report in reports:
        await daemons.nsqds[0].post(
            "/channel/report?topic=orders&channel=archive", json.dumps(report).encode()
        )
    async with reading(browser, admin.address, color_scheme=theme, **window) as reader:
        assert await reader.goto("/pipelines") == 200
        text = await reader.text()
        for shown in ("archive", "Spark UI", "failed", "ended", "<img src=x onerror=alert(1)>"):
            assert shown in text
        assert await reader.page.locator("main img, main script").count() == 0
        await reader.check_access()
        await reader.shoot(f"pipelines-reported-{theme}-{'phone' if window is PHONE else 'wide'}")


async def test_a_node_shows_what_its_clients_are_ready_for_and_have_finished(
    daemons: Cluster, admin: Admin, browser: Browser
) -> None:
    async with await daemons.nsqds[0].connect() as client, reading(browser, admin.address, **WIDE) as reader:
        await client.sub("orders", "archive", rdy=2)
        client.fin(await client.message())
        await client.message()
        await client.message()
        await client.caught_up()
        await reader.goto(f"/nodes/127.0.0.1:{daemons.nsqds[0].http_port}")
        await expect(reader.page.get_by_text("RDY 2 · 1 finished")).to_be_visible()


async def test_where_a_node_is_known_unfolds_by_the_keyboard(
    daemons: Cluster, admin: Admin, browser: Browser
) -> None:
    known = daemons.nsqds[2].http_address
    sighting = f"{daemons.lookupds[0].http_address}/127.0.0.1:"
    async with reading(browser, admin.address, **WIDE) as reader:
        await reader.goto("/nodes")
        row = reader.page.get_by_role("row").filter(has_text=known)
        await expect(row.get_by_text(sighting)).to_be_hidden()
        await row.get_by_label(f"1 of 2 nsqlookupds know {known}").focus()
        await reader.page.keyboard.press("Enter")
        await expect(row.get_by_text(sighting)).to_be_visible()
        await reader.check_access()
        await reader.shoot("nodes-unfolded-light-wide")


async def test_the_markup_of_a_client_is_text(
    daemons: Cluster, admin: Admin, evil_client: Client, browser: Browser
) -> None:
    async with reading(browser, admin.address, **WIDE) as reader:
        node = f"/nodes/127.0.0.1:{daemons.nsqds[0].http_port}"
        peek = "/peek?topic=orders&channel=archive&state=in_flight"
        for path in ("/topics/orders/archive", node, "/search?q=onerror", peek):
            await reader.goto(path)
            assert "<img src=x onerror=alert(1)>" in await reader.text(), path
            assert await reader.page.locator("main img, main script").count() == 0


async def test_a_query_that_is_markup_is_text(admin: Admin, browser: Browser) -> None:
    async with reading(browser, admin.address, **WIDE) as reader:
        for path in ("/", "/nodes", "/search"):
            await reader.goto(f"{path}?q=%3Cscript%3Ealert(3)%3C/script%3E")
            assert "<script>alert(3)</script>" in await reader.text(), path


async def test_numbers_follow_nsqd_without_a_reload(daemons: Cluster, admin: Admin, browser: Browser) -> None:
    first = daemons.nsqds[0]
    async with reading(browser, admin.address, **WIDE) as reader:
        await reader.goto("/topics/orders/archive")
        await reader.page.evaluate("window.sameDocument = true")
        row = reader.page.locator(f"tr[data-key='127.0.0.1:{first.http_port}']")
        assert (await row.locator("td[data-label=Messages]").inner_text()) == "3"
        for _ in range(20):
            await first.post("/pub?topic=orders", b"one more")
        await row.locator("td[data-label=Messages]", has_text="23").wait_for()
        _, stats = await first.http("GET", "/stats?format=json&topic=orders&channel=archive")
        told = json.loads(stats)["topics"][0]["channels"][0]
        for label, key in (
            ("Depth", "depth"),
            ("In flight", "in_flight_count"),
            ("Messages", "message_count"),
        ):
            assert await row.locator(f"td[data-label='{label}']").inner_text() == str(told[key])
        assert await reader.page.evaluate("window.sameDocument") is True


async def test_a_paused_refresh_asks_for_nothing(daemons: Cluster, admin: Admin, browser: Browser) -> None:
    async with reading(browser, admin.address, **WIDE) as reader:
        await reader.goto("/")
        await reader.page.get_by_role("button", name="Pause live refresh").click()
        asked: list[str] = []
        reader.page.on("request", lambda request: asked.append(request.url))
        await asyncio.sleep(6)  # longer than a refresh is away: that nothing happens cannot be awaited
        assert asked == []


async def test_a_chart_is_drawn_from_nsqadmins_own_history(admin: Admin, browser: Browser) -> None:
    async with reading(browser, admin.address, **WIDE) as reader:
        await reader.goto("/")
        await reader.page.locator(".chart canvas").nth(1).wait_for()


async def test_an_nsqd_that_hangs_costs_a_warning_that_names_it(
    daemons: Cluster, admin: Admin, browser: Browser
) -> None:
    frozen = daemons.nsqds[1]
    frozen.process.send_signal(signal.SIGSTOP)
    async with reading(browser, admin.address, **WIDE) as reader:
        for path in ("/topics/orders", "/topics/orders/archive", "/"):
            assert await reader.goto(path) == 200
            assert f"127.0.0.1:{frozen.http_port}" in await reader.text(".notice.warn")


async def test_configured_nsqds_that_are_dead_are_named(daemons: Cluster, browser: Browser) -> None:
    await daemons.fill()
    dead = daemons.nsqds[1]
    dead.kill()
    async with serving(*daemons.nsqd_flags) as admin, reading(browser, admin.address, **WIDE) as reader:
        assert await reader.goto("/topics/orders") == 200
        assert f"127.0.0.1:{dead.http_port}" in await reader.text(".notice.warn")
        assert await reader.goto("/nodes") == 200
        assert await reader.page.get_by_text("no answer").count() == 1
        await reader.check_access()
        await reader.shoot("nodes-one-dead")


async def test_a_cluster_that_is_gone_is_told_and_comes_back_by_itself(nsqd: Nsqd, browser: Browser) -> None:
    nsqd.kill()
    async with serving(f"--nsqd-http-address={nsqd.http_address}") as admin:
        async with reading(browser, admin.address, **WIDE) as reader:
            assert await reader.goto("/") == 502
            assert "The cluster does not answer" in await reader.text("h1")
            await reader.check_access()
            nsqd.restart()
            await reader.page.get_by_text("There are no topics yet").wait_for()


async def test_without_the_acl_header_nothing_can_be_changed(daemons: Cluster, browser: Browser) -> None:
    await daemons.fill()
    async with serving(*daemons.flags, "--admin-user=alice") as admin:
        async with reading(browser, admin.address, **WIDE) as reader:
            for path in ("/topics/orders", "/topics/orders/archive", "/lookup", "/"):
                await reader.goto(path)
                assert "Reading only" in await reader.text("footer")
                found = await reader.page.locator("a[data-dialog], main form[method=post]").count()
                assert found == 0, path
            assert (await admin.ask("POST", "/act?do=pause&topic=orders")).status == 403
        async with reading(
            browser, admin.address, extra_http_headers={"X-Forwarded-User": "alice"}, **WIDE
        ) as reader:
            await reader.goto("/topics/orders")
            assert "Done." in await reader.act("Pause")
    for nsqd in daemons.nsqds[:2]:
        assert b'"paused":true' in (await nsqd.http("GET", "/stats?format=json&topic=orders"))[1]


async def test_the_keyboard_is_enough(admin: Admin, browser: Browser) -> None:
    async with reading(browser, admin.address, **WIDE) as reader:
        page = reader.page
        await reader.goto("/topics/orders")
        await page.keyboard.press("/")
        await page.keyboard.type("sol")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/search?q=sol")
        await page.get_by_role("link", name="solo", exact=True).focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/topics/solo")
        pause = page.get_by_role("link", name="Pause", exact=True)
        await pause.focus()
        await page.keyboard.press("Enter")
        await page.locator("dialog[open]").wait_for()
        await page.keyboard.press("Escape")
        await page.locator("dialog[open]").wait_for(state="hidden")
        assert await pause.evaluate("element => element === document.activeElement")


async def test_the_theme_is_switched_and_remembered(admin: Admin, browser: Browser) -> None:
    async with reading(browser, admin.address, color_scheme="light", **WIDE) as reader:
        paper = "getComputedStyle(document.body).backgroundColor"
        await reader.goto("/")
        light = await reader.page.evaluate(paper)
        await reader.page.get_by_role("button", name="Switch between light and dark").click()
        dark = await reader.page.evaluate(paper)
        assert dark != light
        await reader.goto("/nodes")
        assert await reader.page.evaluate(paper) == dark


async def test_topics_are_filtered_sorted_and_paged(daemons: Cluster, admin: Admin, browser: Browser) -> None:
    for number in range(60):
        await daemons.nsqds[2].post(f"/topic/create?topic=many.{number:02}")
    async with reading(browser, admin.address, **WIDE) as reader:
        page = reader.page
        await reader.goto("/?sort=-messages")
        await page.get_by_text(re.compile(r"1–50 of 6\d")).wait_for()
        names = page.locator("#topics tbody th a")
        assert await names.first.inner_text() == "orders"
        await page.get_by_role("link", name="Next").click()
        await page.wait_for_url("**page=2**")
        await page.get_by_role("searchbox", name="Filter topics").fill("MANY.5")
        await expect(page.locator("#topics tbody tr")).to_have_count(10)
        assert await names.all_inner_texts() == [f"many.5{digit}" for digit in range(10)]


async def test_a_channel_tells_how_much_of_the_log_is_kept_for_it_and_when_it_was_read(
    daemons: Cluster, admin: Admin, browser: Browser
) -> None:
    nsqd = daemons.nsqds[2]
    await nsqd.post("/topic/create?topic=kept")
    await nsqd.post("/channel/create?topic=kept&channel=idle")
    await nsqd.post("/pub?topic=kept", b"x" * 3000)
    async with reading(browser, admin.address, **WIDE) as reader:
        await reader.goto("/topics/kept/idle")
        figures = reader.page.locator("#figures")
        await expect(figures).to_contain_text(re.compile(r"Log kept for it\s*3\.\d+ KiB"))
        await expect(figures).to_contain_text(re.compile(r"Last read\s*.* ago"))
        await expect(reader.page.locator("#nodes")).to_contain_text(re.compile(r"3\.\d+ KiB"))


async def _titles(reader: Reader) -> list[str]:
    return await reader.page.locator("h2").all_inner_texts()


async def test_search_finds_topics_channels_nodes_and_clients(
    daemons: Cluster, admin: Admin, browser: Browser
) -> None:
    async with await daemons.nsqds[0].connect() as client:
        client.send(identify(client_id="arch-1", hostname="arch-1.example.com", user_agent="a/1"))
        await client.answer()
        await client.sub("orders", "archive")
        async with reading(browser, admin.address, **WIDE) as reader:
            await reader.goto("/search?q=ARCH")
            assert [title.rstrip("0123456789") for title in await _titles(reader)] == ["Channels", "Clients"]
            await reader.goto(f"/search?q={daemons.nsqds[0].http_port}")
            assert "Nodes1" in await _titles(reader)
            await reader.goto("/search?q=order")
            assert "Topics1" in await _titles(reader)
