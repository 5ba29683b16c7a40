"""`/config/<opt>`: what nsqadmin runs with, and the two options that can be changed while it runs."""

from __future__ import annotations

import ipaddress
import json

from starlette.requests import Request
from starlette.responses import Response

from nsquark.cli import logs

from ..admin import Admin
from .answers import ApiError, json_response, read_body, text_response


class ConfigApi:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def get(self, request: Request) -> Response:
        self._check_peer(request)
        return self._value(request)

    async def put(self, request: Request) -> Response:
        """Change an option, until the end of the process; the answer is its new value."""
        self._check_peer(request)
        body = await read_body(request)
        if not body:
            raise ApiError(413, "INVALID_VALUE")
        text = body.decode("utf-8", "replace")
        match request.path_params["option"]:
            case "nsqlookupd_http_addresses":
                self._admin.set_nsqlookupds(_parse_addresses(text))
            case "log_level":
                self._set_log_level(text.lower())
            case _:
                raise ApiError(400, "INVALID_OPTION")
        return self._value(request)

    def _value(self, request: Request) -> Response:
        try:
            value = self._admin.options.config_value(request.path_params["option"])
        except KeyError:
            raise ApiError(400, "INVALID_OPTION") from None
        return text_response(value, v1=True) if isinstance(value, str) else json_response(value)

    def _set_log_level(self, word: str) -> None:
        if word not in logs.LEVELS:
            raise ApiError(400, "INVALID_VALUE")
        self._admin.options.log_level = word
        logs.set_level(word)

    def _check_peer(self, request: Request) -> None:
        """The peer of the socket counts; what a proxy says of its client does not."""
        network = self._admin.config_network
        if network is None:
            return
        try:
            peer = ipaddress.ip_address(request.client.host if request.client is not None else "")
        except ValueError:
            raise ApiError(400, "INVALID_REMOTE_ADDR") from None
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        if peer not in network:
            raise ApiError(403, "FORBIDDEN")


def _parse_addresses(text: str) -> list[str]:
    """A JSON array of strings; null is none."""
    try:
        addresses = json.loads(text)
    except (ValueError, RecursionError):
        raise ApiError(400, "INVALID_VALUE") from None
    if addresses is None:
        return []
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise ApiError(400, "INVALID_VALUE")
    return addresses
