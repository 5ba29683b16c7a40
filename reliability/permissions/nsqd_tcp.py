"""nsqd's TCP commands, each as every client. The protocol's own table says which there are."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from nsquark.nsqd.protocol.commands import HANDLERS
from tests.daemon import ERROR, Client, Closed, Message, dpub, identify, mpub, pub
from tests.security.upgraded import auth, connect

from .nsqd_http import HANDSHAKE, NotTried
from .table import YES, Table
from .world import CHANNEL, TOPIC, Who, World

# It is no command: an error that names it says that all before it was taken.
_END = b"PROBE"


@dataclass(slots=True, frozen=True)
class Try:
    """A command. `{id}` in it is that of a message which the client has got, once it is subscribed."""

    command: bytes
    subscribed: bool = False
    authorized: bool = True
    row: str = ""


_SUB = f"SUB {TOPIC} {CHANNEL}\n".encode()
TRIES: dict[str, list[Try]] = {
    "IDENTIFY": [Try(identify(), authorized=False)],
    "AUTH": [Try(b"", authorized=False)],
    "NOP": [Try(b"NOP\n")],
    "PUB": [Try(pub(TOPIC, b"x"))],
    "MPUB": [Try(mpub(TOPIC, [b"x", b"y"]))],
    "DPUB": [Try(dpub(TOPIC, 1, b"x"))],
    "SUB": [Try(_SUB)],
    "RDY": [Try(b"RDY 1\n", subscribed=True)],
    "FIN": [Try(b"FIN {id}\n", True), Try(b"FIN {other}\n", True, row="FIN of another client's message")],
    "REQ": [Try(b"REQ {id} 0\n", True), Try(b"REQ {other} 0\n", True, row="REQ of another client's message")],
    "TOUCH": [
        Try(b"TOUCH {id}\n", True),
        Try(b"TOUCH {other}\n", True, row="TOUCH of another client's message"),
    ],
    "CLS": [Try(b"CLS\n", subscribed=True)],
}


async def table(world: World) -> Table:
    check_complete([name.decode() for name in HANDLERS])
    result = Table(
        "nsqd, TCP",
        "Secrets are sent with `AUTH`, to an nsqd with `--auth-http-address`. A client that may not "
        "subscribe has no messages, so what needs a subscription is refused as out of place.",
        [who.column for who in world.clients],
    )
    for name, tries in TRIES.items():
        for each in tries:
            result.rows[each.row or name] = [await _try(world, who, name, each) for who in world.clients]
    return result


def check_complete(names: list[str]) -> None:
    """Raises NotTried if the protocol has a command that is not tried here."""
    if set(names) != set(TRIES):
        raise NotTried(f"commands and tries differ: {sorted(set(names) ^ set(TRIES))}")


class _Refused(Exception):
    """AUTH was answered with this error."""


async def _connect(who: Who, authorized: bool = True) -> Client:
    """Raises Closed or SSLError if it is refused before a command, _Refused if its secret is."""
    if who.tls is None:
        client = await who.nsqd.connect()
    else:
        client = await connect(who.nsqd, who.tls)
    if authorized and who.secret:
        client.send(auth(who.secret))
        frame = await client.answer()
        if frame.kind == ERROR:
            client.close()
            raise _Refused(frame.data.split(b" ")[0].decode())
    return client


async def _try(world: World, who: Who, name: str, each: Try) -> str:
    others = await _connect(world.may_all(who.nsqd))
    try:
        async with others:
            # TLS has cost an IDENTIFY already, and only one is taken.
            client = await _connect(who, each.authorized)
            async with client:
                message = await _message(client, others) if each.subscribed else None
                if each.subscribed and message is None:  # the connection ended with the SUB
                    client = await _connect(who)
                async with client:
                    # An nsqd that has no auth server refuses every secret; one that has, an empty one.
                    word = who.secret if who.nsqd is world.guarded else "any"
                    command = auth(word) if name == "AUTH" else each.command
                    return await _send(client, _filled(command, message, others))
    except _Refused as refused:
        return str(refused)
    except (Closed, ssl.SSLError):
        return HANDSHAKE


async def _message(client: Client, others: Client) -> Message | None:
    """What is delivered to the client, once it is subscribed; None if it may not subscribe."""
    client.send(_SUB)
    try:
        frame = await client.answer()
    except Closed:
        return None
    if frame.kind == ERROR:
        return None
    # The other client has a message, too, so that there is one that is not ours.
    await others.pub(TOPIC, b"for the client")
    client.rdy(1)
    message = await client.message()
    client.rdy(0)
    await others.pub(TOPIC, b"for the other")
    await others.sub(TOPIC, CHANNEL, 1)
    others.messages.appendleft(await others.message())
    return message


def _filled(command: bytes, message: Message | None, others: Client) -> bytes:
    mine = message.id if message is not None else b"0" * 16
    another = others.messages[0].id if others.messages else b"0" * 16
    return command.replace(b"{id}", mine).replace(b"{other}", another)


async def _send(client: Client, command: bytes) -> str:
    """`yes`, or the code of the error that the command is answered with."""
    client.send(command + _END + b"\n")
    while True:
        frame = await client.answer()
        if frame.kind == ERROR:
            return YES if _END in frame.data else frame.data.split(b" ")[0].decode()
