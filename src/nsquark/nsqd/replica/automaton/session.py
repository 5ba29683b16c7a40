"""A member's dealings with etcd: its lease, what it has read, and which answer belongs to which question.

One question of each kind is under way at most. An answer to a question that was given up is ignored.
"""

from __future__ import annotations

from .actions import Action, OpenSession, ReadGroup, RenewSession
from .group import GroupView, member_of
from .states import Settings

ANSWERS = 3  # reads in a row without an answer after which etcd is taken for away


class Session:
    """`fresh_until` is the time until which etcd keeps the lease, by this member's clock, at the least."""

    def __init__(self, settings: Settings, actions: list[Action], me: str) -> None:
        self.lease = 0
        self.fresh_until = float("-inf")
        self.view = GroupView()
        self._me = me
        self._member = member_of(me)
        self._has_read = False
        self._opened_at = 0  # etcd's revision when the session was opened
        self._settings = settings
        self._actions = actions
        self._number = 0
        self._opening = self._renewing = self._reading = 0
        self._asked = float("-inf")  # when the lease question under way, or the last one, was sent
        self._read_at = self._answered_at = float("-inf")  # the last read, and the last that was answered

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def answers(self, now: float) -> bool:
        """Whether etcd has answered one of the last reads."""
        return now - self._answered_at <= ANSWERS * self._settings.poll

    def fresh(self, now: float) -> bool:
        return self.lease != 0 and now < self.fresh_until

    @property
    def other(self) -> str:
        """The incarnation that has this member's key in place of this one; nothing where none has.

        It is another process of the same name, or one that has ended, whose session has not.
        """
        key = self.view.members.get(self._member)
        return key.incarnation if key is not None and key.incarnation != self._me else ""

    def tick(self, now: float) -> None:
        """Open or renew the session, and read the group, when it is time."""
        settings = self._settings
        if not self._opening and not self._renewing:
            if self.lease == 0:
                # Two directories of one name would take the key from each other again and again.
                if now >= self._asked + settings.retry and self._has_read and not self.other:
                    self._asked = now
                    self._opening = self.next_number()
                    seen = self.view.member_revisions.get(self._member, 0)
                    self._actions.append(OpenSession(self._opening, seen))
            elif now >= self._asked + settings.lease / 3:
                self._asked = now
                self._renewing = self.next_number()
                self._actions.append(RenewSession(self._renewing, self.lease))
        if now >= self._read_at + settings.poll:
            self.read(now)

    def read(self, now: float) -> None:
        """Read the group's keys, unless that is under way."""
        if not self._reading:
            self._read_at = now
            self._reading = self.next_number()
            self._actions.append(ReadGroup(self._reading))

    # ---- answers

    def opened(self, number: int, lease: int, revision: int) -> bool:
        if number != self._opening:
            return False
        self._opening = 0
        self.lease = lease
        self._opened_at = revision
        self.fresh_until = self._asked + self._settings.lease
        return True

    def renewed(self, number: int) -> None:
        if number == self._renewing:
            self._renewing = 0
            self.fresh_until = self._asked + self._settings.lease

    def lost(self, number: int) -> None:
        """Etcd does not know the lease any more."""
        if number == self._renewing:
            self._renewing = self.lease = 0
            self._asked = float("-inf")

    def learned(self, number: int, view: GroupView) -> bool:
        """Whether the view is news. `number` is 0 for a view that a watch or a transaction brought."""
        if number:
            if number != self._reading:
                return False
            self._reading = 0
            self._has_read = True
            self._answered_at = self._read_at
        if view.revision < self.view.revision:
            return False
        self.view = view
        if self.lease and view.revision >= self._opened_at:
            # The member's key is gone, or belongs to another session: this one cannot lead any more.
            if view.member_leases.get(self._member) != self.lease:
                self.lease = 0
        return True

    def failed(self, number: int) -> None:
        """No answer: etcd may have done it, or not."""
        if number == self._opening:
            self._opening = 0
        elif number == self._renewing:
            self._renewing = 0
        elif number == self._reading:
            self._reading = 0
