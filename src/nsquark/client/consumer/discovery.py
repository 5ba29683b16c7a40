"""Which nsqds have a topic: every nsqlookupd is asked, and the answers are united.

The nsqlookupds know nothing of each other, so all are asked, at the same time. For one that cannot be asked,
its previous answer still holds.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nsquark.errors import ConnectionLost, NsquarkError, UsageError
from nsquark.http.client.protocol import BadStatus, nsq_headers
from nsquark.http.client.single_request import request
from nsquark.net.addresses import join_address

from ..addresses import Addresses
from ..config import Config

_MAX_ANSWER = 64 << 20
_FIRST_PERIOD = 1.0  # seconds


def lookup_url(lookupd: str, topic: str) -> str:
    """The URL to ask: `host:port` or a whole URL; the path defaults to /lookup, a query is kept.

    Raises UsageError if there is no port.
    """
    parts = urlsplit(lookupd if "://" in lookupd else f"http://{lookupd}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise UsageError(f"nsqlookupd {lookupd!r} is neither host:port nor a URL with a port")
    path = "/lookup" if parts.path in ("", "/") else parts.path
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("topic", topic)])
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def parse_producers(body: bytes, bare: bool) -> list[str]:
    """The addresses in an answer. Unless `bare`, the answer has the envelope of NSQ before 1.0."""
    try:
        document = json.loads(body or b"{}")
        if not bare and "producers" not in document:
            document = document.get("data") or {}
        return [
            join_address(str(producer["broadcast_address"]), int(producer["tcp_port"]))
            for producer in document.get("producers") or ()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConnectionLost(f"the answer is not nsqlookupd's: {error!r}") from None


async def lookup(url: str, config: Config) -> list[str]:
    """The answer of one nsqlookupd. A topic that it does not know has no nsqds."""
    headers = nsq_headers(config.auth_secret if config.lookupd_authorization else None)
    tls = config.ssl_context() if url.startswith("https:") else None
    answer = await request(
        "GET", url, headers=headers, timeout=config.lookupd_poll_timeout, tls=tls, max_body=_MAX_ANSWER
    )
    if answer.status == 404 and b"TOPIC_NOT_FOUND" in answer.body:
        return []
    if answer.status != 200:
        raise BadStatus(url, answer.status, answer.body)
    bare = answer.headers.get("x-nsq-content-type") == "nsq; version=1.0"
    return parse_producers(answer.body, bare)


class Discovery:
    """Asks the nsqlookupds of one consumer, and keeps the last answer of each."""

    def __init__(self, lookupds: Addresses, topic: str, config: Config) -> None:
        self._topic = topic
        self._config = config
        self._said: dict[str, list[str]] = {}  # by URL
        self._again = asyncio.Event()
        self.last_answer: float | None = None
        self.urls: dict[str, str] = {}  # URL: the address as the caller gave it
        for lookupd in (lookupds,) if isinstance(lookupds, str) else lookupds:
            self.add(lookupd)

    def add(self, lookupd: str) -> None:
        self.urls.setdefault(lookup_url(lookupd, self._topic), lookupd)
        self.poll_soon()

    def remove(self, lookupd: str) -> None:
        """Raises UsageError if it is unknown, or the last."""
        url = lookup_url(lookupd, self._topic)
        if url not in self.urls:
            raise UsageError(f"nsqlookupd {lookupd!r} is not among {', '.join(self.urls.values())}")
        if len(self.urls) == 1:
            raise UsageError(f"nsqlookupd {lookupd!r} is the last one")
        del self.urls[url]
        self._said.pop(url, None)

    async def poll(self) -> tuple[list[str], dict[str, Exception]]:
        """All addresses known now, and the errors of the nsqlookupds that could not be asked."""
        self._again.clear()
        urls = list(self.urls)
        answers = await asyncio.gather(*(lookup(url, self._config) for url in urls), return_exceptions=True)
        failed: dict[str, Exception] = {}
        for url, answer in zip(urls, answers, strict=True):
            if isinstance(answer, list):
                self._said[url] = answer
                self.last_answer = asyncio.get_running_loop().time()
            elif isinstance(answer, NsquarkError):
                failed[self.urls.get(url, url)] = answer
            else:
                raise answer
        return united(self._said[url] for url in urls if url in self._said), failed

    def poll_soon(self) -> None:
        """Poll at once instead of after the period. Several calls before the next poll count as one."""
        self._again.set()

    async def wait(self, polls: int, found: bool) -> None:
        """Return when the next poll is due, after `polls` of them; `found` if any has listed an nsqd."""
        try:
            async with asyncio.timeout(self.period(polls, found)):
                await self._again.wait()
        except TimeoutError:
            pass

    def period(self, polls: int, found: bool) -> float:
        """Seconds until the next poll. Jitter lengthens the first period, and later ones a little.

        Until an nsqd was found, the first periods are short: a topic often appears just after its consumer.
        """
        interval, jitter = self._config.lookupd_poll_interval, self._config.lookupd_poll_jitter
        if not found:
            interval = min(interval, _FIRST_PERIOD * 2.0 ** min(polls - 1, 20))
        return interval * (1 + random.random() * jitter * (1.0 if polls == 1 else 0.1))


def united(lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(address for addresses in lists for address in addresses))
