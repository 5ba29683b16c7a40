"""The names of archive files: tokens, dates and revisions. Names are relative to a directory.

<TOPIC>.<HOST><REV>.<DATETIME>.log    the format
clicks.web1<REV>.<DATETIME>.log       the template, made once for a topic
clicks.web1<REV>.2026-11-18_07.log    a name: it changes with the date
clicks.web1-000002.2026-11-18_07.log  a file: one revision of the name
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass
from typing import Self

REVISION = "<REV>"
_DATETIME = "<DATETIME>"
_CODE = re.compile("%([aAbBdHImMpSyYzZ%])")


def strftime(form: str, now: float) -> str:
    """Local time by the codes that NSQ knows. Everything else, other codes included, is left as written."""
    local = time.localtime(now)
    return _CODE.sub(lambda code: time.strftime(code[0], local), form)


def with_revision(name: str, revision: int) -> str:
    return name.replace(REVISION, f"-{revision:06d}")


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names that one topic's files get."""

    template: str
    datetime_format: str
    pattern: re.Pattern[str]  # of all files that a process has named so; its group is the revision

    @classmethod
    def of(
        cls,
        form: str,
        datetime_format: str,
        *,
        topic: str,
        host_identifier: str = "",
        extension: str = "",
        with_revisions: bool = False,
    ) -> Self:
        """Raises ValueError if no file below the directory can have such a name."""
        hostname = socket.gethostname()
        short = hostname.partition(".")[0]
        host = host_identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname) or short
        if not with_revisions:
            form = form.replace(REVISION, "")
        if not form.endswith(extension):
            form += extension
        form = form.lstrip("/").replace("<TOPIC>", topic).replace("<HOST>", host)
        names = cls(form.replace("<PID>", str(os.getpid())), datetime_format, _pattern(form, datetime_format))
        example = with_revision(names.current(time.time()), 0)
        # A topic may be called `..`, and a directory above is none of ours.
        if not example or example.endswith("/") or "\0" in example or ".." in example.split("/"):
            raise ValueError(f"{example!r} is no name for a file")
        return names

    def current(self, now: float) -> str:
        """The name for this time; it still has <REV>, if the template has."""
        if _DATETIME not in self.template:
            return self.template
        return self.template.replace(_DATETIME, strftime(self.datetime_format, now))


def _pattern(form: str, datetime_format: str) -> re.Pattern[str]:
    pattern = re.escape(form)
    datetime = "/".join("[^/]*" for _ in datetime_format.split("/"))
    for token, part in (("<PID>", r"\d+"), (_DATETIME, datetime)):
        pattern = pattern.replace(re.escape(token), part)
    first, *others = pattern.split(re.escape(REVISION))
    if others:
        first += r"(-\d{6,})" + r"\1".join(others)
    return re.compile(first, re.S)
