"""The small parts of pages: whatever a text holds, it stays text."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from nsquark.nsqadmin.cluster.stats import parse_client
from nsquark.nsqadmin.pages.parts import cells

EVIL = "\"'><img src=x onerror=alert(1)>"
SAFE = "&#34;&#39;&gt;&lt;img src=x onerror=alert(1)&gt;"


def test_numbers_have_separators_and_nothing_is_grey() -> None:
    assert cells.tds(("Depth", 1234), ("Rate", "0"), ("At", None), ("Nodes", 1, False, True)) == (
        '<td role="cell" class="n" data-label="Depth">1,234</td>'
        '<td role="cell" class="n zero" data-label="Rate">0</td>'
        '<td role="cell" class="n" data-label="At">–</td>'
        '<td role="cell" class="n low" data-label="Nodes">1</td>'
    )


@pytest.mark.parametrize(
    "made",
    [
        cells.td(EVIL, EVIL),
        cells.th(EVIL),
        cells.ths(EVIL, EVIL),
        cells.figure(EVIL, EVIL, EVIL, EVIL),
        cells.menu(EVIL, [(EVIL, EVIL, "danger")]),
        cells.crumbs([(EVIL, EVIL)], EVIL),
        cells.chart(EVIL, EVIL, EVIL, EVIL),
        cells.button(EVIL, EVIL, EVIL),
    ],
)
def test_a_text_that_is_markup_stays_text(made: str) -> None:
    assert SAFE in made
    assert "<img" not in made


def test_text_that_was_markup_elsewhere_is_escaped_all_the_same() -> None:
    assert cells.safe(Markup("<b>markup</b>")) == "&lt;b&gt;markup&lt;/b&gt;"
    assert cells.safe("<b>markup</b>") == "&lt;b&gt;markup&lt;/b&gt;"


def test_whatever_a_client_says_of_itself_stays_text() -> None:
    keys = ("remote_address", "client_id", "hostname", "user_agent", "auth_identity", "auth_identity_url",
            "tls_version", "tls_cipher_suite", "tls_negotiated_protocol")  # fmt: skip
    told = dict.fromkeys(keys, EVIL) | {"tls": True, "authed": True, "snappy": True, "sample_rate": 50}
    client = parse_client(told, "node", 0)
    for made in (cells.client_name(client), cells.client_tags(client)):
        assert SAFE in made
        assert "<img" not in made
    assert "sampled 50 %" in cells.client_tags(client)


@pytest.mark.parametrize(("url", "linked"), [("https://id.example/me", True), ("javascript:alert(1)", False)])
def test_an_identity_is_linked_to_the_web_alone(url: str, linked: bool) -> None:
    client = parse_client({"authed": True, "auth_identity": "me", "auth_identity_url": url}, "node", 0)
    assert ("<a " in cells.client_tags(client)) is linked


def test_an_id_that_says_no_more_than_the_host_is_left_out() -> None:
    client = parse_client({"client_id": "worker1", "hostname": "worker1.example"}, "node", 0)
    assert "(worker1)" not in cells.client_name(client)
