"""The error types: whose fault it was, and whether the connection lives on.

Every error that NSQ's protocol knows is a `ProtocolError` with NSQ's code; there is one subclass per code,
so that code reads `raise BadTopic(...)` and a client library finds the code by the type.
"""

from __future__ import annotations


class NsquarkError(Exception):
    """The root of everything nsquark raises on purpose."""


class ProtocolError(NsquarkError):
    """An error frame: `code`, one space, `description`. A fatal one ends the connection."""

    code = "E_INVALID"
    fatal = True

    def __init__(self, description: str | bytes) -> None:
        super().__init__(description)
        self.description = description.encode() if isinstance(description, str) else description

    def pack(self) -> bytes:
        """The data of the error frame."""
        return self.code.encode() + b" " + self.description

    def __str__(self) -> str:
        return self.pack().decode("utf-8", "backslashreplace")


class Invalid(ProtocolError):
    code = "E_INVALID"


class BadBody(ProtocolError):
    code = "E_BAD_BODY"


class BadTopic(ProtocolError):
    code = "E_BAD_TOPIC"


class BadChannel(ProtocolError):
    code = "E_BAD_CHANNEL"


class BadMessage(ProtocolError):
    code = "E_BAD_MESSAGE"


class BadProtocol(ProtocolError):
    """The wrong magic. The only error without a description."""

    code = "E_BAD_PROTOCOL"

    def __init__(self) -> None:
        super().__init__(b"")

    def pack(self) -> bytes:
        return self.code.encode()


# How the reason of E_PUB_FAILED, E_MPUB_FAILED and E_DPUB_FAILED begins when a member of a replica group
# takes no publishes for now. Nothing is stored of what the connection has published behind the refused one.
GROUP_REFUSES = "replica group: "


class PubFailed(ProtocolError):
    code = "E_PUB_FAILED"


class MpubFailed(ProtocolError):
    code = "E_MPUB_FAILED"


class DpubFailed(ProtocolError):
    code = "E_DPUB_FAILED"


class SubFailed(ProtocolError):
    code = "E_SUB_FAILED"


class IdentifyFailed(ProtocolError):
    code = "E_IDENTIFY_FAILED"


class AuthDisabled(ProtocolError):
    code = "E_AUTH_DISABLED"


class AuthFirst(ProtocolError):
    code = "E_AUTH_FIRST"


class AuthFailed(ProtocolError):
    code = "E_AUTH_FAILED"


class AuthError(ProtocolError):
    code = "E_AUTH_ERROR"


class Unauthorized(ProtocolError):
    code = "E_UNAUTHORIZED"


class FinFailed(ProtocolError):
    code = "E_FIN_FAILED"
    fatal = False


class ReqFailed(ProtocolError):
    code = "E_REQ_FAILED"
    fatal = False


class TouchFailed(ProtocolError):
    code = "E_TOUCH_FAILED"
    fatal = False


def parse_error(data: bytes) -> ProtocolError:
    """The error that an error frame stands for. A code that NSQ does not know is fatal."""
    code, _, description = data.partition(b" ")
    name = code.decode("ascii", "backslashreplace")
    if name == BadProtocol.code:
        return BadProtocol()
    for kind in ProtocolError.__subclasses__():
        if kind.code == name:
            return kind(description)
    error = ProtocolError(description)
    error.code = name
    return error


class ConnectionLost(NsquarkError, ConnectionError):
    """The other side went away."""


class ConnectFailed(ConnectionLost):
    """No connection came about: dialling, the handshake, TLS or AUTH failed. Nothing was sent.

    `permanent` says that trying again would end the same way: it was refused, not unreachable.
    """

    def __init__(self, text: str, *, permanent: bool = False) -> None:
        super().__init__(text)
        self.permanent = permanent


class NotNsqd(ConnectionLost):
    """The other side speaks another protocol than nsqd's: the address is probably that of another port."""


class OutcomeUnknown(ConnectionLost):
    """The connection broke between a publish and its answer: the message may be stored, or not."""


class PublishTimeout(NsquarkError, TimeoutError):
    """No answer in time. With `sent` the message may be stored, without it is not."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class PendingFull(NsquarkError):
    """As many publishes are under way as the producer allows. This one was not sent."""


class UsageError(NsquarkError):
    """A mistake of our caller, such as a message answered twice."""


class LogCorrupt(NsquarkError):
    """A topic log does not read as it was written."""

    def __init__(self, segment: str, offset: int, what: str) -> None:
        super().__init__(f"{segment} at offset {offset}: {what}")
        self.segment = segment
        self.offset = offset


class LogDamaged(LogCorrupt):
    """`part`, a segment, has lost batches. They are kept aside; the log goes on once it has left them out."""

    def __init__(self, segment: str, offset: int, what: str, part: object) -> None:
        super().__init__(segment, offset, what)
        self.part = part


class ArchiveAway(NsquarkError, OSError):
    """The archive cannot be reached, or does not give back what it was given: a later try may succeed."""


class UnknownVersion(NsquarkError, OSError):
    """A file has a format that this version does not know: to this process, a file that cannot be read.

    Whatever is in it is left as it is.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} {what}: it was written by another version of nsquark")
        self.path = path
