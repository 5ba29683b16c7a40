"""Peeks and dead letters: what another program answers is shown, or said to be missing."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from nsquark.nsqadmin.pages.views.messages import parse_letter, peeked
from tests.daemon import Nsqd
from tests.nsqadmin.served import Admin, Cluster, serving

GO_NSQD = Path(os.environ.get("NSQUARK_GO_BIN", "/nowhere")) / "nsqd"


def test_a_dead_letter_is_shown_as_the_message_that_it_was() -> None:
    head = '{"topic":"orders","id":"9a4","position":7,"attempts":5,"timestamp":1,"died":2}'
    letter = parse_letter({"id": "other", "size": 99, "body": f"{head}\nhello\nworld"})
    assert letter["body"] == "hello\nworld"
    assert (letter["id"], letter["attempts"], letter["died"], letter["size"]) == ("9a4", 5, 2, 11)


def test_a_binary_dead_letter_is_shown_without_its_history() -> None:
    packed = b'{"id":"0123456789abcdef","position":7}\n\xff\x00\n'
    letter = parse_letter({"id": "other", "size": 99, "body_base64": b64encode(packed).decode()})
    assert (letter["id"], letter["letter"], letter["size"]) == ("0123456789abcdef", "0123456789abcdef", 3)
    assert b64decode(letter["body_base64"]) == b"\xff\x00\n"


@pytest.mark.parametrize("name", ['"9a4"', "7", '"0123456789abcdeg"', "null"])
def test_a_letter_whose_id_is_none_cannot_be_chosen(name: str) -> None:
    assert parse_letter({"body": f'{{"id":{name}}}\nhello'})["letter"] == ""


@pytest.mark.parametrize("body", ["hello", "[1]\nhello", "", "\n", '{"id":'])
def test_what_is_no_dead_letter_is_left_as_it_is(body: str) -> None:
    assert parse_letter({"body": body}) == {"body": body, "letter": ""}


async def test_a_stranger_among_the_dead_letters_is_shown_and_cannot_be_sent_back(
    daemons: Cluster, admin: Admin
) -> None:
    first = daemons.nsqds[0]
    await first.post("/topic/create?topic=orders.archive.dead")
    await first.post("/channel/create?topic=orders.archive.dead&channel=redeliver")
    await first.post("/pub?topic=orders.archive.dead", b"no letter")
    page = (await admin.get("/dead?topic=orders&channel=archive")).body.decode()
    assert "no letter" in page
    assert "redeliver-letter" not in page


@pytest.mark.parametrize("answer", [{}, {"messages": None}, {"messages": [1, None, "x"]}])
def test_an_answer_of_another_shape_has_no_messages(answer: dict[str, object]) -> None:
    assert peeked(answer) == []


def test_a_field_of_another_type_is_left_out() -> None:
    (message,) = peeked({"messages": [{"id": ["x"], "timestamp": "soon", "size": True, "body": "hello"}]})
    assert (message["id"], message["timestamp"], message["size"], message["body"]) == ("", None, 0, "hello")


async def test_every_nsqd_has_its_turn(daemons: Cluster, admin: Admin) -> None:
    page = (await admin.get("/peek?topic=orders&channel=archive&limit=2")).body.decode()
    assert page.count("<article") == 2
    for nsqd in daemons.nsqds[:2]:
        assert f"<dd>127.0.0.1:{nsqd.http_port}</dd>" in page


async def test_a_state_or_a_topic_that_cannot_be_is_refused(admin: Admin) -> None:
    for path in (
        "/peek?topic=orders&channel=archive&state=gone",
        "/peek",
        "/peek?topic=a/b",
        "/dead?topic=orders",
    ):
        assert (await admin.get(path)).status == 400, path
    assert (await admin.get("/peek?topic=nobody")).status == 404


@pytest.mark.skipif(not GO_NSQD.exists(), reason="NSQUARK_GO_BIN names no Go binaries")
async def test_against_gos_nsqd_the_extra_parts_say_why_they_are_not_there(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "data", "--broadcast-address=127.0.0.1")
    nsqd.program = [str(GO_NSQD)]
    with nsqd.start():
        await nsqd.post("/topic/create?topic=orders")
        await nsqd.post("/channel/create?topic=orders&channel=archive")
        async with serving(f"--nsqd-http-address={nsqd.http_address}") as admin:
            names = "topic=orders&channel=archive"
            for path in (
                f"/peek?{names}",
                f"/dead?{names}",
                f"/seek?{names}&place=earliest",
                "/peek?topic=orders",
            ):
                answer = await admin.get(path)
                assert answer.status == 200
                assert "runs NSQ&#39;s own nsqd, which does not offer this" in answer.body.decode(), path
            assert (await admin.get("/pipelines")).status == 200
