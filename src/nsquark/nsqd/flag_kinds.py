"""The kinds of flags that nsqd alone has: which clients need TLS, TLS versions, words, the worker id."""

from __future__ import annotations

import enum
from typing import Any

from nsquark.cli.flag_kinds import wrong_type
from nsquark.cli.flags import BOOL, Kind
from nsquark.gotext import format_value, parse_bool, parse_int, quote


class TlsRequired(enum.IntEnum):
    """Which clients must use TLS. Counts as true if any must."""

    NOBODY = 0
    TCP = 1  # `tcp-https`: plain HTTP stays open
    EVERYBODY = 2


class TlsRequiredKind(Kind):
    word = ""
    boolean = True

    def parse(self, text: str, so_far: Any) -> TlsRequired:
        if text.lower() == "tcp-https":
            return TlsRequired.TCP
        return TlsRequired.EVERYBODY if parse_bool(text.lower()) else TlsRequired.NOBODY

    def coerce(self, value: object) -> TlsRequired:
        return self.parse(format_value(value), None)

    def config_value(self, value: TlsRequired) -> int:
        return int(value)


# The numbers of the protocol, which are also those of ssl.TLSVersion.
TLS_VERSIONS = {"tls1.0": 769, "tls1.1": 770, "tls1.2": 771, "tls1.3": 772}
DEFAULT_TLS_VERSION = TLS_VERSIONS["tls1.0"]


class TlsVersionKind(Kind):
    def parse(self, text: str, so_far: Any) -> int:
        word = text.lower()
        if not word:
            return DEFAULT_TLS_VERSION
        if word not in TLS_VERSIONS:
            raise ValueError(f"unknown tlsVersionOption {quote(word)}")
        return TLS_VERSIONS[word]

    def coerce(self, value: object) -> int:
        return self.parse(format_value(value), None)

    def default_shown(self, value: int) -> str:
        return next(word for word, number in TLS_VERSIONS.items() if number == value)


class WorkerIdKind(Kind):
    """A boolean since NSQ 1.0, and a number before: as such it still says which node this is."""

    word = ""
    boolean = True

    def parse(self, text: str, so_far: Any) -> bool | int:
        try:
            return parse_int(text)
        except ValueError:
            return bool(BOOL.parse(text, so_far))


class WordKind(Kind):
    """One of a few words."""

    refused_without_usage = True

    def __init__(self, *words: str) -> None:
        self._words = words

    def parse(self, text: str, so_far: Any) -> str:
        word = text.lower()
        if word not in self._words:
            raise ValueError(f"unknown value {quote(text)} ({', '.join(self._words)})")
        return word

    def coerce(self, value: object) -> str:
        if not isinstance(value, str):
            raise wrong_type(value)
        return self.parse(value, None)

    def default_shown(self, value: str) -> str:
        return quote(value)


class ImportKind(WordKind):
    """What becomes of messages that Go's nsqd has left in the data directory."""

    def __init__(self) -> None:
        super().__init__("on", "off", "check")

    def coerce(self, value: object) -> str:
        return ("on" if value else "off") if isinstance(value, bool) else super().coerce(value)
