"""nsqlookupd's HTTP API: the routes of NSQ 1.3.0 over the directory.

What can be long (`/nodes`, `/topics`, `/debug`) is put together in pieces, with turns for all other work in
between. Lists are sorted, producers are in the order in which they came.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from time import monotonic_ns

from nsquark.debug import add_debug_routes
from nsquark.http import (
    JSON_TYPE,
    HttpError,
    Request,
    Response,
    Router,
    joined,
    pack_json,
    plain_text,
    v1_body,
    v1_empty,
    v1_json,
)
from nsquark.names import is_valid_name
from nsquark.version import NSQ_VERSION

from .directory import Directory
from .metrics import Metrics
from .registrations import NEVER, DirectoryFull, Peer, Registration

logger = logging.getLogger(__name__)

PONG = plain_text(200, "OK")
INFO = v1_json({"version": NSQ_VERSION})
EMPTY = v1_empty()
# What Go makes of a time that was never set.
NO_TIME = -6795364578871345152
NAMES_IN_A_PIECE = 1000


def router(directory: Directory) -> Router:
    api = HttpApi(directory)
    table = Router()
    table.add("GET", "/ping", api.ping)
    table.add("GET", "/live", api.ping)
    table.add("GET", "/ready", api.ping)
    table.add("GET", "/metrics", Metrics(directory).get)
    table.add("GET", "/info", api.info)
    table.add("GET", "/debug", api.debug)
    table.add("GET", "/lookup", api.lookup)
    table.add("GET", "/topics", api.topics)
    table.add("GET", "/channels", api.channels)
    table.add("GET", "/nodes", api.nodes)
    table.add("POST", "/topic/create", api.topic_create)
    table.add("POST", "/topic/delete", api.topic_delete)
    table.add("POST", "/topic/tombstone", api.topic_tombstone)
    table.add("POST", "/channel/create", api.channel_create)
    table.add("POST", "/channel/delete", api.channel_delete)
    add_debug_routes(table)
    return table


class HttpApi:
    """A method per route."""

    def __init__(self, directory: Directory) -> None:
        self._registrations = directory.registrations
        self._visible = directory.visible

    # ---- questions

    def ping(self, _request: Request) -> Response:
        return PONG

    def info(self, _request: Request) -> Response:
        return INFO

    def lookup(self, request: Request) -> Response:
        topic = request.parameter("topic")
        registration = self._registrations.topics.get(topic)
        if registration is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        now = monotonic_ns()
        producers = ",".join(f"{{{peer.packed}}}" for peer in self._visible.producers(registration, now))
        return _json(f'{{"channels":{self._channel_names(topic)},"producers":[{producers}]}}')

    def channels(self, request: Request) -> Response:
        return _json(f'{{"channels":{self._channel_names(request.parameter("topic"))}}}')

    def _channel_names(self, topic: str) -> str:
        return pack_json(sorted(each.channel for each in self._registrations.channels_of(topic)))

    async def topics(self, _request: Request) -> Response:
        return v1_body(await joined(self._topic_pieces()), JSON_TYPE)

    def _topic_pieces(self) -> Iterator[str]:
        names = self._registrations.topic_names()
        for first in range(0, len(names), NAMES_IN_A_PIECE):
            yield '{"topics":[' if first == 0 else ","
            yield pack_json(names[first : first + NAMES_IN_A_PIECE])[1:-1]
        yield "]}" if names else '{"topics":[]}'

    async def nodes(self, _request: Request) -> Response:
        return v1_body(await joined(self._node_pieces()), JSON_TYPE)

    def _node_pieces(self) -> Iterator[str]:
        now = monotonic_ns()
        before = '{"producers":['
        for peer in list(self._registrations.peers):
            # Others have had their turn since the first one: some may be gone.
            if peer in self._registrations.peers and self._visible.active(peer, now):
                yield before + self._node(peer, now)
                before = ","
        yield "]}" if before == "," else before + "]}"

    def _node(self, peer: Peer, now: int) -> str:
        topics, names = peer.named_topics()
        hidden = ["false"] * len(topics)
        if peer.tombstoned:
            for index, topic in enumerate(topics):
                if self._visible.tombstoned(topic, peer, now):
                    hidden[index] = "true"
        return f'{{{peer.packed},"tombstones":[{",".join(hidden)}],"topics":{names}}}'

    async def debug(self, _request: Request) -> Response:
        return v1_body(await joined(self._debug_pieces()), JSON_TYPE)

    def _debug_pieces(self) -> Iterator[str]:
        directory = self._registrations
        before = "{"
        clients = Registration("")
        clients.producers = dict.fromkeys(directory.peers, NEVER)
        found = [("client::", clients)]
        found += [(f"topic:{each.topic}:", each) for each in directory.topics.values()]
        for channels in directory.channels.values():
            found += [(f"channel:{each.topic}:{each.channel}", each) for each in channels.values()]
        for key, registration in found:
            if registration.producers:
                producers = [_debugged(peer, since) for peer, since in registration.producers.items()]
                yield f"{before}{pack_json(key)}:{pack_json(producers)}"
                before = ","
        yield "}" if before == "," else "{}"

    # ---- changes

    def topic_create(self, request: Request) -> Response:
        topic = _name(request, "topic")
        logger.info("DB: adding topic(%s)", topic)
        try:
            self._registrations.add_topic(topic)
        except DirectoryFull:
            raise HttpError(503, "DIRECTORY_FULL") from None
        return EMPTY

    def topic_delete(self, request: Request) -> Response:
        topic = request.parameter("topic")
        for registration in self._registrations.remove_topic(topic):
            if registration.channel:
                logger.info("DB: removing channel(%s) from topic(%s)", registration.channel, topic)
            else:
                logger.info("DB: removing topic(%s)", topic)
        return EMPTY

    def topic_tombstone(self, request: Request) -> Response:
        topic, node = request.parameter("topic"), request.parameter("node")
        logger.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        self._registrations.tombstone(topic, node, monotonic_ns())
        return EMPTY

    def channel_create(self, request: Request) -> Response:
        topic, channel = _name(request, "topic"), _name(request, "channel")
        logger.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        try:
            self._registrations.add_channel(topic, channel)
        except DirectoryFull:
            raise HttpError(503, "DIRECTORY_FULL") from None
        return EMPTY

    def channel_delete(self, request: Request) -> Response:
        topic, channel = _name(request, "topic"), _name(request, "channel")
        registration = self._registrations.channels.get(topic, {}).get(channel)
        if registration is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        logger.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        self._registrations.remove(registration)
        return EMPTY


def _debugged(peer: Peer, tombstoned_at: int) -> dict[str, object]:
    """A producer as `/debug` shows it, its times in Unix nanoseconds."""
    epoch = time.time_ns() - monotonic_ns()
    return {
        "broadcast_address": peer.info.broadcast_address,
        "hostname": peer.info.hostname,
        "http_port": peer.info.http_port,
        "id": peer.id,
        "last_update": epoch + peer.last_update,
        "tcp_port": peer.info.tcp_port,
        "tombstoned": tombstoned_at != NEVER,
        "tombstoned_at": NO_TIME if tombstoned_at == NEVER else epoch + tombstoned_at,
        "version": peer.info.version,
    }


def _json(text: str) -> Response:
    return v1_body(text.encode("utf-8", "backslashreplace"), JSON_TYPE)


def _name(request: Request, name: str) -> str:
    """A parameter that must be a name."""
    value = request.parameter(name)
    if not is_valid_name(value):
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return value
