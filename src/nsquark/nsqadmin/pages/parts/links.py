"""The addresses of pages, under the base path. Names are percent-encoded, `#ephemeral` too."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, urlsplit

_BROKEN = "backslashreplace"  # a link to a name that cannot be leads nowhere, and breaks no page


@lru_cache(8192)
def _quoted(text: str) -> str:
    """A page has a hundred links, and most of them to the same few names."""
    return quote(text, safe="", errors=_BROKEN)


@lru_cache(8192, typed=True)
def _query(**told: object) -> str:
    """With the question mark; what is None or empty stays out."""
    query = "&".join(
        f"{name}={_quoted(str(value))}" for name, value in told.items() if value not in (None, "")
    )
    return f"?{query}" if query else ""


@lru_cache(8192)
def _act(action: str, topic: str, channel: str, node: str, letter: str) -> str:
    return "/act" + _query(do=action, topic=topic, channel=channel, node=node, id=letter)


class Links:
    def __init__(self, base_path: str) -> None:
        self.base = base_path.rstrip("/")

    def __call__(self, path: str, **query: object) -> str:
        """`path` under the base path; what is None or empty stays out of the query."""
        return f"{self.base}{path}{_query(**query)}"

    def home(self) -> str:
        return self.base or "/"

    def topic(self, topic: str) -> str:
        return f"{self.base}/topics/{_quoted(topic)}"

    def channel(self, topic: str, channel: str) -> str:
        return f"{self.topic(topic)}/{_quoted(channel)}"

    def node(self, node: str) -> str:
        return f"{self.base}/nodes/{_quoted(node).replace('%3A', ':')}"

    def static(self, asset: str) -> str:
        return f"{self.base}/static/{asset}"

    def history(self, *key: str) -> str:
        return self("/history", of="/".join(map(_quoted, key)))

    def act(self, action: str, topic: str = "", channel: str = "", node: str = "", letter: str = "") -> str:
        """`letter` is the id of a dead letter."""
        return self.base + _act(action, topic, channel, node, letter)


def is_web(url: str) -> bool:
    """Whether a link may lead there: an auth server may send any text, `javascript:` too."""
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False
