"""What a command cannot do, and how it says so: one line on stderr that names the culprit."""

from __future__ import annotations

import contextlib
import re
import sys

from nsquark.errors import NsquarkError


class Failure(NsquarkError):
    """What a command cannot do; the text is one line that names the culprit."""


class Partial(Failure):
    """A command has done what it could, and has said what it could not. Nothing more is to be said."""


def say(text: str) -> None:
    """Tell a person something, on stderr: stdout is for what was asked for."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def not_answering(address: str, error: object, kind: str = "nsqd") -> Failure:
    """The failure that a daemon did not answer, with the reason said once."""
    reason = re.sub(rf"^(https?://)?{re.escape(address)}(/\S*)?: ", "", on_one_line(error))
    return Failure(f"{kind} {address} does not answer: {reason or 'no answer in time'}")


def on_one_line(text: object) -> str:
    """A text of another program, such as an error, without anything that would move the cursor."""
    return "".join(c if c.isprintable() else " " for c in str(text)).strip()
