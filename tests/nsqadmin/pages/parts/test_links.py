"""Addresses of pages."""

from __future__ import annotations

from nsquark.nsqadmin.pages.parts.links import Links


def test_ephemeral_names_are_encoded() -> None:
    assert Links("/").channel("a#ephemeral", "b") == "/topics/a%23ephemeral/b"


def test_everything_lies_under_the_base_path() -> None:
    link = Links("/admin/nsq")
    assert link.home() == "/admin/nsq"
    assert link.node("[::1]:4151") == "/admin/nsq/nodes/%5B::1%5D:4151"
    assert link("/peek", topic="a#ephemeral", channel="") == "/admin/nsq/peek?topic=a%23ephemeral"
    assert link.history("channel", "a/b", "c") == "/admin/nsq/history?of=channel%2Fa%252Fb%2Fc"
