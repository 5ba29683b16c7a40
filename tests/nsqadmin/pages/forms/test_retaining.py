"""How much of a topic is kept: what a form may say, what each nsqd is told, and what the page shows."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import Browser

from nsquark.nsqadmin.pages.forms.retaining import parse_bytes, parse_form, parse_time
from nsquark.nsqadmin.pages.parts.format import kept
from nsquark.nsqadmin.pages.site import PageError
from tests.daemon import Nsqd
from tests.nsqadmin.pages.browser import chromium, needs_chromium, reading
from tests.nsqadmin.served import Admin, Answer, Cluster, serving

HOUR = 3_600_000_000_000
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("72h", f"{72 * HOUR}ns"),
        (" 30d ", f"{30 * 24 * HOUR}ns"),
        ("1h30m", f"{90 * 60 * 10**9}ns"),
        ("0", "0"),
        ("Unlimited", "unlimited"),
        ("default", "default"),
    ],
)
def test_a_time_is_a_duration_days_or_a_word(text: str, told: str) -> None:
    assert parse_time(text) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("500", "500"),
        ("20k", "20480"),
        ("1 GiB", str(1 << 30)),
        ("2TB", str(2 << 40)),
        ("unlimited", "unlimited"),
    ],
)
def test_a_size_is_a_number_with_a_unit_or_a_word(text: str, told: str) -> None:
    assert parse_bytes(text) == told


@pytest.mark.parametrize("text", ["soon", "-1h", "5", "d", "999999999d", "٣h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(PageError, match="is no length of time"):
        parse_time(text)


@pytest.mark.parametrize("text", ["much", "-1", "1.5g", "1x", "999999999999999t", "٣"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(PageError, match="is no number of bytes"):
        parse_bytes(text)


def test_what_is_left_empty_stays_as_it_is() -> None:
    assert parse_form({"time": " ", "bytes": "5k"}) == {"bytes": "5120"}
    assert parse_form({"time": "default"}) == {"time": "default"}
    with pytest.raises(PageError, match="how long, how much"):
        parse_form({"time": "", "confirm": "orders"})


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ((0, 0), "nothing"),
        ((-1, 0), "everything"),
        ((0, -1), "everything"),
        ((1 << 30, -1), "at most 1 GiB"),
        ((0, 25 * HOUR), "1d 1h"),
        ((2048, 24 * HOUR), "1d, at most 2 KiB"),
    ],
)
def test_what_is_kept_is_said_by_the_limits_that_are_set(held: tuple[int, int], told: str) -> None:
    assert kept(*held) == told


async def retention(nsqd: Nsqd) -> tuple[int, int]:
    """Bytes and hours that the nsqd keeps of `orders`."""
    status, body = await nsqd.http("GET", "/topic/retention?topic=orders")
    assert status == 200
    told: dict[str, Any] = json.loads(body)
    return told["retention_bytes"], told["retention_time"] // HOUR


async def post(admin: Admin, node: str = "", **form: str) -> Answer:
    path = f"/act?do=retention&topic=orders&node={node}"
    return await admin.ask("POST", path, urlencode(form).encode(), Content_Type=FORM)


async def test_every_nsqd_of_the_topic_is_told_and_tells_what_it_keeps(
    daemons: Cluster, admin: Admin
) -> None:
    answer = await post(admin, time="7d", bytes="2g", confirm="orders")
    text = answer.body.decode()
    assert answer.status == 200
    assert text.count("keeps 7d, at most 2 GiB") == 2
    assert [await retention(each) for each in daemons.nsqds[:2]] == [(2 << 30, 168)] * 2
    page = (await admin.get("/topics/orders")).body.decode()
    assert page.count('data-label="Retention">7d, at most 2 GiB<') == 2
    answer = await post(admin, time="default", bytes="default", confirm="orders")
    assert answer.body.decode().count("keeps nothing (by its flags)") == 2


async def test_one_nsqd_alone_may_keep_more(daemons: Cluster, admin: Admin) -> None:
    first, second = daemons.nsqds[:2]
    answer = await post(admin, first.http_address, time="unlimited", confirm="orders")
    assert answer.status == 200
    assert first.http_address in answer.body.decode()
    assert second.http_address not in answer.body.decode()
    assert [await retention(each) for each in (first, second)] == [(0, -1), (0, 0)]
    assert (await post(admin, "127.0.0.1:1", time="1h", confirm="orders")).status == 404


async def test_without_the_name_nothing_is_changed_and_nothing_typed_is_lost(
    daemons: Cluster, admin: Admin
) -> None:
    answer = await post(admin, time="7d", bytes='"><b>', confirm="order")
    text = answer.body.decode()
    assert answer.status == 400
    assert "Nothing was done" in text
    assert 'value="7d"' in text
    assert 'value="&#34;&gt;&lt;b&gt;"' in text
    answer = await post(admin, time="soon", confirm="orders")
    assert (answer.status, "is no length of time" in answer.body.decode()) == (400, True)
    assert [await retention(each) for each in daemons.nsqds[:2]] == [(0, 0)] * 2


async def test_a_reader_who_is_no_admin_sees_what_is_kept_and_cannot_change_it(daemons: Cluster) -> None:
    await daemons.fill()
    async with serving(*daemons.flags, "--admin-user=ada") as admin:
        page = (await admin.get("/topics/orders")).body.decode()
        assert page.count('data-label="Retention">nothing<') == 2
        assert "do=retention" not in page
        assert (await post(admin, time="7d", confirm="orders")).status == 403
    assert await retention(daemons.nsqds[0]) == (0, 0)


async def test_an_nsqd_that_hangs_is_named_and_the_others_keep_it(daemons: Cluster, admin: Admin) -> None:
    # nsqlookupd goes on to name an nsqd that hangs: only a connection that ends tells it otherwise.
    first, hanging = daemons.nsqds[:2]
    async with serving(*daemons.flags, "--http-client-request-timeout=500ms") as hasty:
        hanging.process.send_signal(signal.SIGSTOP)
        try:
            answer = await post(hasty, time="24h", confirm="orders")
        finally:
            hanging.process.send_signal(signal.SIGCONT)
    text = answer.body.decode()
    assert 'data-result="partly"' in text
    assert hanging.http_address in text
    assert await retention(first) == (0, 24)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@needs_chromium
@pytest.mark.timeout(180)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_retention_is_set_from_the_page_of_the_topic(
    daemons: Cluster, admin: Admin, browser: Browser, scheme: Any, width: int
) -> None:
    async with reading(
        browser, admin.address, viewport={"width": width, "height": 900}, color_scheme=scheme
    ) as reader:
        await reader.goto("/topics/orders")
        await reader.page.get_by_role("link", name="Retention", exact=True).click()
        dialog = reader.page.locator("dialog[open]")
        await dialog.get_by_label("How long").fill("7d")
        await dialog.get_by_label("How much").fill("1 GiB")
        assert await dialog.get_by_role("button", name="Keep").is_disabled()
        await reader.check_access()
        await reader.shoot(f"retention-dialog-{scheme}-{width}")
        result = await reader.confirm("orders")
        assert result.count("keeps 7d, at most 1 GiB") == 2
        assert [await retention(each) for each in daemons.nsqds[:2]] == [(1 << 30, 168)] * 2
        await reader.page.get_by_role("link", name="Go on").click()
        await reader.page.get_by_role("cell", name="7d, at most 1 GiB").first.wait_for()
        await reader.check_access()
        await reader.shoot(f"retention-topic-{scheme}-{width}")


@needs_chromium
async def test_retention_is_set_without_scripts_on_one_node(
    daemons: Cluster, admin: Admin, browser: Browser
) -> None:
    node = daemons.nsqds[0].http_address
    async with reading(browser, admin.address, java_script_enabled=False) as reader:
        await reader.goto("/topics/orders")
        await reader.page.get_by_label(f"Actions for node {node}").click()
        await reader.page.get_by_role("link", name="Retention here").click()
        await reader.page.get_by_label("How much").fill("unlimited")
        await reader.page.get_by_label("Type orders to confirm").fill("orders")
        await reader.page.get_by_role("button", name="Keep").click()
        assert "keeps everything" in await reader.text()
    assert [await retention(each) for each in daemons.nsqds[:2]] == [(-1, 0), (0, 0)]
