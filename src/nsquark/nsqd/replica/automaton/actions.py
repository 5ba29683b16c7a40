"""What the automaton wants done. Its driver does these in order, and reports what came of them.

Actions that ask etcd have a `number`; the answer carries it back. Everything else is done at once, without an
answer, unless its docstring names the input that reports it.

`Acknowledge` and `Release`, which come with every frame, are C types where this module is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .group import GroupState, GroupView


class Acquisition(Enum):
    """How a member becomes the primary."""

    CAMPAIGN = "campaign"  # as a member of isr
    SALVAGE = "salvage"  # all of isr came back from a power loss, and this member has the longest directory
    FORCE = "force"  # an operator decided


# ---- to etcd


@dataclass(slots=True)
class OpenSession:
    """Grant a lease, and put the member's key under it if nobody has put it since the revision `seen`.

    Reported by `session_opened`.
    """

    number: int
    seen: int


@dataclass(slots=True)
class RenewSession:
    """Keep the lease alive. Reported by `session_renewed` or `session_lost`."""

    number: int
    lease: int


@dataclass(slots=True)
class Announce:
    """Put the member's key again, unless another session has it: it has changed. There is no answer."""

    lease: int


@dataclass(slots=True)
class ReadGroup:
    """Read all keys of the group. Reported by `group_read`."""

    number: int


@dataclass(slots=True)
class Campaign:
    """Become the primary if nothing has changed since `seen`. Reported by `transaction_answered`."""

    number: int
    lease: int
    kind: Acquisition
    seen: GroupView
    state: GroupState  # the state to come


@dataclass(slots=True)
class ChangeIsr:
    """Replace the isr if the state is still that of `state_revision`. Reported by `transaction_answered`.

    `removing` says whether members leave; they are waited for until etcd has confirmed it.
    """

    number: int
    state_revision: int
    state: GroupState
    removing: bool


@dataclass(slots=True)
class Reclaim:
    """Put `g/primary` again, which ended with a lease, if the state is unchanged. The term stays."""

    number: int
    lease: int
    state_revision: int
    state: GroupState


@dataclass(slots=True)
class Resign:
    """Delete `g/primary` if it is still this member's. Reported by `transaction_answered`."""

    number: int
    state_revision: int


# ---- a standby's stream and files


@dataclass(slots=True)
class Connect:
    """Open the stream of `member`. Reported by `manifest_received`, `stream_refused` or `stream_lost`."""

    member: str
    term: int


@dataclass(slots=True)
class DropStream:
    """Close the stream. Not a byte of it is applied or acknowledged from here on."""


@dataclass(slots=True)
class Unsettle:
    """Store durably that the directory is being changed: until `Settle`, it is no state to lead from."""


@dataclass(slots=True)
class Fetch:
    """Make the directory what the manifest says. Reported by `fetched`."""

    term: int
    sequence: int


@dataclass(slots=True)
class Settle:
    """Store durably that the directory is one that a killed primary could have left."""


@dataclass
class Acknowledge:
    """There is one for all the frames that came together."""

    term: int
    written: int
    synced: int


# ---- a primary's clients and followers


@dataclass(slots=True)
class OpenDirectory:
    """Start on the directory, with new files of `term`. Reported by `directory_opened`.

    `new_epochs` gives every log a new epoch: messages may have been lost.
    """

    term: int
    new_epochs: bool


@dataclass(slots=True)
class Serve:
    """Open the port for clients, register at nsqlookupds."""

    term: int


@dataclass(slots=True)
class SendHeartbeat:
    term: int
    sequence: int


@dataclass(slots=True)
class SendHandover:
    """Tell the followers that the primary has resigned."""

    term: int


@dataclass(slots=True)
class Disconnect:
    """Close the connection of a follower that breaks the protocol."""

    incarnation: str
    reason: str


@dataclass
class Release:
    """Everything up to `sequence` is committed: answer it, deliver it, let it be read."""

    term: int
    sequence: int


@dataclass(slots=True)
class RefusePublishes:
    reason: str


@dataclass(slots=True)
class AcceptPublishes:
    pass


@dataclass(slots=True)
class Fence:
    """Close clients unanswered, leave nsqlookupds, `exec` this program anew. The automaton ends with it."""

    reason: str


Action = (
    OpenSession
    | RenewSession
    | Announce
    | ReadGroup
    | Campaign
    | ChangeIsr
    | Reclaim
    | Resign
    | Connect
    | DropStream
    | Unsettle
    | Fetch
    | Settle
    | Acknowledge
    | OpenDirectory
    | Serve
    | SendHeartbeat
    | SendHandover
    | Disconnect
    | Release
    | RefusePublishes
    | AcceptPublishes
    | Fence
)
