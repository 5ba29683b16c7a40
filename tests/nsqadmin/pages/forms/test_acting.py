"""Every action through Chromium, on every node or on one, and what is told when a node fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import Browser

from tests.daemon import Nsqd, until
from tests.nsqadmin.pages.browser import Reader, chromium, needs_chromium, reading
from tests.nsqadmin.served import Admin, Cluster, serving

pytestmark = [needs_chromium, pytest.mark.timeout(180)]
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture
async def reader(browser: Browser, admin: Admin) -> AsyncIterator[Reader]:
    async with reading(browser, admin.address, viewport={"width": 1280, "height": 900}) as tab:
        yield tab


async def topic(nsqd: Nsqd, name: str = "orders") -> dict[str, Any] | None:
    """What nsqd tells of a topic; None if it has none of this name."""
    _, stats = await nsqd.http("GET", f"/stats?format=json&topic={name}")
    found = json.loads(stats)["topics"]
    return found[0] if found else None


async def state(nsqd: Nsqd) -> tuple[object, ...]:
    """What an action on `orders` would change. How much of it is in memory changes with time."""
    told = await topic(nsqd)
    assert told is not None
    channels = [(each["channel_name"], each["depth"], each["paused"]) for each in told["channels"]]
    return told["message_count"], told["depth"], told["paused"], channels


async def paused(nsqd: Nsqd) -> tuple[bool, bool]:
    """Whether `orders` and its channel `archive` are paused."""
    told = await topic(nsqd)
    assert told is not None
    return told["paused"], told["channels"][0]["paused"]


def node_of(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.http_port}"


async def test_a_topic_is_paused_and_unpaused_on_every_node(daemons: Cluster, reader: Reader) -> None:
    await reader.goto("/topics/orders")
    result = await reader.act("Pause")
    assert "Done." in result
    assert all(node_of(nsqd) in result for nsqd in daemons.nsqds[:2])
    assert [await paused(nsqd) for nsqd in daemons.nsqds[:2]] == [(True, False)] * 2
    await reader.page.get_by_role("link", name="Go on").click()
    # The page has followed without a reload: the button now offers the other way.
    await reader.act("Unpause")
    assert [await paused(nsqd) for nsqd in daemons.nsqds[:2]] == [(False, False)] * 2


async def test_a_channel_is_paused_on_one_node_alone(daemons: Cluster, reader: Reader) -> None:
    first, second = daemons.nsqds[:2]
    await reader.goto("/topics/orders/archive")
    await reader.page.get_by_label(f"Actions for node {node_of(second)}").click()
    result = await reader.act("Pause here")
    assert node_of(second) in result
    assert node_of(first) not in result
    assert (await paused(first), await paused(second)) == ((False, False), (False, True))


async def test_emptying_needs_the_name_typed(daemons: Cluster, reader: Reader) -> None:
    await reader.goto("/topics/orders/archive")
    await reader.page.get_by_role("link", name="Empty", exact=True).click()
    dialog = reader.page.locator("dialog[open]")
    button = dialog.get_by_role("button", name="Empty")
    assert await button.is_disabled()
    await dialog.get_by_role("textbox").fill("orders")
    assert await button.is_disabled()
    await reader.confirm("archive")
    for nsqd in daemons.nsqds[:2]:
        told = await topic(nsqd)
        assert told is not None
        assert told["channels"][0]["depth"] == 0


async def test_a_channel_is_created_and_deleted(daemons: Cluster, reader: Reader) -> None:
    await reader.goto("/topics/orders")
    await reader.act("Create a channel", "audit#ephemeral")
    await daemons.registered("orders", 2, "audit#ephemeral")
    await reader.goto("/topics/orders/archive")
    await reader.act("Delete", "archive")
    await reader.page.get_by_role("link", name="Go on").click()
    await reader.page.wait_for_url("**/topics/orders")
    for nsqd in daemons.nsqds[:2]:
        told = await topic(nsqd)
        assert told is not None
        assert [each["channel_name"] for each in told["channels"]] == ["audit#ephemeral"]


async def test_a_topic_is_deleted_everywhere(daemons: Cluster, reader: Reader) -> None:
    await reader.goto("/topics/orders")
    await reader.act("Delete", "orders")
    assert [await topic(nsqd) for nsqd in daemons.nsqds] == [None] * 3
    await reader.page.get_by_role("link", name="Go on").click()
    await reader.page.get_by_role("link", name="solo").wait_for()
    assert await reader.page.get_by_role("link", name="orders").count() == 0


async def test_a_tombstone_takes_the_topic_off_one_node(daemons: Cluster, reader: Reader) -> None:
    first, second = daemons.nsqds[:2]
    await reader.goto("/topics/orders")
    await reader.page.get_by_label(f"Actions for node {node_of(first)}").click()
    await reader.act("Tombstone", "orders")
    assert await topic(first) is None
    assert await topic(second) is not None


async def test_a_topic_is_created_at_nsqlookupd(daemons: Cluster, reader: Reader) -> None:
    await reader.goto("/lookup")
    await reader.page.get_by_label("Topic", exact=True).fill("fresh")
    await reader.page.get_by_role("button", name="Create").click()
    assert "Done." in await reader.text()
    await daemons.registered("fresh", 0)
    # A topic without a producer opens, and says so.
    assert await reader.goto("/topics/fresh") == 200
    assert "No nsqd has this topic" in await reader.text()
    await reader.goto("/lookup")
    assert "fresh" in await reader.text("#inactive")
    await reader.act("Delete", "fresh")
    _, told = await daemons.lookupds[0].http("GET", "/topics")
    assert b"fresh" not in told


async def test_a_message_is_published_and_peeked_at(daemons: Cluster, reader: Reader) -> None:
    await reader.goto("/topics/solo")
    await reader.page.get_by_role("link", name="Publish", exact=True).click()
    await reader.page.get_by_role("textbox", name="Message").fill('{"hello":["wörld",\n1]}')
    assert "Done." in await reader.confirm()
    await reader.goto("/peek?topic=solo")
    assert (await reader.text(".message pre")).split() == ["{", '"hello":', "[", '"wörld",', "1", "]", "}"]
    status, answer = await daemons.nsqds[2].http("GET", "/topic/peek?topic=solo")
    assert json.loads(answer)["messages"][0]["body"] == '{"hello":["wörld",\n1]}'
    assert status == 200


async def test_a_channel_is_moved_after_a_preview(daemons: Cluster, reader: Reader) -> None:
    for nsqd in daemons.nsqds[:2]:
        await nsqd.post("/channel/empty?topic=orders&channel=archive")
    await reader.goto("/seek?topic=orders&channel=archive")
    await reader.page.get_by_label("The beginning").check()
    await reader.page.get_by_role("button", name="Preview").click()
    again = reader.page.locator("td[data-label='Delivered again']")
    await again.nth(1).wait_for()
    assert sorted(await again.all_inner_texts()) == ["3", "4"]
    await reader.page.locator("input[name=confirm]").fill("archive")
    await reader.page.get_by_role("button", name="Move the channel").click()
    assert "Done." in await reader.text()
    depths = []
    for nsqd in daemons.nsqds[:2]:
        told = await topic(nsqd)
        assert told is not None
        depths.append(told["channels"][0]["depth"])
    assert depths == [3, 4]


async def test_dead_letters_are_shown_and_sent_back(daemons: Cluster, reader: Reader) -> None:
    first = daemons.nsqds[0]
    await first.post("/channel/max_attempts?topic=orders&channel=archive&to=1")
    async with await first.connect() as client:
        await client.sub("orders", "archive", rdy=3)
        for _ in range(3):
            client.req(await client.message())
        await client.caught_up()

    async def waiting() -> int:
        dead = await topic(first, "orders.archive.dead")
        return dead["channels"][0]["depth"] if dead and dead["channels"] else 0

    async def all_dead() -> bool:
        return await waiting() == 3

    await until(all_dead)
    await reader.goto("/dead?topic=orders&channel=archive")
    assert "3 waiting" in await reader.text()
    assert await reader.page.locator(".message pre").all_inner_texts() == ["message"] * 3
    await reader.check_access()
    chosen = reader.page.locator(".message").nth(1)
    name = await chosen.locator("dd.mono").inner_text()
    assert "1 sent back" in await reader.act(f"Send back {name}")
    assert await waiting() == 2
    await reader.goto("/dead?topic=orders&channel=archive")
    left = await reader.page.locator(".message dd.mono").all_inner_texts()
    assert len(left) == 2
    assert name not in left
    gone = f"/act?do=redeliver-letter&topic=orders&channel=archive&node=127.0.0.1:{first.http_port}&id={name}"
    await reader.goto(gone)
    await reader.page.get_by_role("button", name="Send back").click()
    assert "DEAD_LETTER_NOT_FOUND" in await reader.text()
    await reader.goto("/dead?topic=orders&channel=archive")
    assert "1 sent back" in await reader.act("Send back the oldest")
    assert await waiting() == 1
    await reader.goto("/dead?topic=orders&channel=archive")
    assert "1 sent back" in await reader.act("Send back all")
    assert await waiting() == 0


@pytest.mark.parametrize("wrong", ["", "&id=nope", "&id=0123456789abcdef", "&node=127.0.0.1:1&id=nope"])
async def test_a_dead_letter_is_chosen_by_node_and_id(admin: Admin, wrong: str) -> None:
    asked = await admin.get(f"/act?do=redeliver-letter&topic=orders&channel=archive{wrong}")
    assert asked.status == 400


async def test_a_node_that_fails_is_named_and_the_others_do_it(daemons: Cluster, browser: Browser) -> None:
    await daemons.fill()
    first, dead = daemons.nsqds[:2]
    flags = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in (first, dead)]
    async with serving(*flags) as admin, reading(browser, admin.address) as reader:
        await reader.goto("/topics/orders")
        dead.kill()
        result = await reader.act("Pause")
        assert "It was done in part." in result
        assert dead.http_address in result
        assert (await paused(first))[0]


async def test_an_action_works_without_scripts(daemons: Cluster, admin: Admin, browser: Browser) -> None:
    async with reading(browser, admin.address, java_script_enabled=False) as reader:
        await reader.goto("/topics/orders")
        await reader.page.get_by_role("link", name="Pause", exact=True).click()
        await reader.page.get_by_role("button", name="Pause", exact=True).click()
        assert "Done." in await reader.text()
    assert [(await paused(nsqd))[0] for nsqd in daemons.nsqds[:2]] == [True, True]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_another_site_cannot_act_through_a_readers_browser(
    daemons: Cluster, admin: Admin, headers: dict[str, str]
) -> None:
    answer = await admin.ask("POST", "/act?do=pause&topic=orders", Content_Type=FORM, **headers)
    assert answer.status == 403
    assert (await paused(daemons.nsqds[0]))[0] is False


@pytest.mark.parametrize(
    ("path", "form", "status"),
    [
        ("/act?do=explode&topic=orders", {}, 400),
        ("/act?do=pause&topic=../../etc", {}, 400),
        ("/act?do=pause", {}, 400),
        ("/act?do=delete&topic=orders", {"confirm": "order"}, 400),
        ("/act?do=delete&topic=orders&node=127.0.0.1:1", {"confirm": "orders"}, 400),
        ("/act?do=pause&topic=orders&node=127.0.0.1:1", {}, 404),
        ("/act?do=publish&topic=orders", {"body": ""}, 400),
        ("/act?do=publish&topic=orders", {"body": "x", "defer": "soon"}, 400),
        ("/act?do=publish&topic=orders", {"body": "x" * (3 << 20)}, 413),
        ("/act?do=pause&topic=nobody", {}, 404),
        ("/seek?topic=orders&channel=archive", {"place": "at", "to": "yesterday", "confirm": "archive"}, 400),
        ("/seek?topic=orders&channel=archive", {"place": "at", "to": "5", "confirm": "archive"}, 400),
        ("/seek?topic=orders&channel=archive", {"place": "earliest"}, 400),
    ],
)
async def test_what_is_wrong_with_a_request_is_said_and_nothing_is_done(
    daemons: Cluster, admin: Admin, path: str, form: dict[str, str], status: int
) -> None:
    before = await state(daemons.nsqds[0])
    answer = await admin.ask("POST", path, urlencode(form).encode(), Content_Type=FORM)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert await state(daemons.nsqds[0]) == before
