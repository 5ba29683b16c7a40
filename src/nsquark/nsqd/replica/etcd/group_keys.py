"""The keys of a replica group in etcd, and the transactions that change them.

    <prefix>/<group>/primary           leased: which incarnation leads which term, and its addresses
    <prefix>/<group>/state             lasting: node, term, primary, isr
    <prefix>/<group>/members/<name>    leased: incarnation, whether it is settled, progress, addresses

Every transaction compares the revision of the state, which each change of leader or isr moves. So a request
that was held up on its way cannot take effect after another one has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..automaton.actions import Acquisition, Campaign, ChangeIsr, Reclaim, Resign
from ..automaton.group import BadGroup, GroupState, GroupView, MemberKey, PrimaryKey, check_name, member_of
from .transactions import Answer, Delete, KeyValue, LeasedBy, ModifiedAt, Put, Transaction

PREFIX = "/nsquark"


class GroupKeys:
    """The keys of one group, for the member `me`, which is to be reached at `addresses`."""

    def __init__(
        self, group: str, me: str, addresses: Mapping[str, str] | None = None, prefix: str = PREFIX
    ) -> None:
        self.root = f"{prefix}/{check_name(group)}/".encode()
        self.primary = self.root + b"primary"
        self.state = self.root + b"state"
        self._members = self.root + b"members/"
        self._me = check_name(me)
        self._addresses = dict(addresses or {})

    def member(self, name: str) -> bytes:
        return self._members + name.encode()

    # ---- reading

    def parse(self, answer: Answer) -> GroupView:
        """The group as an answer has it. Raises BadGroup for values that nsqd has not written."""
        return self.view(answer.found, answer.revision)

    def view(self, found: Iterable[KeyValue], revision: int) -> GroupView:
        state, state_revision = None, 0
        primary, primary_revision = None, 0
        members, revisions, leases = {}, {}, {}
        for each in found:
            if each.key == self.state:
                state, state_revision = GroupState.parse(each.value), each.revision
            elif each.key == self.primary:
                primary, primary_revision = PrimaryKey.parse(each.value), each.revision
            elif each.key.startswith(self._members):
                member = MemberKey.parse(each.value)
                name = member_of(member.incarnation)
                if self.member(name) != each.key:
                    raise BadGroup(f"the key {each.key!r} names another member, {name!r}")
                members[name] = member
                revisions[name] = each.revision
                leases[name] = each.lease
        return GroupView(
            revision, state, state_revision, primary, primary_revision, members, revisions, leases
        )

    # ---- writing

    def open_session(self, member: MemberKey, lease: int, seen: int) -> Transaction:
        """Put this member's key, unless it has changed since the revision `seen`.

        Its lease says which process it belongs to.
        """
        key = self.member(self._me)
        return self._transaction((ModifiedAt(key, seen),), Put(key, member.pack(), lease))

    def announce(self, member: MemberKey, lease: int) -> Transaction:
        """Put this member's key again, unless another process has opened a session since."""
        key = self.member(self._me)
        return self._transaction((LeasedBy(key, lease),), Put(key, member.pack(), lease))

    def bootstrap(self, state: GroupState) -> Transaction:
        """Found the group. Nothing else creates the state, even if etcd has lost it."""
        return self._transaction((ModifiedAt(self.state, 0),), Put(self.state, state.pack()))

    def campaign(self, action: Campaign) -> Transaction:
        """Lead, if primary and state are as seen and this process still has its session."""
        seen = action.seen
        compare: list[ModifiedAt | LeasedBy] = [
            ModifiedAt(self.state, seen.state_revision),
            ModifiedAt(self.primary, seen.primary_revision),
            LeasedBy(self.member(self._me), action.lease),
        ]
        if action.kind is Acquisition.SALVAGE and seen.state is not None:
            names = {member_of(incarnation) for incarnation in seen.state.isr} - {self._me}
            compare += [
                ModifiedAt(self.member(name), seen.member_revisions.get(name, 0)) for name in sorted(names)
            ]
        return self._transaction(
            compare, self._put_primary(action.state, action.lease), Put(self.state, action.state.pack())
        )

    def change_isr(self, action: ChangeIsr) -> Transaction:
        return self._transaction(
            (ModifiedAt(self.state, action.state_revision),), Put(self.state, action.state.pack())
        )

    def reclaim(self, action: Reclaim) -> Transaction:
        return self._transaction(
            (ModifiedAt(self.state, action.state_revision),), self._put_primary(action.state, action.lease)
        )

    def resign(self, action: Resign) -> Transaction:
        return self._transaction((ModifiedAt(self.state, action.state_revision),), Delete(self.primary))

    def _put_primary(self, state: GroupState, lease: int) -> Put:
        return Put(self.primary, PrimaryKey(state.primary, state.term, self._addresses).pack(), lease)

    def _transaction(self, compare: Iterable[ModifiedAt | LeasedBy], *writes: Put | Delete) -> Transaction:
        return Transaction(tuple(compare), writes, self.root)
