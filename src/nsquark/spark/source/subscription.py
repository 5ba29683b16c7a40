"""The topics of a query, and the nsqds whose logs of them it reads."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from nsquark.names import is_valid_name

from ..options import OptionReader

_NAMES = ("subscribe", "topic", "subscribePattern", "assign")


@dataclass(frozen=True)
class Subscription:
    """Some topics by name, others by a pattern. Without `assigned`, a topic is read at all its nsqds."""

    topics: tuple[str, ...] = ()
    pattern: str = ""  # a regular expression for the whole name
    assigned: frozenset[tuple[str, str]] = frozenset()  # topic, host:port of an nsqd
    option: str = field(default="subscribe", compare=False)  # that says so, as the user wrote it

    def matches(self, topic: str) -> bool:
        return topic in self.topics or bool(self.pattern and re.fullmatch(self.pattern, topic))

    def includes(self, topic: str, nsqd: str) -> bool:
        """Whether a topic that matches is read at the nsqd of this name."""
        return not self.assigned or (topic, nsqd) in self.assigned

    def __str__(self) -> str:
        return ", ".join([*self.topics, *([f"/{self.pattern}/"] if self.pattern else [])])


def parse_subscription(options: OptionReader) -> Subscription:
    given = [name for name in _NAMES if options.has(name)]
    if not given:
        raise options.error("subscribe", "missing: name a topic, or several separated by commas")
    if len(given) > 1:
        raise options.error(given[1], f"'{options.written(given[0])}' is given too")
    name = given[0]
    if name == "subscribePattern":
        return _parse_pattern(options)
    if name == "assign":
        return _parse_assigned(options)
    entries = options.texts(name)
    if not entries:
        raise options.error(name, "empty")
    topics = [each for each in entries if not _is_wildcard(each)]
    _check_topics(options, name, topics)
    wildcards = [_regex(each) for each in entries if _is_wildcard(each)]
    return Subscription(tuple(dict.fromkeys(topics)), "|".join(wildcards), option=options.written(name))


def _check_topics(options: OptionReader, name: str, topics: list[str]) -> None:
    for topic in topics:
        if not is_valid_name(topic):
            raise options.error(name, f"{topic!r} cannot be the name of a topic")


def _parse_pattern(options: OptionReader) -> Subscription:
    name = "subscribePattern"
    pattern = options.text(name)
    try:
        re.compile(pattern)
    except re.error as error:
        raise options.error(name, f"{pattern!r} is no regular expression: {error}") from None
    if not pattern:
        raise options.error(name, "empty")
    return Subscription((), pattern, option=options.written(name))


def _parse_assigned(options: OptionReader) -> Subscription:
    """Parse `{"topic": ["host:4150"]}`: these topics, each at these nsqds alone."""
    name, form = "assign", 'JSON such as {"topic": ["host:4150"]}'
    try:
        document = json.loads(options.text(name))
    except ValueError as error:
        raise options.error(name, f"no {form}: {error}") from None
    if not isinstance(document, dict) or not document:
        raise options.error(name, f"no {form}")
    _check_topics(options, name, list(document))
    assigned = set()
    for topic, nsqds in document.items():
        if not isinstance(nsqds, list) or not nsqds or not all(isinstance(each, str) for each in nsqds):
            raise options.error(name, f"no {form}: {topic!r} has no nsqds")
        assigned |= {(topic, nsqd) for nsqd in nsqds}
    return Subscription(tuple(document), "", frozenset(assigned), options.written(name))


def _is_wildcard(entry: str) -> bool:
    return "*" in entry or "?" in entry


def _regex(wildcard: str) -> str:
    return re.escape(wildcard).replace(r"\*", ".*").replace(r"\?", ".")
