"""A member keeps its incarnation only where it cannot have lost a byte that it acknowledged."""

from __future__ import annotations

import pytest

from nsquark.nsqd.replica.automaton.group import BadGroup
from nsquark.nsqd.replica.automaton.incarnation import StoredMember, incarnation_at_start


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        (StoredMember("a@1", "boot", clean=False, synced_only=False), True),  # the process died
        (StoredMember("a@1", "older", clean=False, synced_only=False), False),  # the power was lost
        (StoredMember("a@1", "older", clean=True, synced_only=False), True),
        (StoredMember("a@1", "older", clean=False, synced_only=True), True),
        (
            StoredMember("a@1", "older", clean=True, synced_only=True, doubtful=("f",)),
            False,
        ),  # an fsync failed
        (StoredMember("a@1", "boot", clean=False, synced_only=True, doubtful=("f",)), True),
        (StoredMember("b@1", "boot", clean=True, synced_only=True), False),  # another member's directory
        (None, False),
    ],
)
def test_what_keeps_an_incarnation(stored: StoredMember | None, kept: bool) -> None:
    assert incarnation_at_start("a", stored, "boot", "2f") == ("a@1" if kept else "a@2f")


def test_a_boot_that_is_not_known_keeps_nothing() -> None:
    assert incarnation_at_start("a", StoredMember("a@1", "", False, False), "", "2f") == "a@2f"


def test_a_bad_name_is_refused() -> None:
    with pytest.raises(BadGroup):
        incarnation_at_start("a@b", None, "boot", "1")
