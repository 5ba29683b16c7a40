"""Notifications of what was done, to an endpoint that is there and to one that is not."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator

import pytest

from nsquark.nsqadmin.notifications import basic_user
from tests.daemon import until
from tests.http.web import Web, answer
from tests.nsqadmin.served import Cluster, free_address, serving

PAUSE = {"action": "pause"}


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as web:
        yield web


async def test_every_action_is_told_once_and_in_order(daemons: Cluster, web: Web) -> None:
    await daemons.fill()
    node = daemons.nsqds[2].http_address
    async with serving(*daemons.flags, f"--notification-http-endpoint={web.url}/hook?key=1") as admin:
        for method, path, body in (
            ("POST", "/api/topics", {"topic": "new"}),
            ("POST", "/api/topics", {"topic": "orders", "channel": "newc"}),
            ("POST", "/api/topics/orders", PAUSE),
            ("POST", "/api/topics/orders", {"action": "unpause"}),
            ("POST", "/api/topics/orders", {"action": "empty"}),
            ("POST", "/api/topics/orders/archive", PAUSE),
            ("POST", "/api/topics/orders/archive", {"action": "unpause"}),
            ("POST", "/api/topics/orders/archive", {"action": "empty"}),
            ("DELETE", "/api/topics/orders/archive", b""),
            ("DELETE", f"/api/nodes/{node}", {"topic": "solo"}),
            ("DELETE", "/api/topics/orders", b""),
        ):
            await admin.done(method, path, body)
        for method, path, body in (
            ("POST", "/api/topics/nope", PAUSE),  # 502
            ("POST", "/api/topics/orders", {"action": "nope"}),
            ("POST", "/api/topics", {"topic": "?"}),
        ):
            assert (await admin.ask(method, path, body)).status >= 400
        await until(lambda: len(web.got) == 12)
    told = [json.loads(got.body) for got in web.got]
    assert [(each["action"], each["topic"], each.get("channel"), each.get("node")) for each in told] == [
        ("create_topic", "new", None, None),
        ("create_topic", "orders", None, None),
        ("create_channel", "orders", "newc", None),
        ("pause_topic", "orders", None, None),
        ("unpause_topic", "orders", None, None),
        ("empty_topic", "orders", None, None),
        ("pause_channel", "orders", "archive", None),
        ("unpause_channel", "orders", "archive", None),
        ("empty_channel", "orders", "archive", None),
        ("delete_channel", "orders", "archive", None),
        ("tombstone_topic_producer", "solo", None, node),
        ("delete_topic", "orders", None, None),
    ]
    assert {(got.method, got.target, got.headers["content-type"]) for got in web.got} == {
        ("POST", "/hook?key=1", "application/json")
    }


async def test_a_notification_says_who_whence_and_where(web: Web) -> None:
    flags = (
        f"--nsqd-http-address={free_address()}",
        f"--notification-http-endpoint={web.url}",
        "--base-path=a",
    )
    async with serving(*flags) as admin:
        await admin.ask(
            "POST",
            "/a/api/topics?foo=b%20r",
            {"topic": "new"},
            Authorization="Basic ZGF2ZTpzZWNyZXQ=",
            User_Agent="UA/1",
            X_Scheme="https",
            X_Forwarded_For="10.0.0.1",
        )
        await until(lambda: web.got)
    told = json.loads(web.got[0].body)
    assert abs(told.pop("timestamp") - time.time()) < 60
    assert told.pop("remote_ip").startswith("127.0.0.1:")
    assert told == {
        "action": "create_topic",
        "topic": "new",
        "user": "dave",
        "user_agent": "UA/1",
        "url": f"https://{admin.address}/a/api/topics?foo=b%20r",
        "via": os.uname().nodename,
    }


async def test_an_endpoint_that_fails_or_is_gone_hurts_nobody(web: Web) -> None:
    web.answers["/"] = answer(500)
    for endpoint in (web.url + "/", f"http://{free_address()}/"):
        nsqd = f"--nsqd-http-address={free_address()}"
        async with serving(nsqd, f"--notification-http-endpoint={endpoint}") as admin:
            for _ in range(3):
                await admin.done("POST", "/api/topics", {"topic": "new"})
            assert (await admin.get("/ping")).status == 200


@pytest.mark.parametrize(
    ("header", "user"),
    [
        ("Basic ZGF2ZTpzZWNyZXQ=", "dave"),
        ("basic ZGF2ZTpzOmVj", "dave"),
        ("Basic ZGF2ZQ==", ""),
        ("Basic !", ""),
        ("Bearer ZGF2ZTpz", ""),
        ("", ""),
    ],
)
def test_the_user_is_that_of_basic_authentication(header: str, user: str) -> None:
    assert basic_user(header) == user
