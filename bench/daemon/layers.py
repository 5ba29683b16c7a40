"""A client that speaks TLS, snappy and deflate, and the workloads that load an nsqd through them.

What it publishes is compressed beforehand, so that its own time hardly counts; what it consumes it decodes,
as any client must. Each client has a process of its own.
"""

import json
import multiprocessing
import os
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from load import MESSAGE_SIZE, LoadError
from measuring import Effort, Workload, rate
from servers import Server

from nsquark.wire.compression import Deflate, Snappy, Stream

BATCH = 200
UNDER_WAY = 4
PUBLISHERS = 2
OK_FRAME = 10
MESSAGE_FRAME = 8 + 26 + MESSAGE_SIZE
PATIENCE = 60.0
# A backlog has to fit into the memory queue of the nsqd we compare with.
LONGEST = 3.0


def make_certificate(folder: Path) -> list[str]:
    """nsqd's flags for a certificate that is as good as any."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    cert_file, key_file = folder / "server.pem", folder / "server.key"
    cert_file.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return [f"--tls-cert={cert_file}", f"--tls-key={key_file}", "--https-address=127.0.0.1:0"]


def bodies() -> list[bytes]:
    made = []
    for number in range(BATCH):
        event = {
            "user": os.urandom(8).hex(),
            "at": 1700000000 + number,
            "path": f"/items/{number}",
            "status": 200,
        }
        made.append(json.dumps({**event, "agent": "bench", "more": ""}).encode().ljust(MESSAGE_SIZE, b" "))
    return made


class Client:
    """A connection with its layers; blocking, since it has a process of its own."""

    def __init__(self, port: int, layer: str) -> None:
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = {name: name in layer for name in ("snappy", "deflate")}
        document = json.dumps({"feature_negotiation": True, "tls_v1": "tls" in layer, **asked}).encode()
        plain.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(document)) + document)
        (size,) = struct.unpack(">i", plain.recv(4, socket.MSG_WAITALL))
        granted = json.loads(plain.recv(size, socket.MSG_WAITALL)[4:])
        for name, wanted in {**asked, "tls_v1": "tls" in layer}.items():
            if granted[name] is not wanted:
                raise LoadError(f"{name} is not granted")
        self.socket: socket.socket = plain
        self.stream: Stream | None = None
        self._received = bytearray()
        if "tls" in layer:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(plain)
            self.read(OK_FRAME)
        if "snappy" in layer or "deflate" in layer:
            self.stream = Snappy() if "snappy" in layer else Deflate()
            self.read(OK_FRAME)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data if self.stream is None else self.stream.compress(data))

    def read(self, least: int) -> bytes:
        """At least so many bytes, in multiples of `least` if more have come."""
        received = self._received
        while len(received) < least:
            data = self.socket.recv(1 << 18)
            if not data:
                raise LoadError("the server has closed the connection")
            if self.stream is None:
                received += data
            else:
                for piece in self.stream.decompress(data):
                    received += piece
        taken = bytes(received[: len(received) // least * least])
        del received[: len(taken)]
        return taken


def repeatable(command: bytes, layer: str) -> tuple[bytes, bytes]:
    """What to send first, and what to send again and again, for this command in that layer."""
    if "snappy" in layer:
        stream = Snappy()
        return stream.compress(b""), stream.compress(command)
    if "deflate" in layer:
        # after a full flush nothing refers to what was before it
        deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
        return b"", deflater.compress(command) + deflater.flush(zlib.Z_FULL_FLUSH)
    return b"", command


@dataclass(slots=True)
class Done:
    messages: int
    seconds: float


def publish(port: int, layer: str, seconds: float) -> Done:
    client = Client(port, layer)
    messages = b"".join(struct.pack(">i", MESSAGE_SIZE) + body for body in bodies())
    body = struct.pack(">i", BATCH) + messages
    first, again = repeatable(b"MPUB bench\n" + struct.pack(">i", len(body)) + body, layer)
    client.socket.sendall(first + again * UNDER_WAY)
    began, answered, sent = time.monotonic(), 0, UNDER_WAY
    while answered < sent:
        said = client.read(OK_FRAME)
        if said != said[:OK_FRAME] * (len(said) // OK_FRAME) or not said.startswith(b"\0\0\0\6\0\0\0\0OK"):
            raise LoadError(f"answered {said[:100]!r}")
        count = len(said) // OK_FRAME
        answered += count
        if time.monotonic() - began < seconds:
            client.socket.sendall(again * count)
            sent += count
    return Done(answered * BATCH, time.monotonic() - began)


def consume(port: int, layer: str, seconds: float, count: int) -> Done:
    """Until all `count` messages have come, or the time is up."""
    client = Client(port, layer)
    client.send(b"SUB bench readers\n")
    client.read(OK_FRAME)
    client.send(b"RDY 2500\n")
    began, got = time.monotonic(), 0
    while got < count and time.monotonic() - began < seconds:
        data = client.read(MESSAGE_FRAME)
        got += len(data) // MESSAGE_FRAME
        starts = range(18, len(data), MESSAGE_FRAME)
        client.send(b"".join([b"FIN %b\n" % data[start : start + 16] for start in starts]))
    return Done(got, time.monotonic() - began)


def _child(pipe: Connection, work: Callable[..., Done], arguments: tuple[int | str | float, ...]) -> None:
    try:
        pipe.send(work(*arguments))
    except Exception as error:
        pipe.send(repr(error))


def together(count: int, work: Callable[..., Done], *arguments: int | str | float) -> tuple[int, float]:
    """What so many processes at once come to: messages, and messages a second. Raises LoadError."""
    running = []
    for _ in range(count):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=_child, args=(theirs, work, arguments), daemon=True)
        process.start()
        running.append((ours, process))
    results = [ours.recv() if ours.poll(PATIENCE) else "it hangs" for ours, _ in running]
    for _, process in running:
        process.kill()
        process.join()
    for result in results:
        if not isinstance(result, Done):
            raise LoadError(str(result))
    return sum(done.messages for done in results), sum(done.messages / done.seconds for done in results)


def layered(server: Server, effort: Effort, layer: str) -> dict[str, float]:
    """MPUB through the layer, then drain that backlog through it."""
    start, seconds = server.processor_seconds(), min(effort.seconds, LONGEST)
    count, published = together(PUBLISHERS, publish, server.port, layer, seconds)
    between = server.processor_seconds()
    got, consumed = together(1, consume, server.port, layer, seconds, count)
    end = server.processor_seconds()
    return {
        f"{layer}-mpub": published,
        f"{layer}-mpub-cpu": (between - start) * 1e6 / count,
        f"{layer}-sub": consumed,
        f"{layer}-sub-cpu": (end - between) * 1e6 / max(got, 1),
    }


WORKLOADS = [
    Workload(
        partial(layered, layer=layer),
        [
            *rate(f"{layer}-mpub", f"MPUB of 200 over {layer}", 1.2),
            *rate(f"{layer}-sub", f"draining over {layer}, RDY 2500", 2),
        ],
        certified=True,
    )
    for layer in ("tls", "snappy", "deflate")
]
