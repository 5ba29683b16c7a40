"""Etcd over its JSON gateway: transactions, leases, ranges, several endpoints, a user or a certificate.

In the gateway's JSON integers are texts, keys and values are base64, and what is zero, false or empty is
left out: a transaction whose comparison failed has no `succeeded`. Reads are linearizable. There is no
watch: a member reads its few keys twice a second, which costs etcd less than a stream that has to be kept
and checked.

A request that one endpoint did not answer is sent to the next, so etcd may get it twice. Transactions compare
revisions, which makes the second one fail; `group_keys.py` builds no other.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

from nsquark.errors import ConnectionLost, NsquarkError, UsageError
from nsquark.http.client.pool import ClientPool, origin_of
from nsquark.http.client.protocol import pack_request, parse_url

from .transactions import Answer, Delete, KeyValue, LeasedBy, ModifiedAt, Put, Transaction

MAX_ANSWER = 4 << 20
_UNAUTHENTICATED, _UNAVAILABLE, _NOT_FOUND, _PERMISSION = 16, 14, 5, 7
_ELSEWHERE = frozenset((1, 2, 4, 8, _UNAVAILABLE))  # another endpoint may do better
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")


class EtcdError(NsquarkError):
    """Etcd, or a way to it, is not as it should be."""


class EtcdUnavailable(EtcdError):
    """No endpoint gave an answer in time. What was asked for may be done, or not."""


class EtcdRefused(EtcdError):
    """Etcd answered with an error. `code` is that of gRPC."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class LeaseNotFound(EtcdRefused):
    """The lease has ended."""


class EtcdClient:
    """One etcd cluster, from within a running event loop.

    `timeout` is for a call with all its endpoints. `endpoints` are URLs, or `host:port`, which is https with
    `tls`.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout: float = 1.0,
        username: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not endpoints:
            raise UsageError("etcd has no endpoint: give at least one host:port")
        self._endpoints = [_endpoint(each, tls is not None) for each in endpoints]
        self._timeout = timeout
        self._username, self._password = username, password
        self._token = ""
        self._first = 0  # the endpoint that answered last
        self._pool = ClientPool(
            connect_timeout=timeout,
            timeout=timeout,
            keep=2 * len(endpoints),
            max_body=MAX_ANSWER,
            keep_bodies=True,
            tls=tls,
        )

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Use other certificates from the next connection on."""
        self._pool.use_tls(tls)

    def close(self) -> None:
        self._pool.close()

    # ---- keys

    async def range(self, prefix: bytes) -> Answer:
        """Everything below a prefix."""
        found = await self._call("/v3/kv/range", _range(prefix))
        return Answer(True, _revision(found), _key_values(found))

    async def commit(self, transaction: Transaction) -> Answer:
        """Raises LeaseNotFound where a lease of a put has ended."""
        document = {
            "compare": [_compare(each) for each in transaction.compare],
            "success": [_write(each) for each in transaction.writes],
            "failure": [{"request_range": _range(transaction.prefix)}],
        }
        found = await self._call("/v3/kv/txn", document)
        if found.get("succeeded") is True:
            return Answer(True, _revision(found))
        responses = found.get("responses")
        if not isinstance(responses, list) or len(responses) != 1 or not isinstance(responses[0], dict):
            raise EtcdError(f"etcd: a refused transaction has no range: {str(found)[:200]}")
        read = responses[0].get("response_range", {})
        if not isinstance(read, dict):
            raise EtcdError(f"etcd: a refused transaction has no range: {str(found)[:200]}")
        return Answer(False, _revision(found), _key_values(read))

    # ---- leases

    async def grant(self, ttl: float) -> int:
        """A new lease. Etcd knows whole seconds, and grants no less than its election takes."""
        found = await self._call("/v3/lease/grant", {"TTL": str(max(1, round(ttl)))})
        lease = _integer(found, "ID")
        if not lease:
            raise EtcdError(f"etcd: granted no lease: {found.get('error') or str(found)[:200]}")
        return lease

    async def keep_alive(self, lease: int) -> bool:
        """Whether etcd still has the lease, which begins anew."""
        found = await self._call("/v3/lease/keepalive", {"ID": str(lease)})
        result = found.get("result")
        if not isinstance(result, dict):
            raise EtcdError(f"etcd: no answer to a keepalive: {str(found)[:200]}")
        return _integer(result, "TTL") > 0

    async def revoke(self, lease: int) -> bool:
        """End a lease and its keys. Whether it was there."""
        try:
            await self._call("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseNotFound:
            return False
        return True

    # ---- calls

    async def _call(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the endpoints in turn, the one that answered last first."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout
        count = len(self._endpoints)
        failures = []
        for turn in range(count):
            index = (self._first + turn) % count
            # An endpoint that is silent must leave time for the others.
            deadline = loop.time() + (end - loop.time()) / (count - turn)
            try:
                found = await self._ask(self._endpoints[index], path, document, deadline)
            except (ConnectionLost, EtcdUnavailable) as error:
                failures.append(f"{self._endpoints[index]}: {error}")
                continue
            self._first = index
            return found
        raise EtcdUnavailable("no etcd answers: " + "; ".join(failures))

    async def _ask(
        self, endpoint: str, path: str, document: Mapping[str, Any], deadline: float
    ) -> dict[str, Any]:
        if self._username and not self._token:
            await self._authenticate(endpoint, deadline)
        try:
            return await self._post(endpoint, path, document, deadline)
        except EtcdRefused as error:
            if not self._username or not any(each in str(error) for each in _OLD_TOKEN):
                raise
        await self._authenticate(endpoint, deadline)  # tokens end, also with a restart of etcd
        return await self._post(endpoint, path, document, deadline)

    async def _authenticate(self, endpoint: str, deadline: float) -> None:
        self._token = ""
        credentials = {"name": self._username, "password": self._password}
        found = await self._post(endpoint, "/v3/auth/authenticate", credentials, deadline)
        token = found.get("token")
        if not isinstance(token, str) or not token:
            raise EtcdError(f"etcd: no token for user {self._username!r}")
        self._token = token

    async def _post(
        self, endpoint: str, path: str, document: Mapping[str, Any], deadline: float
    ) -> dict[str, Any]:
        parts = parse_url(endpoint + path)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        request = pack_request("POST", parts, json.dumps(document).encode(), headers, keep_alive=True)
        reply = await self._pool.send(origin_of(parts), request, deadline)
        try:
            found = json.loads(reply.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise EtcdUnavailable(f"{reply.status}, and no JSON object: is this etcd's client port?")
        if reply.status != 200 or "error" in found:
            raise _error(reply.status, found)
        return found


# ---- JSON


def _endpoint(text: str, tls: bool) -> str:
    url = text if "://" in text else f"{'https' if tls else 'http'}://{text}"
    try:
        parts = parse_url(url.rstrip("/"))
        port = parts.port
    except ValueError:
        port = None
    if port is None or parts.path or parts.query or parts.username:
        raise UsageError(f"{text!r} is no endpoint of etcd, such as 10.0.0.1:2379 or https://etcd1:2379")
    return url.rstrip("/")


def _error(status: int, found: Mapping[str, Any]) -> EtcdError:
    error = found.get("error")
    if isinstance(error, dict):  # of a stream, such as a keepalive
        found, error = error, error.get("message")
    code = found.get("code", found.get("grpc_code", 0))
    code = code if type(code) is int else 0
    if error is None:
        return EtcdRefused(f"{status}, and no error of etcd: is this etcd's client port?", code)
    text = f"etcd: {status} {str(error)[:300]}"
    if code in _ELSEWHERE:
        return EtcdUnavailable(text)
    if code == _NOT_FOUND and "lease" in str(error):
        return LeaseNotFound(text, code)
    if code == _PERMISSION:
        text += ": the user may not read and write the group's keys"
    return EtcdRefused(text, code)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(found: Mapping[str, Any], name: str) -> bytes:
    text = found.get(name, "")
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise EtcdError(f"etcd: {name} is {str(text)[:100]!r}, not base64") from None


def _integer(found: Mapping[str, Any], name: str) -> int:
    """An integer, which the gateway writes as text and leaves out where it is 0."""
    value = found.get(name, 0)
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):  # Python reads Infinity in JSON
        raise EtcdError(f"etcd: {name} is {str(value)[:100]!r}, not a number") from None


def _revision(found: Mapping[str, Any]) -> int:
    header = found.get("header")
    if not isinstance(header, dict):
        raise EtcdError(f"etcd: an answer without header: {str(found)[:200]}")
    return _integer(header, "revision")


def _range(prefix: bytes) -> dict[str, str]:
    """Up to the first key behind those that begin with `prefix`."""
    return {"key": _text(prefix), "range_end": _text(prefix[:-1] + bytes((prefix[-1] + 1,)))}


def _key_values(found: Mapping[str, Any]) -> tuple[KeyValue, ...]:
    kvs = found.get("kvs", [])
    if not isinstance(kvs, list) or not all(isinstance(each, dict) for each in kvs):
        raise EtcdError(f"etcd: a range is not readable: {str(found)[:200]}")
    return tuple(
        KeyValue(
            _bytes(each, "key"),
            _bytes(each, "value"),
            _integer(each, "mod_revision"),
            _integer(each, "lease"),
        )
        for each in kvs
    )


def _compare(compare: ModifiedAt | LeasedBy) -> dict[str, str]:
    if isinstance(compare, ModifiedAt):
        return {
            "key": _text(compare.key),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": str(compare.revision),
        }
    return {
        "key": _text(compare.key),
        "target": "LEASE",
        "result": "EQUAL",
        "lease": str(compare.lease),
    }


def _write(write: Put | Delete) -> dict[str, Any]:
    if isinstance(write, Delete):
        return {"request_delete_range": {"key": _text(write.key)}}
    return {"request_put": {"key": _text(write.key), "value": _text(write.value), "lease": str(write.lease)}}
