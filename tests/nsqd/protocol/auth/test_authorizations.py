"""An auth server's answer, and what it allows."""

from __future__ import annotations

import json
import time

import pytest

from nsquark.nsqd.protocol.auth.authorizations import (
    LONGEST_TTL,
    PUBLISH,
    SUBSCRIBE,
    Authorizations,
    parse_answer,
)


def parse(*entries: dict[str, object], **fields: object) -> Authorizations:
    return parse_answer(json.dumps({"ttl": 10, "authorizations": entries, **fields}).encode())


def entry(topic: str, *channels: str) -> dict[str, object]:
    return {"topic": topic, "channels": channels, "permissions": ["subscribe", "publish"]}


def test_an_answer_may_leave_out_what_is_optional() -> None:
    answer = parse_answer(b'{"ttl": 5, "identity": null, "else": 1}')
    assert (answer.ttl, answer.identity, answer.identity_url, answer.entries) == (5, "", "", [])


def test_keys_may_be_written_as_a_server_in_go_writes_them() -> None:
    entry = b'{"Topic": "^t$", "Channels": ["c"], "Permissions": ["subscribe"]}'
    answer = parse_answer(b'{"TTL": 5, "Identity": "me", "Authorizations": [%b]}' % entry)
    assert (answer.ttl, answer.identity) == (5, "me")
    assert answer.allows(SUBSCRIBE, "t", "c")


def test_an_entry_may_leave_out_everything() -> None:
    answer = parse({})
    assert not answer.allows(PUBLISH, "t")
    assert not answer.allows(SUBSCRIBE, "t", "c")


def test_a_time_beyond_reason_is_cut() -> None:
    assert parse(ttl=1 << 62).ttl == LONGEST_TTL


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl": "10"},
        {"identity": 1},
        {"authorizations": {}},
        {"authorizations": [[]]},
        {"authorizations": [{"topic": 1}]},
        {"authorizations": [{"channels": "c"}]},
        {"authorizations": [{"channels": [1]}]},
        {"authorizations": [{"permissions": ["Publish"]}]},
        {"authorizations": [{"topic": "[a"}]},
        {"authorizations": [{"topic": r"(a)\1"}]},  # RE2 has no memory
    ],
)
def test_what_is_no_answer(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        parse(**fields)


def test_any_entry_suffices_but_one_must() -> None:
    answer = parse(entry("^a$", "^x$"), entry("^b$", "^y$"))
    assert answer.allows(SUBSCRIBE, "a", "x")
    assert answer.allows(SUBSCRIBE, "b", "y")
    assert not answer.allows(SUBSCRIBE, "a", "y")


def test_a_pattern_that_would_take_python_ages() -> None:
    answer = parse(entry("^(a+)+$", ".*"))
    began = time.monotonic()
    assert not answer.allows(PUBLISH, "a" * 60 + "b")
    assert time.monotonic() - began < 5


def test_what_is_remembered_is_bounded() -> None:
    answer = parse(entry("^a", ".*"))
    for number in range(5000):
        assert answer.allows(PUBLISH, f"a{number}")
        assert not answer.allows(PUBLISH, f"b{number}")
    assert len(answer._known) <= 1024


@pytest.mark.parametrize(
    ("topic", "channels", "everything"),
    [
        (".*", [".*"], True),
        ("", [""], True),
        ("^.*$", ["x", ".*"], True),
        (".", [".*"], True),
        (".*", [".+"], False),
        (".*", [], False),
        ("^[a-z]", [".*"], False),
        (r"^[\w.-]+$", [".*"], False),  # not the ephemeral ones
        ("^t$", [".*"], False),
    ],
)
def test_what_covers_everything(topic: str, channels: list[str], everything: bool) -> None:
    assert parse(entry(topic, *channels)).allows_all() is everything
