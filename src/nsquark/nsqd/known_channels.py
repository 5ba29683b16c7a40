"""Which channels nsqlookupds know of a topic, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from urllib.parse import quote

from nsquark.http.fetch import fetch
from nsquark.names import is_ephemeral, is_valid_name

from .options import Options

logger = logging.getLogger(__name__)

AT_ONCE = 64  # requests; a burst of new topics waits its turn, each topic no longer than its time
MAX_ANSWER = 1 << 20
MAX_CHANNELS = 1000  # to believe


class KnownChannels:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def ask(self, lookupds: Sequence[tuple[str, int]], topic: str) -> list[str]:
        """All that any of these (host and HTTP port) knows, but for ephemeral ones. Who fails is only logged.

        Takes no longer than `--http-client-request-timeout`.
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
        """Raises OSError, and ValueError for an answer that is not what was asked for."""
        target = f"/channels?topic={quote(topic, safe='')}"
        async with self._turns:
            logger.info("CI: querying nsqlookupd http://%s:%d%s", host, port, target)
            status, body = await self._fetch(host, port, target)
            if status == 403 and (https_port := _https_port(body)):
                status, body = await self._fetch(host, https_port, target, tls=True)
        if status != 200:
            raise ValueError(f"got response {status}")
        channels = json.loads(body)["channels"]
        return {name for name in channels if is_valid_name(name) and not is_ephemeral(name)}

    async def _fetch(self, host: str, port: int, target: str, tls: bool = False) -> tuple[int, bytes]:
        options = self._options
        context = None
        if tls:
            import ssl  # for the few who have put TLS before their lookupds

            context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
        return await fetch(
            host,
            port,
            target,
            connect_timeout=options.http_client_connect_timeout,
            timeout=options.http_client_request_timeout,
            max_body=MAX_ANSWER,
            tls=context,
        )


def _https_port(body: bytes) -> int:
    """Where a server that wants TLS has it; 0 if it does not say."""
    try:
        port = json.loads(body)["https_port"]
    except (ValueError, KeyError, TypeError):
        return 0
    return port if type(port) is int and 0 < port < 1 << 16 else 0
