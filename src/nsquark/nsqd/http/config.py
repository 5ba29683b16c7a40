"""`/config/<opt>`: the options of nsqd, two of which can be changed while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable

from nsquark.cli import logs
from nsquark.http import HttpError, Request, Response, v1_empty, v1_json, v1_text
from nsquark.nsqd.options import Options


class ConfigApi:
    def __init__(self, options: Options, set_lookupds: Callable[[list[str]], None]) -> None:
        self._options = options
        self._set_lookupds = set_lookupds

    def get(self, request: Request) -> Response:
        try:
            value = self._options.config_value(request.argument)
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None
        if value == "":
            return v1_empty()  # without a type, as NSQ answers whatever is empty
        return v1_text(value) if isinstance(value, str) else v1_json(value)

    def put(self, request: Request) -> Response:
        """Change an option, until the end of the process; the answer is its new value."""
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        text = request.body.decode("utf-8", "replace")
        match request.argument:
            case "nsqlookupd_tcp_addresses":
                self._options.lookupd_tcp_address = _parse_addresses(text)
                self._set_lookupds(self._options.lookupd_tcp_address)
            case "log_level":
                self._set_log_level(text.lower())
            case _:
                raise HttpError(400, "INVALID_OPTION")
        return self.get(request)

    def _set_log_level(self, word: str) -> None:
        if word not in logs.LEVELS:
            raise HttpError(400, "INVALID_VALUE")
        self._options.log_level = word
        logs.set_level(word)


def _parse_addresses(text: str) -> list[str]:
    """A JSON array of strings; null is none."""
    try:
        addresses = json.loads(text)
    except (ValueError, RecursionError):
        raise HttpError(400, "INVALID_VALUE") from None
    if addresses is None:
        return []
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise HttpError(400, "INVALID_VALUE")
    return addresses
