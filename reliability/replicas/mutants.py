"""Automata with a fault on purpose, which prove that the simulator sees it.

A mutant is a subclass of what it is a mutant of, so that the simulator runs the same code as nsqd, compiled
or not. Beside it stands the automaton that has it in the place of the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
    automaton: type[Automaton] = Automaton
    incarnation_at_start: Callable[[str, StoredMember | None, str, str], str] = field(
        default=incarnation_at_start
    )


CORRECT = Mutant()


def _keep(name: str, stored: StoredMember | None, boot_id: str, unique: str) -> str:
    return stored.incarnation if stored is not None else f"{name}@{unique}"


# ---- a primary


def leads_as(kind: type[Leading]) -> type[Automaton]:
    class LeadsOtherwise(Automaton):
        def new_leading(self, state: GroupState, revision: int, now: float, new_epochs: bool) -> Leading:
            return kind(self._settings, self._session, self.wanted, self.me, state, revision, now, new_epochs)

    return LeadsOtherwise


def commits_by(kind: type[CommitRule]) -> type[Automaton]:
    class Commits(Leading):
        def new_rule(self, me: str, isr: Iterable[str], revision: int) -> CommitRule:
            return kind(me, isr, revision)

    return leads_as(Commits)


class RemovesAtOnce(Leading):
    def _remove(self, late: set[str]) -> set[str]:
        kept = super()._remove(late)
        if self._changing is not None and self._changing.removing:
            self.rule.isr = frozenset(self._changing.state.isr)
            self.rule._update()
        return kept


class CountsAnyTerm(Leading):
    def acknowledged(self, now: float, incarnation: str, term: int, written: int, synced: int) -> None:
        super().acknowledged(now, incarnation, self.term, written, synced)


class ServesAtOnce(Leading):
    def opened(self, now: float) -> None:
        super().opened(now)
        rule = self.rule
        if not self.serving:
            isr, rule.isr = rule.isr, frozenset((rule.me,))
            rule._update()
            self._release(now)
            rule.isr = isr
            rule._update()


class DeliversEarly(CommitRule):
    def committed(self) -> int:
        return self.local


class AddsWithoutWaiting(CommitRule):
    def add(self, member: str) -> None:
        pass


# ---- a member that does not lead


class AlwaysSettled(Following):
    def acquisition(self, now: float) -> Acquisition | None:
        settled, self.directory.settled = self.directory.settled, True
        try:
            return super().acquisition(now)
        finally:
            self.directory.settled = settled


class LeadsUnsettled(Automaton):
    def new_following(self, now: float) -> Following:
        return AlwaysSettled(self._settings, self._session, self.wanted, self.directory, now)


class KeepsOldPrimary(Automaton):
    def _acquire(self, kind: Acquisition) -> None:
        super()._acquire(kind)
        campaign, seen = self._campaign, self._session.view.state
        if campaign is not None and seen is not None and kind is Acquisition.CAMPAIGN:
            coming = campaign.state
            campaign.state = GroupState(coming.node, coming.term, coming.primary, seen.isr)


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("remove-before-confirmation", leads_as(RemovesAtOnce)),
        Mutant("keep-incarnation", incarnation_at_start=_keep),
        Mutant("deliver-early", commits_by(DeliversEarly)),
        Mutant("add-without-waiting", commits_by(AddsWithoutWaiting)),
        Mutant("wrong-term", leads_as(CountsAnyTerm)),
        Mutant("old-primary-in-isr", KeepsOldPrimary),
        Mutant("lead-unsettled", LeadsUnsettled),
        Mutant("serve-before-copies", leads_as(ServesAtOnce)),
    )
}
