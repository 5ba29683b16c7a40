"""The forms that a log line of a daemon may have: NSQ's text, and JSON for programs that collect logs.

A text line is `[nsqd] 2024/05/01 12:00:00.000123 INFO: text`, with the lines of a traceback indented below
it. A JSON line is one object:

    {"time":"2024-05-01T10:00:00.000123Z","level":"info","program":"nsqd","logger":"nsquark.nsqd.server",
     "message":"TCP: listening on 127.0.0.1:4150"}

and has the traceback, if there is one, as `exception`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

_PRINTED: Final = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARNING",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
}

Form = Callable[[str, logging.LogRecord, str, Sequence[str]], str]
"""Makes a line, without its end, of the prefix, a record, its text, and the lines of its traceback."""


def timestamp(now: float) -> str:
    """Local time, as Go's log package writes it without microseconds."""
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now))


def format_line(prefix: str, level: str, text: str, now: float) -> str:
    """A whole line but for its end, such as `[nsqd] 2024/05/01 12:00:00.000123 FATAL: text`."""
    micros = round(now * 1_000_000)
    return f"{prefix}{timestamp(micros // 1_000_000)}.{micros % 1_000_000:06d} {level}: {on_one_line(text)}"


def text_form(prefix: str, record: logging.LogRecord, text: str, trace: Sequence[str]) -> str:
    line = format_line(prefix, _PRINTED.get(record.levelno, record.levelname), text, record.created)
    return with_trace(line, trace)


def with_trace(line: str, trace: Sequence[str]) -> str:
    """A text line with the lines of a traceback below it."""
    return "".join([line, *("\n    " + on_one_line(each) for each in trace)])


def json_form(prefix: str, record: logging.LogRecord, text: str, trace: Sequence[str]) -> str:
    import json  # most daemons log text, and start faster without it

    micros = round(record.created * 1_000_000)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(micros // 1_000_000))
    document = {
        "time": f"{moment}.{micros % 1_000_000:06d}Z",
        "level": _PRINTED.get(record.levelno, record.levelname).lower(),
        "program": prefix.strip().removeprefix("[").removesuffix("]"),
        "logger": record.name,
        "message": text,
    }
    if trace:
        document["exception"] = "\n".join(trace)
    return json.dumps(document, separators=(",", ":"))  # in ASCII: no byte of it is anything but JSON


FORMS: Final[dict[str, Form]] = {"text": text_form, "json": json_form}


def line_of(form: Form, prefix: str, level: int, text: str, now: float) -> str:
    """A line of the daemon's own, which no logger has made."""
    record = logging.makeLogRecord({"name": "nsquark", "levelno": level, "msg": text, "created": now})
    return form(prefix, record, text, ())


def on_one_line(text: str) -> str:
    """Clients choose parts of what is logged. They shall not forge lines, nor talk to the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text)
