"""Replica groups on the pages of nodes, in Chromium."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser

from tests.http.web import Web, answer
from tests.nsqadmin.cluster.test_replica import FULL
from tests.nsqadmin.pages.browser import chromium, needs_chromium, reading
from tests.nsqadmin.served import Admin, serving

pytestmark = [needs_chromium, pytest.mark.timeout(180)]

EVIL = "<img src=x onerror=alert(1)>"
WIDE = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


def says(document: Any) -> bytes:
    return answer(200, "X-NSQ-Content-Type: nsq; version=1.0", body=json.dumps(document).encode())


def address(nsqd: Web) -> str:
    return nsqd.url.removeprefix("http://")


def play(nsqd: Web, replica: dict[str, object] | None) -> None:
    """Have it answer as an nsqd does: nsquark's in a group, or without one Go's."""
    port = int(nsqd.url.rpartition(":")[2])
    info = {
        "hostname": "h",
        "broadcast_address": "127.0.0.1",
        "http_port": port,
        "tcp_port": 1,
        "version": "1.3.0",
    }
    stats: dict[str, object] = {"health": "OK", "start_time": 1, "topics": []}
    nsqd.answers["/replica"] = answer(404, body=b'{"message":"NOT_FOUND"}')
    if replica is not None:
        stats["nsquark_version"] = "1.0"
        stats["replica"] = {key: replica[key] for key in ("group", "member", "state", "term", "isr")} | {
            "lag": {"a": 0, "b": 3}
        }
        nsqd.answers["/replica"] = says(replica)
    nsqd.answers["/info"], nsqd.answers["/stats"] = says(info), says(stats)


@asynccontextmanager
async def nodes(*replicas: dict[str, object] | None) -> AsyncIterator[tuple[Admin, list[Web]]]:
    async with Web() as first, Web() as second:
        nsqds = [first, second][: len(replicas)]
        for nsqd, replica in zip(nsqds, replicas, strict=True):
            play(nsqd, replica)
        async with serving(*(f"--nsqd-http-address={address(each)}" for each in nsqds)) as admin:
            yield admin, nsqds


@pytest.mark.parametrize(("theme", "window"), [("light", WIDE), ("dark", PHONE)])
async def test_nodes_and_a_node_show_their_group(
    browser: Browser, theme: str, window: dict[str, object]
) -> None:
    async with nodes(FULL, None) as (admin, (nsqd, gos)):
        async with reading(browser, admin.address, color_scheme=theme, **window) as reader:
            assert await reader.goto("/nodes") == 200
            row = reader.page.locator(f"tr[data-key='{address(nsqd)}']")
            shown = {
                label: await row.locator(f"td[data-label='{label}']").inner_text()
                for label in ("Replica group", "Term", "In sync", "Lag")
            }
            assert shown == {"Replica group": "orders primary", "Term": "5", "In sync": "2", "Lag": "3"}
            other = reader.page.locator(f"tr[data-key='{address(gos)}']")
            assert await other.locator("td[data-label=Term]").count() == 0
            await reader.check_access()
            await reader.shoot(f"nodes-replica-{theme}-{'phone' if window is PHONE else 'wide'}")

            assert await reader.goto(f"/nodes/{address(nsqd)}") == 200
            text = await reader.text()
            assert "primary of orders" in text
            assert "member a · primary · term 5 · 2 in sync · lag 3" in text
            for name, role, lag in (("a", "primary", "0"), ("b", "in-sync", "3"), ("c", "away", "–")):
                row = reader.page.locator(f"#replica tr[data-key='{name}']")
                assert await row.locator("td[data-label=Role]").inner_text() == role
                assert await row.locator("td[data-label=Lag]").inner_text() == lag
            assert "one copy" not in text
            await reader.check_access()
            await reader.shoot(f"node-replica-{theme}-{'phone' if window is PHONE else 'wide'}")


async def test_a_group_without_a_standby_says_so(browser: Browser) -> None:
    alone = {**FULL, "isr": ["a"], "members": [], "problem": EVIL, "group": EVIL, "member": EVIL}
    async with nodes(alone) as (admin, (nsqd,)), reading(browser, admin.address, **WIDE) as reader:
        await reader.goto(f"/nodes/{address(nsqd)}")
        text = await reader.text()
        assert "There is one copy." in text
        assert EVIL in text
        play(nsqd, {**alone, "refusing": "1 of 2 copies"})
        await reader.goto(f"/nodes/{address(nsqd)}")
        assert "Publishes are refused: 1 of 2 copies" in await reader.text()
        await reader.goto("/nodes")
        assert EVIL in await reader.text()
        assert await reader.page.locator("main img, main script").count() == 0
        await reader.check_access()


async def test_a_standby_is_no_failure(browser: Browser) -> None:
    async with nodes(FULL, None) as (admin, (primary, standby)):
        for path in ("/info", "/stats"):
            standby.answers[path] = answer(503, body=b'{"message":"NOT_PRIMARY","primary":null}')
        for path in ("/nodes", "/", f"/nodes/{address(primary)}"):
            text = (await admin.get(path)).body.decode()
            assert "did not answer" not in text, path
            assert "NOT_PRIMARY" not in text, path
        for path in ("/info", "/stats"):
            standby.answers[path] = answer(503, body=b'{"message":"OVERLOADED"}')
        assert "did not answer" in (await admin.get(f"/nodes/{address(primary)}")).body.decode()


@pytest.mark.parametrize(
    ("primary", "said"),
    [
        (b"null", "it is a member of a replica group that has no primary"),
        (b'{"http_address":"h2:4151"}', "it is a standby of its replica group, whose primary is h2:4151"),
        (b"7", "it is a member of a replica group that has no primary"),
    ],
)
async def test_where_only_standbys_answer_the_page_says_so(primary: bytes, said: str) -> None:
    async with nodes(None) as (admin, (standby,)):
        for path in ("/info", "/stats"):
            standby.answers[path] = answer(503, body=b'{"message":"NOT_PRIMARY","primary":%s}' % primary)
        text = (await admin.get("/nodes")).body.decode()
        assert said in text
        assert "NOT_PRIMARY" not in text


async def test_only_a_node_in_a_group_is_asked_for_it(browser: Browser) -> None:
    async with nodes(FULL, None) as (admin, (nsqd, gos)):
        for path in ("/nodes", f"/nodes/{address(nsqd)}", f"/nodes/{address(gos)}"):
            assert (await admin.get(path)).status == 200
        asked = [[got.target for got in each.got].count("/replica") for each in (nsqd, gos)]
        assert asked == [1, 0]
        text = (await admin.get(f"/nodes/{address(gos)}")).body.decode()
        assert "Replica group" not in text


async def test_a_node_that_does_not_tell_of_its_members_shows_what_is_known(browser: Browser) -> None:
    async with nodes(FULL) as (admin, (nsqd,)):
        nsqd.answers["/replica"] = answer(500, body=b"no")
        page = await admin.get(f"/nodes/{address(nsqd)}")
        assert page.status == 200
        assert "primary of orders" in page.body.decode()
        assert "got response 500" in page.body.decode()
