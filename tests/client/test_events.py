"""The hook for events."""

from __future__ import annotations

import pytest

from nsquark.client.events import Connected, Event, call_hook


def test_the_hook_gets_the_event() -> None:
    got: list[Event] = []
    call_hook(got.append, Connected("a:1"))
    call_hook(None, Connected("a:1"))
    assert got == [Connected("a:1")]


def test_a_hook_that_fails_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("oops")

    call_hook(fail, Connected("a:1"))
    assert "on_event failed on Connected" in caplog.text
