"""What etcd answers to a member of a replica group, and the values of the group that it holds.

The first byte chooses the question, the second one the status of the answer; the rest is its body. Values
lie in an answer as base64, which mutations seldom get right, so the rest may also be a value itself.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

from nsquark.http.client.connection import Reply
from nsquark.nsqd.replica.automaton.group import BadGroup, GroupState, MemberKey, PrimaryKey
from nsquark.nsqd.replica.etcd.client import EtcdClient, EtcdError
from nsquark.nsqd.replica.etcd.group_keys import GroupKeys
from reliability.fuzz.memory import run_loop
from reliability.fuzz.target import Target, require_same

KEYS = GroupKeys("g", "a")
STATE = GroupState(12, 3, "a@1f", ("a@1f", "b@2"))
PRIMARY = PrimaryKey("a@1f", 3, {"tcp": "127.0.0.1:4150"})
MEMBER = MemberKey("b@2", True, ((3, 10), (2, 5)), {"http": "127.0.0.1:4151"})
_STATUSES = (200, 200, 200, 400, 401, 404, 500, 503)


class _Endpoint:
    """Stands for the pool of connections: every request gets the same answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self._reply = Reply(status, "", body)

    async def send(self, *_: object) -> Reply:
        return self._reply

    def close(self) -> None:
        pass


async def _range(client: EtcdClient) -> object:
    return KEYS.parse(await client.range(KEYS.root))


async def _commit(client: EtcdClient) -> object:
    answer = await client.commit(KEYS.bootstrap(STATE))
    return answer.succeeded, KEYS.parse(answer)


_QUESTIONS: tuple[Callable[[EtcdClient], Awaitable[object]], ...] = (
    _range,
    _commit,
    lambda client: client.grant(3.0),
    lambda client: client.keep_alive(7),
    lambda client: client.revoke(7),
)


_VALUES: tuple[type[GroupState] | type[PrimaryKey] | type[MemberKey], ...] = (
    GroupState,
    PrimaryKey,
    MemberKey,
)


def _value(kind: type[GroupState] | type[PrimaryKey] | type[MemberKey], data: bytes) -> object:
    try:
        found = kind.parse(data)
    except BadGroup as error:
        return str(error)
    require_same("packed and parsed again", found, kind.parse(found.pack()))
    return found


def run(data: bytes) -> object:
    choice, status = data[:1] or b"\0", data[1:2] or b"\0"
    return _run(choice[0], status[0], data[2:])


def _run(choice: int, status: int, body: bytes) -> object:
    kind = choice % (len(_QUESTIONS) + len(_VALUES))
    if kind >= len(_QUESTIONS):
        return _value(_VALUES[kind - len(_QUESTIONS)], body)

    async def ask() -> object:
        client = EtcdClient(["127.0.0.1:1", "127.0.0.1:2"], username="u" if choice & 128 else "")
        client._pool.close()
        endpoint: Any = _Endpoint(_STATUSES[status % len(_STATUSES)], body)
        client._pool = endpoint
        return await _QUESTIONS[kind](client)

    try:
        return run_loop(ask())
    except (EtcdError, BadGroup) as error:
        return type(error).__name__, str(error)


def _kv(key: bytes, value: bytes, lease: int = 0) -> dict[str, str]:
    told = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
    return told | {"mod_revision": "9"} | ({"lease": str(lease)} if lease else {})


def seeds() -> list[bytes]:
    header = {"header": {"revision": "17"}}
    kvs = {
        "kvs": [
            _kv(KEYS.state, STATE.pack()),
            _kv(KEYS.primary, PRIMARY.pack(), 7),
            _kv(KEYS.member("b"), MEMBER.pack(), 8),
        ]
    }
    documents: list[tuple[int, int, object]] = [
        (0, 0, header | kvs),
        (1, 0, header | {"succeeded": True, "responses": [{}]}),
        (1, 0, header | {"responses": [{"response_range": kvs}]}),
        (2, 0, header | {"ID": "7587", "TTL": "3"}),
        (3, 0, {"result": header | {"ID": "7", "TTL": "3"}}),
        (4, 5, {"error": "etcdserver: requested lease not found", "code": 5}),
        (3, 0, {"error": {"message": "etcdserver: no leader", "grpc_code": 14}}),
        (128, 0, header | {"token": "t"} | kvs),
        (128, 4, {"error": "etcdserver: invalid auth token", "code": 16}),
    ]
    values = STATE.pack(), PRIMARY.pack(), MEMBER.pack()
    return [
        *(bytes((choice, status)) + json.dumps(each).encode() for choice, status, each in documents),
        *(bytes((len(_QUESTIONS) + number, 0)) + each for number, each in enumerate(values)),
    ]


TARGET = Target(
    name="etcd_answers",
    run=run,
    seeds=seeds,
    modules=(
        "nsquark.nsqd.replica.etcd.client",
        "nsquark.nsqd.replica.automaton.group",
        "nsquark.nsqd.replica.etcd.group_keys",
    ),
    words=(
        b'"kvs":[',
        b'"succeeded":true',
        b'"responses":[{}]',
        b'"response_range":{}',
        b'"header":{}',
        b"Infinity",
        b"-1",
        b"null",
        b"1e999",
        b'"error":{}',
        b'"a@1f"',
        b'"isr":[]',
        b"\xff",
    ),
)
