"""What every page is served with."""

from __future__ import annotations

import re

import pytest
from starlette.requests import Request

from nsquark.nsqadmin.cluster import Cluster
from nsquark.nsqadmin.pages import Pages
from nsquark.nsqadmin.upstream import Upstream
from tests.nsqadmin import served
from tests.nsqadmin.served import Admin, serving


@pytest.mark.parametrize(
    "path", ["/", "/topics/orders", "/lookup", "/topics/nobody", "/act?do=x", "/history?of=cluster"]
)
async def test_nothing_inline_and_nothing_from_elsewhere(admin: Admin, path: str) -> None:
    answer = await admin.get(path)
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    text = answer.body.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)
    assert not re.search(r"(?:src|<link[^>]*href)=[\"'](?:https?:)?//", text)


async def test_assets_are_served_with_their_types_and_no_other_file_is(admin: Admin) -> None:
    assert (await admin.get("/static/nsqadmin.css")).headers["content-type"] == "text/css; charset=utf-8"
    script = await admin.get("/static/uplot/uPlot.iife.min.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("/static/", "/static/../site.py", "/static/%2e%2e/site.py", "/static/uplot"):
        assert (await admin.get(path)).status == 404, path


async def test_an_asset_that_a_browser_has_is_not_sent_again(admin: Admin) -> None:
    first = await admin.get("/static/nsqadmin.css")
    tag = first.headers["etag"]
    again = await admin.get("/static/nsqadmin.css", If_None_Match=tag)
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    other = await admin.get("/static/nsqadmin.css", If_None_Match='W/"0-0"')
    assert (other.status, other.body) == (200, first.body)


async def test_under_a_base_path_every_address_has_it(daemons: served.Cluster) -> None:
    await daemons.fill()
    async with serving(*daemons.flags, "--base-path=/ops/nsq") as admin:
        for path in ("/ops/nsq", "/ops/nsq/topics/orders", "/ops/nsq/act?do=pause&topic=orders"):
            text = (await admin.get(path)).body.decode()
            addresses = re.findall(r"(?:href|src|action|data-history)=\"(/[^\"]*)\"", text)
            assert addresses
            assert [each for each in addresses if not each.startswith("/ops/nsq")] == []


async def test_dashboards_are_linked_unless_their_address_holds_a_login(daemons: served.Cluster) -> None:
    flags = (
        "--grafana-url=https://grafana.example/d/nsq",
        "--graphite-url=http://me:secret@graphite.example",
    )
    async with serving(*daemons.flags, *flags) as admin:
        text = (await admin.get("/")).body.decode()
        assert 'href="https://grafana.example/d/nsq"' in text
        assert "secret" not in text


async def test_text_that_no_encoding_has_breaks_no_page() -> None:
    # JSON can hold half a surrogate pair, and an nsqd of another make may pass it on.
    upstream = Upstream()
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
    values = {"title": "half \ud800", "text": "", "advice": ""}
    page = Pages(Cluster(upstream)).site.render(request, "error.html", values)
    upstream.close()
    assert b"half \\ud800" in page.body


@pytest.mark.parametrize(
    "path", ["/nodes/%ff%00", "/topics/%ed%a0%80", "/search?q=%ed%a0%80%00", "/?q=%00&sort=%ff"]
)
async def test_an_address_that_is_no_text_breaks_no_page(admin: Admin, path: str) -> None:
    assert (await admin.get(path)).status < 500
