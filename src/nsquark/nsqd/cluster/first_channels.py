"""Which channels nsqlookupds know of a topic, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from urllib.parse import quote

from nsquark.names import is_ephemeral, is_valid_name
from nsquark.net.addresses import join_address
from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol.certificates import Certificates

from .http_queries import Asking

logger = logging.getLogger(__name__)

AT_ONCE = 64  # requests; a burst of new topics waits its turn, each topic no longer than its time
MAX_ANSWER = 1 << 20
MAX_CHANNELS = 1000  # to believe


class KnownChannels:
    def __init__(self, options: Options, certificates: Certificates) -> None:
        self._options = options
        self._asking = Asking(options, certificates)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def ask(self, lookupds: Sequence[tuple[str, int]], topic: str) -> list[str]:
        """The channels that any of these lookupds (host and HTTP port) knows, without ephemeral ones.

        A lookupd that fails is only logged. Takes no longer than `--http-client-request-timeout`.
        """
        tasks = [asyncio.create_task(self._ask(host, port, topic)) for host, port in lookupds]
        try:
            await asyncio.wait(tasks, timeout=self._options.http_client_request_timeout)
        finally:
            for task in tasks:
                task.cancel()
        known: set[str] = set()
        for (host, port), task in zip(lookupds, tasks, strict=True):
            error = task.exception() if task.done() else TimeoutError()
            if error is None:
                known |= task.result()
            else:
                logger.warning(
                    "failed to query nsqlookupd %s:%d for channels to pre-create for topic %s - %s",
                    host, port, topic, str(error) or type(error).__name__,
                )  # fmt: skip
        if len(known) > MAX_CHANNELS:
            logger.error("topic %s: creating %d of %d known channels", topic, MAX_CHANNELS, len(known))
        return sorted(known)[:MAX_CHANNELS]

    async def _ask(self, host: str, port: int, topic: str) -> set[str]:
        """Raises ConnectFailed, ConnectionLost, and ValueError for an answer that is no list of channels."""
        url = f"http://{join_address(host, port)}/channels?topic={quote(topic, safe='')}"
        async with self._turns:
            logger.info("CI: querying nsqlookupd %s", url)
            answer = await self._asking.ask("GET", url, max_body=MAX_ANSWER)
        channels = json.loads(answer.body)["channels"]
        return {name for name in channels if is_valid_name(name) and not is_ephemeral(name)}
