"""What is written down of an application reads back as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsquark.nsqd.staged.application import App, Home, State, parse_state


def app(**known: object) -> App:
    made = App("nightly", Path("/nowhere"), 0.0)
    for name, value in known.items():
        setattr(made, name, value)
    return made


def test_a_new_application_has_published_nothing() -> None:
    assert parse_state(app().as_json()) == State(-1, {}, None, "", -1, None)
    assert not app().is_known(0)


def test_everything_that_must_survive_reads_back() -> None:
    home = Home("node", "http://a:1")
    made = app(last=7, published={6: {"t": 1}, 7: {"t": 2, "u": 3}}, note="done", prepared=8, home=home)
    known = State(7, {6: {"t": 1}, 7: {"t": 2, "u": 3}}, None, "done", 8, home)
    assert parse_state(made.as_json()) == known
    assert made.is_known(7)
    assert not made.is_known(8)


def test_a_file_of_an_older_release_reads() -> None:
    assert parse_state(b'{"last":3,"published":[],"publishing":null}') == State(3, {}, None, "", -1, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"last":"x","published":[],"publishing":null}',
        b"\xff",
        b'{"last":Infinity,"published":[],"publishing":null}',
        b'{"last":1,"published":[],"publishing":{"batch":2,"time_ns":1,"parts":[],"shares":5}}',
        b"[" * 100_000,
    ],
)
def test_what_does_not_read_is_not_guessed(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        parse_state(data)


def test_the_file_is_json_with_its_version() -> None:
    assert json.loads(app().as_json())["version"] == 1
