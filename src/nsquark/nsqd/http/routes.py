"""nsqd's HTTP API: the routes of NSQ 1.3.0 over the broker.

Whatever is wrong with a request is raised as HttpError, in the order in which NSQ checks it.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from nsquark.debug import add_debug_routes
from nsquark.gotext import nanoseconds
from nsquark.http import (
    JSON_TYPE,
    TEXT_TYPE,
    HttpError,
    PendingResponse,
    Request,
    Response,
    Router,
    joined,
    plain_text,
    v1_body,
    v1_empty,
    v1_error,
    v1_json,
    v1_text,
)
from nsquark.kernel import KERNEL
from nsquark.names import is_valid_name
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core import topic as topic_module
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.stats import report as stats
from nsquark.nsqd.stats.metrics import Metrics
from nsquark.version import NSQ_VERSION, VERSION

from .arguments import (
    find_channel,
    find_topic,
    journaling,
    not_stored,
    storing,
    topic_and_channel_name,
)
from .channels import ChannelApi
from .commit_hold import CommitHold
from .config import ConfigApi
from .guard import HttpGuard
from .leases import LeaseApi
from .log import LogApi
from .peek import PeekApi
from .publishes import parse_defer_ms, parse_mpub, split_lines
from .reports import MAX_REPORT, ReportApi
from .retention import RetentionApi
from .staged import add_staging_routes

logger = logging.getLogger(__name__)

OK = v1_text("OK")
EMPTY = v1_empty()
PONG = plain_text(200, "OK")
EXITING = v1_error(503, "EXITING")
OPENAPI = Path(__file__).with_name("openapi.yaml")
FLAGS = {"true": True, "1": True, "false": False, "0": False}


def router(broker: Broker) -> Router:
    """All routes of the HTTP and HTTPS listeners."""
    options = broker.options
    api = HttpApi(broker)
    config = ConfigApi(options, broker.lookup.set_addresses)
    guard = HttpGuard(broker.auth_servers) if options.http_auth and broker.auth_servers else None
    table = Router(guard, CommitHold(broker, broker.gate) if broker.gate is not None else None)
    max_msg, max_body = options.max_msg_size, options.max_body_size
    # `access` is what a client must be allowed with --http-auth, see guard.py
    table.add("GET", "/ping", api.ping, access="anybody")
    table.add("GET", "/live", api.live, access="anybody")
    table.add("GET", "/ready", api.ready, access="anybody")
    table.add("GET", "/info", api.info, access="known")
    table.add("GET", "/stats", api.stats, access="known")
    table.add("POST", "/health/acknowledge", api.acknowledge, access="everything")
    table.add("GET", "/metrics", Metrics(broker).get, access="known")
    table.add("GET", "/openapi.yaml", api.openapi, access="anybody")
    for path in ("/pub", "/put"):  # the second of each is the name before NSQ 1.0
        table.add(
            "POST", path, api.pub, max_body=max_msg, too_big="MSG_TOO_BIG", logged=False, access="publish"
        )
    for path in ("/mpub", "/mput"):
        table.add("POST", path, api.mpub, max_body=max_body, logged=False, access="publish")
    leases, retention = LeaseApi(broker), RetentionApi(broker)
    log, peek, channel = LogApi(broker), PeekApi(broker), ChannelApi(broker, leases)
    for thing, access in (("topic", "publish"), ("channel", "subscribe")):
        for verb in ("create", "delete", "empty", "pause", "unpause"):
            creates = (thing, verb) == ("channel", "create")
            handler = channel.create if creates else getattr(api, f"{thing}_{verb}")
            table.add("POST", f"/{thing}/{verb}", handler, access=access)
            # Its name before NSQ 1.0, when a GET would do.
            table.add("POST", f"/{verb}_{thing}", handler, access=access)
            table.add("GET", f"/{verb}_{thing}", handler, access=access)
    table.add("GET", "/log/range", log.range, access="read")
    table.add("GET", "/log/read", log.read, access="read")
    table.add("GET", "/topic/peek", peek.topic, access="read")
    table.add("GET", "/channel/peek", peek.channel, access="subscribe")
    for verb in ("seek", "commit", "max_attempts", "redeliver"):
        table.add("POST", f"/channel/{verb}", getattr(channel, verb), access="subscribe")
    table.add("POST", "/channel/lease", leases.lease, access="subscribe")
    table.add("GET", "/topic/retention", retention.tell, access="known")
    table.add("POST", "/topic/retention", retention.change, access="publish")
    table.add("POST", "/channel/hold_timeout", retention.hold_timeout, access="subscribe")
    reports = ReportApi(broker)
    table.add(
        "POST", "/channel/report", reports.report, max_body=MAX_REPORT, logged=False, access="subscribe"
    )
    table.add("GET", "/channel/reports", reports.reports, access="subscribe or everything")
    add_staging_routes(table, broker)
    table.add("GET", "/config/<opt>", config.get, access="known")
    table.add(
        "PUT", "/config/<opt>", config.put, max_body=max_msg, too_big="INVALID_VALUE", access="everything"
    )
    add_debug_routes(table)  # for clients that may do everything
    return table


class PublishReceipt(PendingResponse):
    """The answer to a publisher. The topic settles it when the messages are stored."""

    __slots__ = ()

    def settle(self, reason: str | None) -> None:
        if reason is None:
            self.resolve(OK)
        else:
            self.resolve(EXITING if reason == topic_module.EXITING else not_stored(reason).response)


class HttpApi:
    """A method per route."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._owed: set[tuple[str, str]] = set()  # deletions that were answered 503

    # ---- the node

    def ping(self, _request: Request) -> Response:
        health = self._broker.health
        return PONG if health == "OK" else plain_text(500, health)

    def live(self, _request: Request) -> Response:
        """The process answers. What else is wrong, a restart would not mend."""
        return PONG

    def ready(self, _request: Request) -> Response:
        reason = self._broker.not_ready
        return plain_text(503, f"NOK - {reason}") if reason else PONG

    async def acknowledge(self, request: Request) -> Response:
        """Damage has been seen: health tells it no more. Of one topic, or of everything."""
        broker = self._broker
        topics = [self._topic(request)] if "topic" in request.query else list(broker.topics.values())
        done = await broker.acknowledge(topics, others="topic" not in request.query)
        return v1_json({"acknowledged": [str(record.path) for record in done], "health": broker.health})

    def info(self, _request: Request) -> Response:
        broker, options = self._broker, self._broker.options
        return v1_json(
            {
                "version": NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": broker.hostname,
                "http_port": broker.http_port,
                "tcp_port": broker.tcp_port,
                "start_time": int(broker.start_time),
                "max_heartbeat_interval": nanoseconds(options.max_heartbeat_interval),
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": nanoseconds(options.max_output_buffer_timeout),
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
                "nsquark_version": VERSION,
                "kernel": KERNEL,
            }
        )

    async def stats(self, request: Request) -> Response:
        query = request.query
        wanted = stats.Wanted(
            topic=query.get("topic", ""),
            channel=query.get("channel", ""),
            clients=FLAGS.get(query.get("include_clients", ""), True),
            memory=FLAGS.get(query.get("include_mem", ""), True),
        )
        if query.get("format") == "json":
            return v1_body(await joined(stats.json_pieces(self._broker, wanted)), JSON_TYPE)
        return v1_body(await joined(stats.text_pieces(self._broker, wanted, time.time())), TEXT_TYPE)

    def openapi(self, _request: Request) -> Response:
        return Response(200, OPENAPI.read_bytes(), (("Content-Type", "application/yaml"),))

    # ---- publishing

    def pub(self, request: Request) -> PendingResponse:
        body = request.body
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        topic = self._topic_to_publish(request)
        defer = parse_defer_ms(request, self._broker.options) / 1000 if "defer" in request.query else 0.0
        receipt = PublishReceipt()
        topic.publish((body,), defer, receipt)
        return receipt

    def mpub(self, request: Request) -> Response | PendingResponse:
        topic = self._topic_to_publish(request)
        binary = request.query.get("binary")
        receipt = PublishReceipt()
        if binary is None or FLAGS.get(binary) is False:
            bodies = split_lines(request.body, self._broker.options)
            if not bodies:
                return OK
            topic.publish(bodies, 0.0, receipt)
            return receipt
        if binary not in FLAGS:
            logger.warning("deprecated value '%s' used for /mpub binary param", binary)
        topic.publish_mpub(parse_mpub(request.body, self._broker.options), receipt)
        return receipt

    def _topic_to_publish(self, request: Request) -> Topic:
        """The topic named in the query, created if need be."""
        name = request.parameter("topic")
        topic = self._broker.topics.get(name)
        if topic is None:
            if not is_valid_name(name):
                raise HttpError(400, "INVALID_TOPIC")
            with storing():
                topic = self._broker.topic(name)
        return topic

    # ---- topics

    async def topic_create(self, request: Request) -> Response:
        """Answered when the topic has the channels that nsqlookupds know of, as NSQ does."""
        topic = self._topic_to_publish(request)
        await self._broker.lookup.started(topic)
        with storing():
            topic.journaling.check(topic.pumped)
        return EMPTY

    async def topic_delete(self, request: Request) -> Response:
        name = request.parameter("topic")
        if not self._is_owed(name, ""):
            self._topic(request)
        with storing():
            if name in self._broker.topics:
                self._broker.delete_topic(name)
            self._owed.add((name, ""))
            await self._broker.save_metadata()
        self._owed.discard((name, ""))
        return EMPTY

    def _is_owed(self, topic: str, channel: str) -> bool:
        """Whether it was deleted and that is not on the disk yet: to repeat the request makes sure of it."""
        return (topic, channel) in self._owed

    def topic_empty(self, request: Request) -> Response:
        if not is_valid_name(request.parameter("topic")):
            raise HttpError(400, "INVALID_TOPIC")
        topic = self._topic(request)
        with journaling(topic):
            topic.empty()
        return EMPTY

    async def topic_pause(self, request: Request) -> Response:
        self._topic(request).pause()
        with storing():
            await self._broker.save_metadata()
        return EMPTY

    async def topic_unpause(self, request: Request) -> Response:
        self._topic(request).unpause()
        with storing():
            await self._broker.save_metadata()
        return EMPTY

    def _topic(self, request: Request) -> Topic:
        """The topic named in the query, which must be there."""
        return find_topic(self._broker, request)

    # ---- channels

    async def channel_delete(self, request: Request) -> Response:
        topic, name = topic_and_channel_name(self._broker, request)
        if not self._is_owed(topic.name, name):
            self._channel(request)
        with storing():
            if name in topic.channels:
                topic.journaling.check(topic.pumped)
                topic.delete_channel(name)
            self._owed.add((topic.name, name))
            if not topic.exiting:
                await self._broker.syncer.sync_journal(topic)
            await self._broker.save_metadata()
        self._owed.discard((topic.name, name))
        return EMPTY

    def channel_empty(self, request: Request) -> Response:
        channel = self._channel(request)
        with journaling(channel.topic):
            channel.empty()
        return EMPTY

    async def channel_pause(self, request: Request) -> Response:
        self._channel(request).pause()
        with storing():
            await self._broker.save_metadata()
        return EMPTY

    async def channel_unpause(self, request: Request) -> Response:
        self._channel(request).unpause()
        with storing():
            await self._broker.save_metadata()
        return EMPTY

    def _channel(self, request: Request) -> Channel:
        return find_channel(self._broker, request)
