"""The states of reading from one client, and which may follow which.

    READING ⇄ BUSY, AUTHORIZING, UPGRADING, UNREAD        reading is paused, and goes on later
       │
       ├──▶ DISCARDING ──▶ LINGERING ──▶ CLOSING ──▶ CLOSED    after an error that ends the connection
       └──▶ HALF_CLOSED ───────────────▶ CLOSING ──▶ CLOSED    after the end of what the client sends

The state says what happens to bytes of the client. Three more facts are not part of it: what the client is
(`session.Session`), which of transport and SocketPoll reads the socket (`socket_reading.SocketReading`), and
whether the transport's write buffer is full (`Connection.unread_since`).
"""

from __future__ import annotations

from enum import Enum, auto


class ReadState(Enum):
    READING = auto()
    """The socket is read, and what comes is parsed."""

    BUSY = auto()
    """More commands came at once than a turn of the event loop has time for. The next turn parses on."""

    AUTHORIZING = auto()
    """An auth server was asked. The command that needs its answer, and all that follow, wait."""

    UPGRADING = auto()
    """An IDENTIFY asked for TLS or compression. Nothing is parsed until the new layers are there."""

    UNREAD = auto()
    """The client does not read its answers. Nothing is read from it until it does."""

    DISCARDING = auto()
    """The last answer is an error. It waits for those before it; what the client still sends is dropped."""

    HALF_CLOSED = auto()
    """The client sends nothing more. It is still owed answers."""

    LINGERING = auto()
    """The last answer is written and our half is closed. The client has a moment to close its half."""

    CLOSING = auto()
    """The transport was told to close. What is written still goes out."""

    CLOSED = auto()
    """The connection is gone."""


READING = ReadState.READING
BUSY = ReadState.BUSY
AUTHORIZING = ReadState.AUTHORIZING
UPGRADING = ReadState.UPGRADING
UNREAD = ReadState.UNREAD
DISCARDING = ReadState.DISCARDING
HALF_CLOSED = ReadState.HALF_CLOSED
LINGERING = ReadState.LINGERING
CLOSING = ReadState.CLOSING
CLOSED = ReadState.CLOSED

WAITING = frozenset({BUSY, AUTHORIZING, UPGRADING})
"""Parsing waits for nsqd, not for the client: its silence does not count."""

RECEIVING = frozenset({READING, DISCARDING, LINGERING})
"""The socket is read."""

ENDED = frozenset({DISCARDING, HALF_CLOSED, LINGERING, CLOSING, CLOSED})
"""The last answer is said, though perhaps not written. No command is done any more."""

# A publish that cannot be stored ends the connection from any state in which its answer is still owed: hence
# LINGERING behind all of these.
_ENDS = frozenset({DISCARDING, LINGERING, CLOSING, CLOSED})

TRANSITIONS: dict[ReadState, frozenset[ReadState]] = {
    READING: frozenset({BUSY, AUTHORIZING, UPGRADING, UNREAD, HALF_CLOSED}) | _ENDS,
    # The end of what a client sends is not seen while nothing is read.
    BUSY: frozenset({READING}) | _ENDS,
    AUTHORIZING: frozenset({READING}) | _ENDS,
    UPGRADING: frozenset({READING}) | _ENDS,
    UNREAD: frozenset({READING}) | _ENDS,
    DISCARDING: frozenset({HALF_CLOSED, LINGERING, CLOSING, CLOSED}),
    HALF_CLOSED: frozenset({CLOSING, CLOSED}),
    LINGERING: frozenset({CLOSING, CLOSED}),
    CLOSING: frozenset({CLOSING, CLOSED}),
    CLOSED: frozenset(),
}


def check_transition(state: ReadState, following: ReadState) -> None:
    """Raises RuntimeError for a step that the table does not have: the fault is ours."""
    if following not in TRANSITIONS[state]:
        raise RuntimeError(f"a connection that is {state.name} cannot be {following.name} next")
