"""Complaints are said once in a while."""

from __future__ import annotations

import logging

import pytest

from nsquark.net.rate_limited_log import Seldom


def test_one_of_a_kind_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("test"), every=3600)
    for number in range(10):
        seldom.warn("this, %d", number)
        seldom.warn("that, %d", number)
    assert [record.getMessage() for record in caplog.records] == ["this, 0", "that, 0"]


def test_what_was_left_out_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("test"), every=3600)
    for number in range(4):
        seldom.warn("this, %d", number)
    seldom._every = 0.0
    seldom.warn("this, %d", 4)
    seldom.warn("this, %d", 5)
    assert [record.getMessage() for record in caplog.records] == [
        "this, 0",
        "this, 4 (and 3 more like this since the last such line)",
        "this, 5",
    ]
