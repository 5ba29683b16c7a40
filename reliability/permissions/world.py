"""The daemons that are tried, and what their clients may have: certificates, secrets, permissions."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.daemon import PATIENCE, Daemon, Nsqadmin, Nsqd, Nsqlookupd
from tests.http.web import Web
from tests.http.web import answer as web_answer
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority

TOPIC, CHANNEL = "events", "people"
GRANTS = {
    "publish": [entry(f"^{TOPIC}$", ["^$"], "publish")],
    "subscribe": [entry(f"^{TOPIC}$", [f"^{CHANNEL}$"], "subscribe")],
    "another topic": [entry("^others$")],
    "everything": [entry()],
}


@dataclass(slots=True, frozen=True)
class Who:
    """A client: the nsqd that it goes to, what it shows, and the heading of its column."""

    column: str
    nsqd: Nsqd
    tls: ssl.SSLContext | None = None
    secret: str = ""


@dataclass(slots=True)
class World:
    authority: Authority
    auth_server: AuthServer
    secrets: dict[str, str]
    open: Nsqd
    tls: Nsqd
    mutual: Nsqd
    guarded: Nsqd
    nsqlookupd: Nsqlookupd
    admin: Nsqadmin  # asks `open`, knows no admins
    guarded_admin: Nsqadmin  # asks `guarded` with a secret for everything; alice is its admin
    refused_admin: Nsqadmin  # asks `guarded` with a secret that is wrong
    replicas: dict[str, Nsqd]  # a node, a follower, a member of a group: all with a secret
    clients: list[Who] = field(default_factory=list)
    superusers: dict[str, Superuser] = field(default_factory=dict)

    @property
    def daemons(self) -> list[Daemon]:
        return [
            *(self.open, self.tls, self.mutual, self.guarded),
            *(self.nsqlookupd, self.admin, self.guarded_admin, self.refused_admin),
            *self.replicas.values(),
        ]

    def log(self) -> list[str]:
        """All that the daemons have logged, at level debug."""
        return [line for daemon in self.daemons for line in daemon.lines]

    def hidden(self) -> list[str]:
        """All that may never be logged: secrets, the lines of private keys."""
        keys = [path.read_text().splitlines()[1:-1] for path in self.authority.folder.glob("*.key")]
        return [*self.secrets.values(), *(line for key in keys for line in key)]

    def may_all(self, nsqd: Nsqd) -> Who:
        """A client that may do everything there."""
        return next(who for who in reversed(self.clients) if who.nsqd is nsqd)

    def superuser(self, nsqd: Nsqd) -> Superuser:
        return self.superusers.setdefault(nsqd.name + nsqd.http_address, Superuser(self.may_all(nsqd)))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[World]:
    """All daemons with the level debug. They end with the context."""
    authority, stranger = Authority(folder / "ca"), Authority(folder / "stranger")
    server, key = authority.sign("server")
    shown, alien = authority.sign("client", "a client"), stranger.sign("client", "a stranger")
    words = {
        name: f"{name.replace(' ', '-')}-{secrets.token_hex(8)}"
        for name in (*GRANTS, "wrong", "graphite", "replica")
    }
    secret_file, wrong_file, replica_file = folder / "secret", folder / "wrong", folder / "replica"
    secret_file.write_text(words["everything"])
    wrong_file.write_text(words["wrong"])
    replica_file.write_text(words["replica"])
    tls_flags = [f"--tls-cert={server}", f"--tls-key={key}", "--https-address=127.0.0.1:0"]
    debug, here = "--log-level=debug", "--broadcast-address=127.0.0.1"
    with_tls = [*tls_flags, "--tls-required", debug]
    async with AsyncExitStack() as stack:
        auth_server = await stack.enter_async_context(
            AuthServer({words[name]: grants for name, grants in GRANTS.items()})
        )
        mutual = ["--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={authority.file}"]
        guard = [f"--auth-http-address={auth_server.address}", "--http-auth"]

        async def start(daemon: Daemon) -> None:
            await asyncio.to_thread(daemon.start)
            stack.callback(daemon.kill)

        nsqds = [
            Nsqd(folder / "open", debug, here),
            Nsqd(folder / "tls", *with_tls),
            Nsqd(folder / "mutual", *with_tls, *mutual),
            Nsqd(folder / "guarded", debug, here, *guard),
        ]
        nsqlookupd = Nsqlookupd(debug)
        await asyncio.gather(*map(start, [*nsqds, nsqlookupd]))
        plain, tls, both, guarded = nsqds
        web = await stack.enter_async_context(Web())
        web.answers["/render"] = web_answer(200, body=b'[{"datapoints":[[60,1]]}]')
        login = f"user:{words['graphite']}@"
        graphite = [f"--graphite-url={web.url.replace('//', f'//{login}')}", "--proxy-graphite", debug]
        to_guarded = [f"--nsqd-http-address={guarded.http_address}", *graphite]
        acl = ["--admin-user=alice", "--allow-config-from-cidr=192.0.2.0/24"]
        admins = [
            Nsqadmin(f"--nsqd-http-address={plain.http_address}", *graphite),
            Nsqadmin(*to_guarded, *acl, f"--http-client-secret-file={secret_file}"),
            Nsqadmin(*to_guarded, f"--http-client-secret-file={wrong_file}"),
        ]
        await asyncio.gather(*map(start, admins))
        shared, nobody = f"--replica-secret-file={replica_file}", "http://127.0.0.1:1"
        group = ["--replica-group=g", "--replica-member=a", f"--replica-etcd={nobody}", "--node-id=7"]
        replicas = {
            "node": Nsqd(folder / "node", debug, shared),
            "follower": Nsqd(folder / "follower", debug, shared, f"--replica-of={nobody}"),
            "member": Nsqd(folder / "member", debug, here, shared, *group),
        }
        for each in (replicas["follower"], replicas["member"]):
            each.services = ("HTTP",)  # neither serves clients
        await asyncio.gather(*map(start, replicas.values()))
        daemons = (plain, tls, both, guarded, nsqlookupd, admins[0], admins[1], admins[2])
        world = World(authority, auth_server, words, *daemons, replicas)
        anonymous, known, unknown = (
            authority.client_context(),
            authority.client_context(shown),
            authority.client_context(alien),
        )
        world.clients = [
            Who("default flags", plain),
            Who("TLS required: without TLS", tls),
            Who("TLS required: with TLS", tls, anonymous),
            Who("certificate required: without TLS", both),
            Who("certificate required: without a certificate", both, anonymous),
            Who("certificate required: another authority's", both, unknown),
            Who("certificate required: with a certificate", both, known),
            Who("no secret", guarded),
            *(Who(f"secret for {name}", guarded, None, words[name]) for name in GRANTS),
        ]
        world.clients.insert(8, Who("wrong secret", guarded, None, words["wrong"]))
        yield world
        for superuser in world.superusers.values():
            superuser.close()


class Superuser:
    """A client that may do everything at an nsqd, on one connection."""

    def __init__(self, who: Who) -> None:
        self._who = who
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, sent: bytes = b"") -> bytes:
        """The body of the answer, which must be 200."""
        who = self._who
        if self._streams is None:
            self._streams = await _open(who.nsqd, who.tls)
        reader, writer = self._streams
        head = _head(method, path, _authorization(who))
        writer.write(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
        async with asyncio.timeout(PATIENCE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))
            body = await reader.readexactly(int(size.partition(":")[2]))
        if head.split(" ")[1] != "200":
            raise ConnectionError(f"{path} as {who.column}: {head} {body!r}")
        return body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()


class NoConnection(ConnectionError):
    """The connection was refused before a word of the protocol."""


async def ask(
    daemon: Daemon,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    tls: ssl.SSLContext | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, str, dict[str, str]]:
    """The status, the body and the headers of an answer. Raises NoConnection."""
    head = _head(method, path, {"Connection": "close", **(headers or {})})
    async with asyncio.timeout(PATIENCE):
        try:
            reader, writer = await _open(daemon, tls)
        except (ssl.SSLError, ConnectionError) as error:
            raise NoConnection(str(error)) from None
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            told = await reader.read()
        except (ssl.SSLError, ConnectionError) as error:
            raise NoConnection(str(error)) from None
        finally:
            writer.transport.abort()
    if not told:
        raise NoConnection("closed")
    top, _, answer = told.partition(b"\r\n\r\n")
    first, *rest = top.decode("latin-1").split("\r\n")
    fields = (line.partition(": ") for line in rest)
    return int(first.split(" ")[1]), answer.decode("utf-8", "replace"), {k.lower(): v for k, _, v in fields}


async def ask_as(who: Who, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
    """The status and the body of an answer. Raises NoConnection."""
    status, answer, _ = await ask(who.nsqd, method, path, body, tls=who.tls, headers=_authorization(who))
    return status, answer


def _authorization(who: Who) -> dict[str, str]:
    return {"Authorization": f"Bearer {who.secret}"} if who.secret else {}


async def _open(
    daemon: Daemon, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if tls is None:
        return await asyncio.open_connection("127.0.0.1", daemon.http_port)
    port = int(daemon.wait_for_line("HTTPS: listening on").rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost")


def _head(method: str, path: str, headers: dict[str, str]) -> str:
    given = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{given}"


def message_of(answer: str) -> str:
    """The `message` of an error in JSON; nothing if it is none."""
    try:
        told = json.loads(answer)
    except ValueError:
        return ""
    return str(told.get("message", "")) if isinstance(told, dict) else ""
