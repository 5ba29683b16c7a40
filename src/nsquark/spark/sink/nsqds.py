"""The nsqds that a sink may publish to: those that the options name, or all that the nsqlookupds know.

A source asks for the nsqds of a topic instead: see `source.directory`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from nsquark.net.addresses import join_address

from ..errors import BadResponse, Unreachable
from ..http import fetch_json
from ..nsqd_urls import find_http_url, find_https_url
from ..options import Addresses

_T = TypeVar("_T")


class _Registered(NamedTuple):
    """An nsqd as an nsqlookupd knows it."""

    host: str
    tcp_port: int
    http_port: int


def find_tcp_addresses(addresses: Addresses) -> list[str]:
    """host:port of every nsqd's TCP port. Raises Unreachable, RequestRefused or BadResponse."""
    if addresses.nsqd_tcp:
        return list(addresses.nsqd_tcp)
    if addresses.lookupd:
        return [join_address(each.host, each.tcp_port) for each in _ask_lookupds(addresses, [])]
    return _ask_each(addresses.nsqd_http, lambda url: [_ask_tcp_address(url, addresses)], [])


def find_http_urls(addresses: Addresses) -> tuple[list[str], list[str]]:
    """The sorted URLs of all nsqds' HTTP APIs, and the problems of the daemons that did not answer.

    The URL of an nsqd that does not tell its HTTP port is empty.
    Raises Unreachable if no daemon answers, RequestRefused or BadResponse.
    """
    if addresses.nsqd_http:
        return sorted(set(addresses.nsqd_http)), []
    problems: list[str] = []
    if addresses.nsqd_tcp:
        urls = _ask_each(addresses.nsqd_tcp, lambda each: [find_http_url(each, addresses.access)], problems)
    else:
        registered = _ask_lookupds(addresses, problems)
        urls = [f"http://{join_address(each.host, each.http_port)}" for each in registered]
    return sorted(urls), problems


def _ask_lookupds(addresses: Addresses, problems: list[str]) -> list[_Registered]:
    def ask(lookupd: str) -> list[_Registered]:
        producers = fetch_json(lookupd, addresses.access, "/nodes").get("producers") or ()
        return [
            _Registered(each["broadcast_address"], each["tcp_port"], each["http_port"]) for each in producers
        ]

    found = _ask_each(addresses.lookupd, ask, problems)
    if not found:
        raise Unreachable(f"no nsqd is known at {', '.join(addresses.lookupd)}")
    return found


def _ask_tcp_address(url: str, addresses: Addresses) -> str:
    url = find_https_url(url, addresses.access)
    port = fetch_json(url, addresses.access, "/info")["tcp_port"]
    return join_address(urlsplit(url).hostname or "", port)


def _ask_each(daemons: tuple[str, ...], ask: Callable[[str], list[_T]], problems: list[str]) -> list[_T]:
    """The answers of all daemons, each entry once. Adds the daemons that do not answer to `problems`.

    Raises Unreachable if none of them answers.
    """
    found: dict[_T, None] = {}
    for daemon in daemons:
        try:
            found |= dict.fromkeys(ask(daemon))
        except Unreachable as error:
            problems.append(str(error))
        except (KeyError, TypeError, AttributeError):
            raise BadResponse(f"{daemon}: not an answer of NSQ") from None
    if len(problems) == len(daemons):
        raise Unreachable("; ".join(problems))
    return list(found)
