"""Automata with a fault on purpose, which prove that the simulator sees it.

A mutant is a set of replaced methods; `Mutant.in_force` puts them in place for as long as it is entered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from nsquark.nsqd.replica.automaton.actions import Acquisition
from nsquark.nsqd.replica.automaton.automaton import Automaton
from nsquark.nsqd.replica.automaton.commit_rule import CommitRule
from nsquark.nsqd.replica.automaton.following import Following
from nsquark.nsqd.replica.automaton.group import GroupState
from nsquark.nsqd.replica.automaton.incarnation import StoredMember, incarnation_at_start
from nsquark.nsqd.replica.automaton.leading import Leading


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str = "correct"
    replaced: tuple[tuple[type, str, Any], ...] = ()
    incarnation_at_start: Callable[[str, StoredMember | None, str, str], str] = field(
        default=incarnation_at_start
    )
    automaton: Callable[..., Automaton] = Automaton

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for kind, name, method in self.replaced:
                stack.enter_context(mock.patch.object(kind, name, method))
            yield


CORRECT = Mutant()

_remove = Leading._remove
_acquire = Automaton._acquire
_acknowledged = Leading.acknowledged


def _remove_at_once(self: Leading, late: set[str]) -> set[str]:
    kept = _remove(self, late)
    if self._changing is not None and self._changing.removing:
        self.rule.isr = frozenset(self._changing.state.isr)
    return kept


def _keep(name: str, stored: StoredMember | None, boot_id: str, unique: str) -> str:
    return stored.incarnation if stored is not None else f"{name}@{unique}"


def _local(self: CommitRule) -> int:
    return self.local


def _not_waited_for(self: CommitRule, member: str) -> None:
    pass


def _any_term(self: Leading, now: float, incarnation: str, term: int, written: int, synced: int) -> None:
    _acknowledged(self, now, incarnation, self.term, written, synced)


def _with_old_primary(self: Automaton, kind: Acquisition) -> None:
    _acquire(self, kind)
    campaign, seen = self._campaign, self._session.view.state
    if campaign is not None and seen is not None and kind is Acquisition.CAMPAIGN:
        coming = campaign.state
        campaign.state = GroupState(coming.node, coming.term, coming.primary, seen.isr)


def _always_settled(self: Following, now: float) -> Acquisition | None:
    settled, self.directory.settled = self.directory.settled, True
    try:
        return _acquisition(self, now)
    finally:
        self.directory.settled = settled


_acquisition = Following.acquisition


def _serve_at_once(self: Leading, now: float) -> None:
    _opened(self, now)
    rule = self.rule
    if not self.serving:
        isr, rule.isr = rule.isr, frozenset((rule.me,))
        self._release(now)
        rule.isr = isr


_opened = Leading.opened


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("remove-before-confirmation", ((Leading, "_remove", _remove_at_once),)),
        Mutant("keep-incarnation", incarnation_at_start=_keep),
        Mutant("deliver-early", ((CommitRule, "committed", _local),)),
        Mutant("add-without-waiting", ((CommitRule, "add", _not_waited_for),)),
        Mutant("wrong-term", ((Leading, "acknowledged", _any_term),)),
        Mutant("old-primary-in-isr", ((Automaton, "_acquire", _with_old_primary),)),
        Mutant("lead-unsettled", ((Following, "acquisition", _always_settled),)),
        Mutant("serve-before-copies", ((Leading, "opened", _serve_at_once),)),
    )
}
