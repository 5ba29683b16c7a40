"""The publishes of a TCP client: their topic, their answer, and their count.

A publish takes one of two ways. The parser hands over complete commands, and the topic takes them. When a
client has published to a topic, a `PublishStream` follows it: as long as more of the same command comes,
the stream puts it into the topic's log without the parser. Whatever else comes ends that.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from nsquark.errors import (
    BadTopic,
    DpubFailed,
    Invalid,
    MpubFailed,
    ProtocolError,
    PubFailed,
    SubFailed,
)
from nsquark.gotext import quote
from nsquark.names import parse_name
from nsquark.nsqd.core.publish import PublishStream
from nsquark.wire import CommandParser, Mpub, Pubs

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker
    from nsquark.nsqd.core.answers import AnswerQueue
    from nsquark.nsqd.core.topic import Topic

    from .session import Session

FAILED: dict[str, type[ProtocolError]] = {
    "PUB": PubFailed,
    "MPUB": MpubFailed,
    "DPUB": DpubFailed,
    "SUB": SubFailed,
}
_NO_LINE = b"\n"  # no command begins with it


class Publishing:
    """The publishes of one client. It remembers the last topic and the command line that named it.

    Behind a publish that was refused, which ends the connection, none is taken.
    """

    __slots__ = ("_answers", "_broker", "_counts", "_line", "_session", "_topic", "stream")

    def __init__(self, broker: Broker, session: Session, answers: AnswerQueue) -> None:
        options = broker.options
        self._broker = broker
        self._session = session
        self._answers = answers
        self._line = _NO_LINE
        self._topic: Topic | None = None
        self._counts: dict[str, int] = {}  # by topic
        self.stream = PublishStream(answers, options.max_msg_size, options.max_body_size, self._counts)

    def counts(self) -> dict[str, int]:
        """How many messages the client has published to each topic."""
        self.stream.count_taken()
        return self._counts

    def _count(self, topic: str, number: int) -> None:
        self._counts[topic] = self._counts.get(topic, 0) + number

    # ---- the topic

    def open_topic(self, command: str, name: str) -> Topic:
        """The topic, made if need be. Raises ProtocolError if the disk refuses it."""
        try:
            return self._broker.topic(name)
        except OSError as error:
            raise FAILED[command](f"{command} failed {error.strerror or error}") from None

    def _checked_topic(self, command: str, params: list[bytes]) -> Topic:
        """The topic that a command line names, if the client may publish to it."""
        session = self._session
        if session.needs_tls:
            session.refuse_plain(params[0])
        name = checked_name(command, params)
        if session.auth is not None:
            session.auth.check(command, name)
        return self.open_topic(command, name)

    def forget_topic(self) -> None:
        """Check the next publish again, though its line be the same as before."""
        self._line = _NO_LINE

    # ---- commands that the parser has found

    def publish_run(self, pubs: Pubs) -> None:
        """Publish a run of PUBs with the same line."""
        if self._answers.refused:
            return
        topic, count = self._topic, pubs.count
        if topic is None or topic.exiting or not pubs.data.startswith(self._line, pubs.start):
            line = pubs.line
            topic = self._topic = self._checked_topic("PUB", _split(line))
            self._line = line
        self._count(topic.name, count)
        topic.publish_pubs(pubs, self._answers.expect(PubFailed, count))

    def publish_one(self, name: str, body: memoryview, delay_ms: int, error: type[ProtocolError]) -> None:
        """Publish the body of a PUB or DPUB whose line came first."""
        if self._answers.refused:
            return
        command = "DPUB" if error is DpubFailed else "PUB"
        if self._session.auth is not None:
            self._session.auth.check(command, name)
        topic = self.open_topic(command, name)
        if error is PubFailed:
            self._topic, self._line = topic, b"PUB %s\n" % name.encode()
        self._count(topic.name, 1)
        topic.publish([body], delay_ms / 1000, self._answers.expect(error))

    def begin_mpub(self, params: list[bytes]) -> None:
        """Take note of the topic of an MPUB whose body is yet to come."""
        self._topic, self._line = self._checked_topic("MPUB", params), b"MPUB %s\n" % params[1]

    def publish_mpub(self, mpub: Mpub) -> None:
        if self._answers.refused:
            return
        topic = self._topic
        if mpub.line and (topic is None or topic.exiting or mpub.line != self._line):
            topic = self._topic = self._checked_topic("MPUB", _split(mpub.line))
            self._line = mpub.line
        assert topic is not None
        answer = self._answers.expect(MpubFailed)
        if topic.exiting:  # deleted while the body came in
            answer.settle("exiting")
            return
        self._count(topic.name, mpub.count)
        topic.publish_mpub(mpub, answer)

    # ---- following

    def follow(self, parser: CommandParser) -> None:
        """Have the stream take what comes next, if that may be more of the last publish."""
        topic, stream = self._topic, self.stream
        if topic is None or not topic.pending.open or self._line is _NO_LINE:
            return
        error = MpubFailed if self._line.startswith(b"M") else PubFailed
        # A client that needs an authorization needs it for each topic.
        topics = self._broker.topics if self._session.auth is None else None
        stream.follow(topic.pending, topic.name, self._line, error, topics)
        if not parser.begins_with(self._line) and not parser.shows(stream.leads_on):
            stream.forget()
            return
        data, start, end = parser.hand_over()
        taken = stream.take(data, start, end, self._broker.turn.clock(), monotonic_ns())
        if taken < end - start:
            self.stop_following(parser)
            parser.put_back(memoryview(data)[start + taken : end])

    def stop_following(self, parser: CommandParser) -> None:
        """Have the parser take what comes next, with what the stream has kept of an incomplete command."""
        if kept := self.stream.forget():
            parser.put_back(kept)

    def let_go(self) -> None:
        """The connection is gone: refer to no topic any more."""
        self._topic = None


def checked_name(command: str, params: list[bytes]) -> str:
    """The name of the topic in a command line. Raises Invalid or BadTopic."""
    if len(params) < 2:
        raise Invalid(f"{command} insufficient number of parameters")
    name = parse_name(params[1])
    if name is None:
        # NSQ says the code twice for MPUB
        twice = "E_BAD_TOPIC " if command == "MPUB" else ""
        raise BadTopic(f"{twice}{command} topic name {quoted(params[1])} is not valid")
    return name


def quoted(name: bytes) -> str:
    return quote(name.decode("utf-8", "surrogateescape"))


def _split(line: bytes) -> list[bytes]:
    return line[:-1].removesuffix(b"\r").split(b" ")
