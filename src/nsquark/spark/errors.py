"""What a query is told when it cannot go on: one line, naming what to look at."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from nsquark.errors import NsquarkError, UsageError


class OptionError(UsageError):
    """An option is missing, or its value cannot be used."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option '{option}': {problem}")
        self.option = option


class Unreachable(NsquarkError):
    """A daemon does not answer."""


class Refused(NsquarkError):
    """A daemon answers, but not with what was asked for."""

    def __init__(self, url: str, status: int, message: str, details: dict[str, object]) -> None:
        hint = "; see option 'auth.secret'" if status == 401 or message == "UNAUTHORIZED" else ""
        super().__init__(f"{url}: {status} {message}{hint}")
        self.status = status
        self.message = message
        self.details = details


class BadAnswer(NsquarkError):
    """Whoever answers there is no daemon of NSQ."""


class NoSuchTopic(NsquarkError):
    """None of the nsqds has the topic."""


class DataLost(NsquarkError):
    """Messages that the query has not read yet are not in the log any more."""


class ChannelInUse(NsquarkError):
    """Another query reads by this channel."""


_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


def in_one_line(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """For what Spark calls: it prints the traceback of whatever is raised, and there is nothing in ours that
    says more than the error does."""

    @functools.wraps(method)
    def plain(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(*arguments, **named)
        except NsquarkError as error:
            raise error.with_traceback(None) from None

    return plain


def each_in_one_line(items: Iterator[_T]) -> Iterator[_T]:
    """The same for what a task reads."""
    try:
        yield from items
    except NsquarkError as error:
        raise error.with_traceback(None) from None
