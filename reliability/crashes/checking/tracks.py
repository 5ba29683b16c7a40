"""What the checker knows of each message, of each message on each channel, and of each connection.

Two things are known for certain or not at all: that a message must still be delivered (`owed`), and that it
may never be delivered again (`gone`). Where neither is known, anything goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Message:
    """A message that a client published, or tried to."""

    key: str
    topic: str
    sent: int  # number of the event
    due: float
    group: list[Message] = field(repr=False)
    batch: str = ""
    sends: int = 1
    exists: bool = False  # it was answered, or seen
    ids: set[str] = field(default_factory=set)
    positions: set[int] = field(default_factory=set)
    position: int = -1  # in the present log


@dataclass(slots=True, eq=False)
class Topic:
    name: str
    channels: dict[str, Channel] = field(default_factory=dict, repr=False)
    deleted: int = 0  # number of the event that ended the last deletion
    deleting: int = 0  # deletions under way
    paused: int | None = None  # since which event for certain
    flows: bool = True  # it is certain not to be paused, so its channels have everything
    epoch: str = ""
    next: int = 0  # how far the log was read
    by_position: dict[int, Message] = field(default_factory=dict, repr=False)
    meanings: dict[int, tuple[str, str]] = field(default_factory=dict, repr=False)  # id and key by position
    unread: dict[str, Message] = field(default_factory=dict, repr=False)  # exist; not seen in the log yet


@dataclass(slots=True, eq=False)
class Channel:
    topic: Topic
    name: str
    tracks: dict[str, Track] = field(default_factory=dict, repr=False)
    owed: set[Track] = field(default_factory=set, repr=False)
    since: int | None = None  # the event since which the channel is certain to be there
    ordered: int = 0  # number of the event that ended the last order to delete, empty, seek or commit
    ordering: int = 0  # such orders under way
    paused: int | None = None
    closes: int = 0  # connections that may have taken unseen deliveries with them
    life: int = -1
    closes_before: int = 0  # this life
    times_out: bool = False  # message timeouts are short enough to happen

    @property
    def ephemeral(self) -> bool:
        return self.name.endswith("#ephemeral") or self.topic.name.endswith("#ephemeral")

    @property
    def under_orders(self) -> bool:
        return bool(self.ordering or self.topic.deleting)

    @property
    def last_order(self) -> int:
        return max(self.ordered, self.topic.deleted)


@dataclass(slots=True, eq=False)
class Track:
    """A message on a channel. `kept_…` is what a crash does not change."""

    channel: Channel = field(repr=False)
    message: Message
    touched: int  # number of the last event that was about it
    life: int
    attempts: int = 0  # the most that were seen
    at_least: int = 0  # deliveries that nsqd knows of
    kept_at_least: int = 0
    not_before: float = 0.0
    kept_not_before: float = 0.0
    excused_from: float = 0.0  # from then on a timeout may have overtaken the REQ
    gone: str = ""  # why it may not come again
    gone_since: int = 0
    loose: bool = False  # how often it was delivered is not known
    closes: int = 0  # of the channel, before the life in which it was seen last
    holder: Flight | None = field(default=None, repr=False)  # a connection has it in flight, or sent its FIN
    step: Step | None = field(
        default=None, repr=False
    )  # the last FIN or REQ, while it is not sure to be kept
    first: Track | None = field(default=None, repr=False)  # of a repeated publish: that of the first copy
    fins: list[Step] = field(default_factory=list, repr=False)  # of connections of this life
    story: list[str] = field(default_factory=list)

    def may_be_finished(self, but: Step | None = None) -> bool:
        """Whether a FIN may have counted for a delivery that no client has seen.

        A client that stands still may miss two timeouts: the message goes to another connection and comes
        back, and the FIN of its first delivery there finishes the third.
        """
        return self.channel.times_out and any(each is not but and not each.is_settled for each in self.fins)


@dataclass(slots=True, eq=False)
class Flight:
    """A delivery of a message to a connection."""

    connection: Connection = field(repr=False)
    track: Track
    since: float  # nsqd did not send it before
    number: int
    void: bool = False  # it was overtaken: an answer to it may fail
    answers: list[Step] = field(default_factory=list, repr=False)  # its FIN and REQ, and those before

    @property
    def unsettled(self) -> list[Step]:
        """Answers that may yet count for the next delivery, if this one has timed out."""
        return [each for each in self.answers if not each.is_settled]

    def may_have_expired(self, now: float, tolerance: float) -> bool:
        return now >= self.since + self.connection.timeout - tolerance


@dataclass(slots=True, eq=False)
class Step:
    """A FIN, REQ or TOUCH."""

    command: str
    flight: Flight
    number: int
    at: float
    attempts: int
    not_before: float = 0.0
    was_owed: bool = True
    failed: bool = False
    doubtful: bool = False  # it has failed, or another one of the same message has
    kept: bool = False

    @property
    def is_settled(self) -> bool:
        return self.failed or self.kept


@dataclass(slots=True, eq=False)
class Connection:
    """A consumer's connection, and its steps that are not sure to be kept yet.

    A step is kept once two round trips have begun and ended behind it. The first answer may leave in the turn
    of the event loop that takes the step. The second one comes from a later turn, and each turn ends with a
    write of the journal.
    """

    number: int
    channel: Channel
    timeout: float
    since: float  # whatever is read from now on was not sent before
    since_event: int
    open: bool = True
    flights: dict[str, Flight] = field(default_factory=dict, repr=False)
    asking: tuple[int, float] | None = None  # the question under way: its event, its time
    new: list[Step] = field(default_factory=list, repr=False)  # behind the question
    asked: list[Step] = field(default_factory=list, repr=False)  # before it
    answered_once: list[Step] = field(default_factory=list, repr=False)

    def unsure(self) -> list[Step]:
        return self.answered_once + self.asked + self.new


@dataclass(slots=True)
class Order:
    """Something an operator has asked for and has no answer to yet."""

    action: str
    topic: Topic
    channel: Channel | None
    begun: int
    position: int

    @property
    def moves(self) -> bool:
        return self.action in ("delete", "empty", "seek", "commit")
