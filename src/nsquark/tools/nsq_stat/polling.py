"""Asking nsqds and nsqlookupds for the counters of one channel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from nsquark.errors import ConnectionLost, NsquarkError
from nsquark.http.client.protocol import nsq_headers, parse_json
from nsquark.http.client.single_request import ask
from nsquark.net.addresses import join_address

from ..command.running import ToolError
from .counters import Counters, parse_counters
from .options import Options


@dataclass(slots=True)
class Round:
    """What one round of questions has brought.

    With `--tolerate-failures`, an nsqd that fails has its last counters in `nodes`.
    """

    nodes: dict[str, Counters] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # by address, nsqds and nsqlookupds


class Poller:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._last = Round()
        self._listed: list[str] = []  # the nsqds of the last round

    async def poll(self) -> Round:
        """Raises ToolError, by default for any request that fails."""
        options, result = self._options, Round()
        if options.lookupd_http_address:
            await self._look_up(result)
        else:
            self._listed = list(dict.fromkeys(options.nsqd_http_address))
        query = {"topic": options.topic, "channel": options.channel, "include_clients": "false"}
        target = f"/stats?{urlencode({'format': 'json', **query})}"
        answers, failed = await self._ask_all(self._listed, target)
        self._judge(failed, result, len(self._listed), "nsqd stats")
        for address in self._listed:
            counters = None
            if address in answers:
                counters = parse_counters(answers[address], options.topic, options.channel)
            elif address in self._last.nodes:
                counters = self._last.nodes[address]
            if counters is not None:
                result.nodes[address] = counters
        if not result.nodes:
            raise ToolError(
                f"ERROR: failed to find channel({options.channel}) in stats metadata"
                f" for topic({options.topic})"
            )
        self._last = result
        return result

    async def _look_up(self, result: Round) -> None:
        """The nsqds that have the topic. When all nsqlookupds fail, it is those of the last round."""
        options = self._options
        lookupds = list(dict.fromkeys(options.lookupd_http_address))
        answers, failed = await self._ask_all(lookupds, f"/lookup?{urlencode({'topic': options.topic})}")
        self._judge(failed, result, len(lookupds) + bool(self._listed), "topic producers")
        if not answers:
            return
        nodes: dict[str, None] = {}
        for address, answer in answers.items():
            try:
                answer = answer.get("data") or answer  # NSQ before 1.0 wraps its answers
                for each in answer.get("producers") or ():
                    nodes[join_address(each["broadcast_address"], each["http_port"])] = None
            except (AttributeError, KeyError, TypeError):
                raise ConnectionLost(f"{address}: not an answer of nsqlookupd") from None
        self._listed = list(nodes)

    async def _ask_all(self, addresses: Iterable[str], target: str) -> tuple[dict[str, Any], dict[str, str]]:
        """The JSON that each address answers with, and the error of each that does not."""
        addresses = list(addresses)
        results = await asyncio.gather(
            *(self._ask(each, target) for each in addresses), return_exceptions=True
        )
        answers, failed = {}, {}
        for address, result in zip(addresses, results, strict=True):
            if isinstance(result, NsquarkError):
                failed[address] = str(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                answers[address] = result
        return answers, failed

    async def _ask(self, address: str, target: str) -> Any:
        options = self._options
        url, response = await ask(
            "GET",
            f"http://{address}{target}",
            headers=nsq_headers(),
            timeout=options.http_client_request_timeout,
            connect_timeout=min(options.http_client_connect_timeout, options.http_client_request_timeout),
        )
        return parse_json(url, response.body)

    def _judge(self, failed: dict[str, str], result: Round, asked: int, what: str) -> None:
        """Remember what has failed, or raise ToolError if it is too much."""
        if failed and not (self._options.tolerate_failures and len(failed) < asked):
            raise ToolError(f"ERROR: failed to get {what} - {', '.join(failed.values())}")
        result.failed |= failed
