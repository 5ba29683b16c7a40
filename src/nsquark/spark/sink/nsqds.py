"""Where a sink may publish: the nsqds that are given, or all that the lookupds know.

For a source, which nsqds there are is a matter of the topic: see nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from ..errors import BadAnswer, Unreachable
from ..http import fetch
from ..nsqd_urls import http_url, https_url, join
from ..options import Addresses

_T = TypeVar("_T")


def find_tcp(addresses: Addresses) -> list[str]:
    """host:port of every nsqd's TCP port. Raises Unreachable, Refused or BadAnswer."""
    if addresses.nsqd_tcp:
        return list(addresses.nsqd_tcp)
    if addresses.lookupd:
        return [join(host, tcp_port) for host, tcp_port, _ in _registered(addresses, [])]
    return _some(addresses.nsqd_http, lambda url: [_tcp_of(url, addresses)], [])


def find_http(addresses: Addresses) -> tuple[list[str], list[str]]:
    """The URLs of all nsqds' HTTP APIs, sorted (one that has none is the empty one), and what is wrong with
    whoever could not be asked for them. Raises Unreachable, Refused or BadAnswer.
    """
    if addresses.nsqd_http:
        return sorted(set(addresses.nsqd_http)), []
    problems: list[str] = []
    if addresses.nsqd_tcp:
        urls = _some(addresses.nsqd_tcp, lambda each: [http_url(each, addresses.access)], problems)
    else:
        registered = _registered(addresses, problems)
        urls = [f"http://{join(host, http_port)}" for host, _, http_port in registered]
    return sorted(urls), problems


def _registered(addresses: Addresses, problems: list[str]) -> list[tuple[str, int, int]]:
    """Host, TCP port and HTTP port of all nsqds."""

    def ask(lookupd: str) -> list[tuple[str, int, int]]:
        producers = fetch(lookupd, addresses.access, "/nodes").get("producers") or ()
        return [(each["broadcast_address"], each["tcp_port"], each["http_port"]) for each in producers]

    found = _some(addresses.lookupd, ask, problems)
    if not found:
        raise Unreachable(f"no nsqd is known at {', '.join(addresses.lookupd)}")
    return found


def _tcp_of(url: str, addresses: Addresses) -> str:
    url = https_url(url, addresses.access)
    port = fetch(url, addresses.access, "/info")["tcp_port"]
    return join(urlsplit(url).hostname or "", port)


def _some(sources: tuple[str, ...], ask: Callable[[str], list[_T]], problems: list[str]) -> list[_T]:
    """What all of them say that are there, each once. Raises Unreachable if none is."""
    found: dict[_T, None] = {}
    for source in sources:
        try:
            found |= dict.fromkeys(ask(source))
        except Unreachable as error:
            problems.append(str(error))
        except (KeyError, TypeError, AttributeError):
            raise BadAnswer(f"{source}: not an answer of NSQ") from None
    if len(problems) == len(sources):
        raise Unreachable("; ".join(problems))
    return list(found)
