"""The routes of staged publishing: put, prepare, publish, abort, list. An addition to NSQ's API."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple

from nsquark.gotext import parse_int
from nsquark.http import HttpError, Request, Response, Router, v1_json
from nsquark.http.server.slices import slices
from nsquark.names import is_ephemeral, is_valid_name
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.protocol.auth.authorizations import PUBLISH, Authorizations
from nsquark.nsqd.staged.application import Home, Published, Stage, StagingError, Wanted
from nsquark.nsqd.staged.stage_file import BadStage

from .arguments import not_stored
from .publishes import parse_defer_ms, parse_mpub

APP = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")
URL = re.compile(r"https?://[!-~]{1,500}")
MAX_NUMBER = (1 << 63) - 1
MAX_PARTITION = (1 << 31) - 1
MAX_PUBLISH_BODY = 4 << 20  # about 20,000 partitions, and a note
MAX_NOTE = 2 << 20
STORED = v1_json({"known": False})
KNOWN = v1_json({"known": True})


def add_staging_routes(table: Router, broker: Broker) -> None:
    api = StagingApi(broker)
    max_body = broker.options.max_body_size
    table.add("POST", "/staged/put", api.put, max_body=max_body, logged=False, access="publish")
    table.add("POST", "/staged/prepare", api.prepare, max_body=MAX_PUBLISH_BODY, access="application")
    table.add("POST", "/staged/publish", api.publish, max_body=MAX_PUBLISH_BODY, access="application")
    table.add("POST", "/staged/abort", api.abort, access="application")
    table.add("GET", "/staged", api.listed, access="known")


class Put(NamedTuple):
    """A put that is well-formed."""

    app: str
    batch: int
    partition: int
    attempt: str
    seq: int
    topic: str
    defer_ms: int
    messages: int
    body: bytes


class StagingApi:
    """The handlers. An application belongs to the clients that may publish to all of its topics.

    Any other client could put messages into a batch of it, publish what it has not finished, drop what it has
    staged, or have nsqd take a batch as known that never came.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._staging = broker.staging

    def put(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        put = self._parse_put(request)
        return self._put(put) if request.grants is None else self._put_checked(request, put)

    def _parse_put(self, request: Request) -> Put:
        app, batch = _app(request), _number(request, "batch")
        partition, attempt = _number(request, "partition", MAX_PARTITION), _attempt(request)
        seq = _number(request, "seq", MAX_PARTITION)
        topic = self._topic(request)
        defer_ms = parse_defer_ms(request, self._broker.options)
        count = parse_mpub(request.body, self._broker.options, exact=True).count
        return Put(app, batch, partition, attempt, seq, topic, defer_ms, count, request.body)

    async def _put_checked(self, request: Request, put: Put) -> Response:
        try:
            await self._check_owner(request, put.app)
        except OSError as error:
            return self._refused(error)
        answer = self._put(put)
        return answer if isinstance(answer, Response) else await answer

    def _put(self, put: Put) -> Response | Coroutine[Any, Any, Response]:
        try:
            stage = self._staging.stage(put.app, put.batch, put.partition, put.attempt)
            if stage is None:
                return KNOWN
            if stage.records < 0:
                return self._put_later(stage, put)
            self._staging.put(stage, put.seq, put.topic, put.messages, put.defer_ms, put.body)
        except StagingError as error:
            raise HttpError(error.status, error.code) from None
        except OSError as error:
            return self._refused(error)
        return STORED

    async def _put_later(self, stage: Stage, put: Put) -> Response:
        """The stage is of an earlier process, and must be looked into."""
        try:
            await self._staging.folder.recover(stage)
            self._staging.put(stage, put.seq, put.topic, put.messages, put.defer_ms, put.body)
        except StagingError as error:
            raise HttpError(error.status, error.code) from None
        except OSError as error:
            return self._refused(error)
        return STORED

    async def _check_owner(self, request: Request, app: str) -> None:
        """Raises HttpError if the client may not publish to every topic of the application, and OSError."""
        held = request.grants
        if isinstance(held, Authorizations):
            topics = await self._staging.topics_of(app)
            if not all(held.allows(PUBLISH, topic) for topic in topics):
                raise HttpError(403, "UNAUTHORIZED")

    def _refused(self, error: OSError) -> Response:
        self._broker.unhealthy(str(error))
        return not_stored(error.strerror or str(error)).response

    async def prepare(self, request: Request) -> Response:
        app, batch = _app(request), _number(request, "batch")
        home = Home(request.parameter("home"), request.parameter("home_url"))
        if not ATTEMPT.fullmatch(home.node):
            raise HttpError(400, "INVALID_HOME")
        if not URL.fullmatch(home.url):
            raise HttpError(400, "INVALID_HOME_URL")
        wanted, _ = _parse_wanted(request.body)
        try:
            await self._check_owner(request, app)
            prepared = await self._staging.prepare(app, batch, wanted, home)
        except StagingError as error:
            raise HttpError(error.status, error.code) from None
        except OSError as error:
            return self._refused(error)
        return STORED if prepared else KNOWN

    async def publish(self, request: Request) -> Response:
        app, batch = _app(request), _number(request, "batch")
        wanted, note = _parse_wanted(request.body)
        try:
            await self._check_owner(request, app)
            published = await self._staging.publish(app, batch, wanted, note)
        except StagingError as error:
            raise HttpError(error.status, error.code) from None
        except BadStage:
            raise HttpError(500, "STAGE_BROKEN") from None
        except OSError as error:
            return self._refused(error)
        except asyncio.CancelledError:
            if self._broker.stopping:  # the next start goes on with it
                raise HttpError(503, "EXITING") from None
            raise
        return v1_json(_answer(published))

    async def abort(self, request: Request) -> Response:
        app, batch = _app(request), _number(request, "batch")
        partition = _number(request, "partition", MAX_PARTITION) if "partition" in request.query else None
        attempt = _attempt(request) if "attempt" in request.query else None
        try:
            await self._check_owner(request, app)
            number = self._staging.abort(app, batch, partition, attempt)
        except StagingError as error:
            raise HttpError(error.status, error.code) from None
        except OSError as error:
            return self._refused(error)
        return v1_json({"aborted": number})

    async def listed(self, request: Request) -> Response:
        wanted = _app(request) if "app" in request.query else None
        apps: list[dict[str, Any]] = []
        async for some in slices(self._staging.listed(wanted, time.time())):
            apps += some
        return v1_json({"node": self._broker.node.uuid, "apps": apps})

    def _topic(self, request: Request) -> str:
        name = request.parameter("topic")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        if is_ephemeral(name):  # it would not survive what staging is for
            raise HttpError(400, "EPHEMERAL_TOPIC")
        return name


def _app(request: Request) -> str:
    name = request.parameter("app")
    if not APP.fullmatch(name):
        raise HttpError(400, "INVALID_APP")
    return name


def _attempt(request: Request) -> str:
    attempt = request.parameter("attempt")
    if not ATTEMPT.fullmatch(attempt):
        raise HttpError(400, "INVALID_ATTEMPT")
    return attempt


def _number(request: Request, name: str, most: int = MAX_NUMBER) -> int:
    try:
        number = parse_int(request.parameter(name), 10)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise HttpError(400, f"INVALID_{name.upper()}")
    return number


def _parse_wanted(body: bytes) -> tuple[list[Wanted], str]:
    """`{"partitions": [{"partition": 0, "attempt": "…", "messages": 10}, …], "note": "…"}`.

    A partition comes once, the note may be missing.
    """
    try:
        told = json.loads(body)
        entries, note = told["partitions"], told.get("note", "")
        if not isinstance(entries, list) or not isinstance(note, str) or len(note) > MAX_NOTE:
            raise TypeError("not a list, or no note")
        wanted = [_parse_stage(each) for each in entries]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise HttpError(400, "INVALID_BODY") from None
    if len({each.partition for each in wanted}) < len(wanted):
        raise HttpError(400, "INVALID_BODY")
    return wanted, note


def _parse_stage(entry: dict[str, Any]) -> Wanted:
    partition, attempt, messages = entry["partition"], entry["attempt"], entry["messages"]
    for number, most in ((partition, MAX_PARTITION), (messages, MAX_NUMBER)):
        if type(number) is not int or not 0 <= number <= most:
            raise ValueError("not a count")
    if not isinstance(attempt, str) or not ATTEMPT.fullmatch(attempt):
        raise ValueError("not an attempt")
    return Wanted(partition, attempt, messages)


def _answer(published: Published) -> dict[str, Any]:
    topics = published.topics
    return {
        "known": published.known,
        "batch": published.batch,
        "messages": None if topics is None else sum(topics.values()),
        "topics": None if topics is None else dict(topics),
        "note": published.note,
    }
