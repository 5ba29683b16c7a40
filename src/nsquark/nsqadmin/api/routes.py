"""The routes under `/api`: NSQ's JSON over the cluster, and its actions, for users that may change things."""

from __future__ import annotations

import re
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from nsquark.names import is_valid_name

from ..admin import Admin
from ..cluster import Outcome
from ..cluster.actions import ACTIONS
from ..routing import Handler, Resource
from ..upstream import Found
from .answers import ApiError, json_response, read_fields, resource, text_response
from .config import ConfigApi
from .graphite import GraphiteApi

T = TypeVar("T")

_BAD_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})")


def routes(admin: Admin) -> list[Resource]:
    """Without the base path."""
    reads, writes, config, graphite = (
        Reads(admin),
        Writes(admin),
        ConfigApi(admin),
        GraphiteApi(admin.options),
    )
    only = writes.only_admins
    table = [
        resource("/ping", GET=ping),
        resource("/api/topics", GET=reads.topics, POST=only(writes.create)),
        resource(
            "/api/topics/{topic}",
            GET=reads.topic,
            POST=only(writes.act_on_topic),
            DELETE=only(writes.delete_topic),
        ),
        resource(
            "/api/topics/{topic}/{channel}",
            GET=reads.channel,
            POST=only(writes.act_on_channel),
            DELETE=only(writes.delete_channel),
        ),
        resource("/api/nodes", GET=reads.nodes),
        resource("/api/nodes/{node}", GET=reads.node, DELETE=only(writes.tombstone)),
        resource("/api/counter", GET=reads.counter),
        resource("/api/graphite", GET=graphite.rate),
        resource("/config/{option}", GET=config.get, PUT=config.put),
    ]
    if admin.options.proxy_graphite:
        table.append(resource("/render", GET=graphite.render))
    return table


async def ping(_request: Request) -> Response:
    return text_response("OK")


class Reads:
    """The routes that need no permission."""

    def __init__(self, admin: Admin) -> None:
        self._cluster = admin.cluster

    async def topics(self, request: Request) -> Response:
        if _BAD_ESCAPE.search(request.scope["query_string"]):
            raise ApiError(400, "invalid URL escape in the query")
        if request.query_params.get("inactive") == "true":
            inactive = await self._cluster.inactive_topics()
            return json_response({"topics": inactive.value, "message": inactive.message})
        found = await self._cluster.topics()
        return json_response({"topics": found.value, "message": found.message})

    async def topic(self, request: Request) -> Response:
        found = await self._cluster.topic(request.path_params["topic"])
        return json_response({**found.value.to_json(), "message": found.message})

    async def channel(self, request: Request) -> Response:
        found = await self._cluster.channel(request.path_params["topic"], request.path_params["channel"])
        told = found.value.to_json() if found.value is not None else {}
        return json_response({**told, "message": found.message})

    async def nodes(self, _request: Request) -> Response:
        found = await self._cluster.nodes()
        return json_response({"nodes": [node.to_json() for node in found.value], "message": found.message})

    async def node(self, request: Request) -> Response:
        found = await self._cluster.node(request.path_params["node"])
        return json_response({**found.value.to_json(), "message": found.message})

    async def counter(self, _request: Request) -> Response:
        found = await self._cluster.counter()
        stats = {entry.key: entry.to_json() for entry in found.value}
        return json_response({"stats": stats, "message": found.message})


class Writes:
    """What admins may do. Notifications tell of what was done, and not of what ended in an error."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._actions = admin.actions
        self._tell = admin.notifications.tell

    def only_admins(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if not self._admin.is_admin(request):
                raise ApiError(403, "FORBIDDEN")
            return await handler(request)

        return guarded

    async def create(self, request: Request) -> Response:
        topic, channel = await read_fields(request, "topic", "channel")
        if not is_valid_name(topic):
            raise ApiError(400, "INVALID_TOPIC")
        if channel and not is_valid_name(channel):
            raise ApiError(400, "INVALID_CHANNEL")
        outcome = await self._actions.create_topic(topic)
        self._tell(request, "create_topic", topic)
        if channel:
            more = await self._actions.create_channel(topic, channel)
            self._tell(request, "create_channel", topic, channel)
            outcome.failures += more.failures
        return _answer(outcome)

    async def act_on_topic(self, request: Request) -> Response:
        topic, action = request.path_params["topic"], await _action(request)
        outcome = await self._actions.act_on_topic(topic, action)
        self._tell(request, f"{action}_topic", topic)
        return _answer(outcome)

    async def act_on_channel(self, request: Request) -> Response:
        topic, channel = request.path_params["topic"], request.path_params["channel"]
        action = await _action(request)
        outcome = await self._actions.act_on_channel(topic, channel, action)
        self._tell(request, f"{action}_channel", topic, channel)
        return _answer(outcome)

    async def delete_topic(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        outcome = await self._actions.delete_topic(topic)
        self._tell(request, "delete_topic", topic)
        return _answer(outcome)

    async def delete_channel(self, request: Request) -> Response:
        topic, channel = request.path_params["topic"], request.path_params["channel"]
        outcome = await self._actions.delete_channel(topic, channel)
        self._tell(request, "delete_channel", topic, channel)
        return _answer(outcome)

    async def tombstone(self, request: Request) -> Response:
        try:
            [topic] = await read_fields(request, "topic")
        except ApiError as error:
            raise ApiError(error.status, "INVALID_BODY") from None
        if not is_valid_name(topic):
            raise ApiError(400, "INVALID_TOPIC")
        node = request.path_params["node"]
        outcome = await self._actions.tombstone(topic, node)
        self._tell(request, "tombstone_topic_producer", topic, node=node)
        return _answer(outcome)


async def _action(request: Request) -> str:
    [action] = await read_fields(request, "action")
    if action not in ACTIONS:
        raise ApiError(400, "INVALID_ACTION")
    return action


def _answer(outcome: Outcome | Found[T]) -> Response:
    return json_response({"message": outcome.message})
