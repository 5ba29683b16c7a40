"""The errors that end a query. Each is one line that names the option, the nsqd or the column to look at."""

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


class RequestRefused(NsquarkError):
    """A daemon answered a request with a status other than 200."""

    def __init__(self, url: str, status: int, message: str, details: dict[str, object]) -> None:
        hint = "; see option 'auth.secret'" if status == 401 or message == "UNAUTHORIZED" else ""
        super().__init__(f"{url}: {status} {message}{hint}")
        self.status = status
        self.message = message
        self.details = details


class BadResponse(NsquarkError):
    """The response is not one that a daemon of NSQ sends."""


class NoSuchTopic(NsquarkError):
    """None of the nsqds has the topic."""


class DataLost(NsquarkError):
    """The log no longer has messages that the query has not read yet."""


class ChannelInUse(NsquarkError):
    """Another query reads through this channel."""


_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


def without_traceback(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Drop the traceback of every NsquarkError that `method` raises.

    For methods that Spark calls: Spark prints the whole traceback of an exception, and the traceback of an
    NsquarkError adds nothing to its message.
    """

    @functools.wraps(method)
    def wrapper(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(*arguments, **named)
        except NsquarkError as error:
            raise error.with_traceback(None) from None

    return wrapper


def iterate_without_traceback(items: Iterator[_T]) -> Iterator[_T]:
    """Yield the items, and drop the traceback of an NsquarkError raised on the way."""
    try:
        yield from items
    except NsquarkError as error:
        raise error.with_traceback(None) from None
