"""The errors that end a query. Each is one line that names the option, the nsqd or the column to look at."""

from __future__ import annotations

import functools
import re
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


class TableError(NsquarkError):
    """A table cannot be opened, or a batch cannot be committed to it."""


class OldCheckpoint(NsquarkError):
    """Spark replays a batch that is written otherwise: the checkpoint is older than the output."""


# The last line of a traceback that ends in an error of nsquark, from whichever process.
_OURS = re.compile(r"^\s*(?:pyspark\.\S+: )?nsquark\.[\w.]+: (.+)$", re.MULTILINE)
_CAUSED = re.compile(r"^\s*(?:Caused by: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
# Py4J names the method that was called, and tells what went wrong on the next line.
_CALLED = re.compile(r"An error occurred while calling .*\n: (?:[\w.$]+: )?(.+)")
_LONGEST_LINE = 500


def telling_line(text: str) -> str:
    """The line in the text of Spark's error that tells what went wrong; empty for an empty text."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    called = _CALLED.match(text)
    if called:
        return called[1].strip()[:_LONGEST_LINE]
    caused = _CAUSED.findall(text) if "Traceback" in text else []
    lines = caused[-1:] or [line.strip() for line in text.splitlines() if line.strip()]
    return str(lines[0])[:_LONGEST_LINE] if lines else ""


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
