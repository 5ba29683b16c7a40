"""A message as a person or a script reads it: raw, as JSON with its history, or laid out for a terminal."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from typing import Final, Literal, Protocol

from ..flags import quantities
from ..output import console

Style = Literal["raw", "json", "terminal"]
_LONGEST_JSON: Final = 1 << 20  # larger bodies are shown as they are


class Readable(Protocol):
    """What a delivery and a message of a log have in common."""

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes


class MessageText:
    """Turns messages into bytes for stdout. `pretty` indents bodies that are JSON."""

    def __init__(self, as_json: bool, pretty: bool) -> None:
        self._style: Style = "json" if as_json else "terminal" if sys.stdout.isatty() else "raw"
        self._pretty = pretty
        self._console = console() if self._style == "terminal" else None

    def of(self, message: Readable, nsqd: str) -> bytes:
        if self._style == "json":
            return self._json(message, nsqd)
        if self._style == "raw":
            return (self._indented(message.body) if self._pretty else message.body) + b"\n"
        return self._for_terminal(message)

    def _json(self, message: Readable, nsqd: str) -> bytes:
        document: dict[str, object] = {
            "id": message.id.decode("ascii", "replace"),
            "timestamp": message.timestamp_ns,
            "attempts": message.attempts,
            "nsqd": nsqd,
        }
        for name in ("position", "due_ns"):  # what only a log knows
            if value := getattr(message, name, None):
                document[name] = value
            elif name == "position" and value == 0:
                document[name] = 0
        try:
            document["body"] = message.body.decode()
        except UnicodeDecodeError:
            document["body_base64"] = b64encode(message.body).decode("ascii")
        return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _indented(self, body: bytes) -> bytes:
        try:
            if len(body) > _LONGEST_JSON:
                return body
            return json.dumps(json.loads(body), ensure_ascii=False, indent=2).encode("utf-8", "replace")
        except (ValueError, RecursionError):
            return body

    def _for_terminal(self, message: Readable) -> bytes:
        from rich.highlighter import JSONHighlighter
        from rich.text import Text

        assert self._console is not None
        body = self._indented(message.body) if self._pretty else message.body
        lines = body.decode("utf-8", "backslashreplace").split("\n")
        shown = Text("\n".join(map(quantities.visible, lines)))
        if body[:1] in (b"{", b"["):
            JSONHighlighter().highlight(shown)
        with self._console.capture() as capture:
            line = Text(quantities.clock(message.timestamp_ns) + "  ", style="dim") + shown
            self._console.print(line, soft_wrap=True)
        return capture.get().encode("utf-8", "replace")
