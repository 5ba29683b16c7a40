#!/usr/bin/env python3
"""Black-box conformance runner for nsqd and nsqlookupd servers.

The cases are declarative JSON files (see README.md for the format).  Every case
runs on its own connections and on fresh topic names, and has a deadline, so one
misbehaving case can neither disturb another one nor hang the run.

Needs Python 3.11 or later and nothing but the standard library.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import re
import select
import socket
import struct
import sys
import threading
import time
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_TIMEOUT_MS = 5000  # per case
DEFAULT_WITHIN_MS = 2000  # per receiving step
MAX_FRAME = 64 * 1024 * 1024
CLOCK_TOLERANCE_S = 60  # message timestamps must be this close to our clock
FRAME_NAMES = {0: "response", 1: "error", 2: "message"}
MESSAGE_ID = re.compile(rb"[0-9a-f]{16}\Z")
PLACEHOLDER = re.compile(r"\{([a-z][A-Za-z0-9_.-]*)\}")


class Mismatch(Exception):
    """The server did something other than what the case expects."""

    def __init__(self, expected, got):
        super().__init__(f"expected {expected}, got {got}")
        self.expected = expected
        self.got = got


class BadCase(Exception):
    """The case itself is malformed."""


def show(data, limit=300):
    """A short printable form of bytes or text."""
    if isinstance(data, (bytes, bytearray)):
        text = bytes(data).decode("utf-8", "backslashreplace")
    else:
        text = str(data)
    out = json.dumps(text, ensure_ascii=False)
    if len(out) > limit:
        out = f'{out[:limit]}..." ({len(data)} bytes)'
    return out


# --------------------------------------------------------------------------
# Snappy framing format (the standard library has none): frames are sent as
# uncompressed chunks, both kinds are understood on receipt.


def _crc32c_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


_CRC32C = _crc32c_table()


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def snappy_block(block):
    size = shift = pos = 0
    while True:
        byte = block[pos]
        pos += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    out = bytearray()
    while pos < len(block):
        tag = block[pos]
        pos += 1
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                length = int.from_bytes(block[pos : pos + extra], "little")
                pos += extra
            length += 1
            out += block[pos : pos + length]
            pos += length
            continue
        if kind == 1:
            length = ((tag >> 2) & 7) + 4
            offset = ((tag >> 5) << 8) | block[pos]
            pos += 1
        else:
            width = 2 if kind == 2 else 4
            length = (tag >> 2) + 1
            offset = int.from_bytes(block[pos : pos + width], "little")
            pos += width
        if not 0 < offset <= len(out):
            raise ValueError("snappy copy outside of the output")
        for _ in range(length):
            out.append(out[-offset])
    if len(out) != size:
        raise ValueError("snappy block has a wrong length")
    return bytes(out)


class SnappyCodec:
    STREAM_ID = b"\xff\x06\x00\x00sNaPpY"

    def __init__(self):
        self.pending = b""
        self.started = False

    def encode(self, data):
        out = bytearray()
        if not self.started:
            self.started = True
            out += self.STREAM_ID
        for at in range(0, len(data), 65536):
            piece = data[at : at + 65536]
            out += b"\x01" + struct.pack("<I", len(piece) + 4)[:3]
            out += struct.pack("<I", masked_crc32c(piece)) + piece
        return bytes(out)

    def decode(self, data):
        self.pending += data
        out = bytearray()
        while len(self.pending) >= 4:
            size = int.from_bytes(self.pending[1:4], "little")
            if len(self.pending) < 4 + size:
                break
            kind, chunk = self.pending[0], self.pending[4 : 4 + size]
            self.pending = self.pending[4 + size :]
            if kind in (0, 1):
                piece = snappy_block(chunk[4:]) if kind == 0 else chunk[4:]
                if masked_crc32c(piece) != int.from_bytes(chunk[:4], "little"):
                    raise ValueError("snappy chunk has a wrong checksum")
                out += piece
            elif kind == 0xFF:
                if chunk != b"sNaPpY":
                    raise ValueError("bad snappy stream identifier")
            elif kind < 0x80:
                raise ValueError(f"unskippable snappy chunk type {kind}")
        return bytes(out)


class DeflateCodec:
    def __init__(self):
        self.deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
        self.inflater = zlib.decompressobj(-15)

    def encode(self, data):
        return self.deflater.compress(data) + self.deflater.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data):
        return self.inflater.decompress(data)


# --------------------------------------------------------------------------
# Connections


class Frame:
    def __init__(self, kind, body):
        self.kind = kind  # "response", "error", "message", or "type N"
        self.body = body

    def __str__(self):
        if self.kind == "message" and len(self.body) >= 26:
            attempts = struct.unpack(">H", self.body[8:10])[0]
            return f"message {show(self.body[26:])} (attempts {attempts}, id {show(self.body[10:26])})"
        return f"{self.kind} {show(self.body)}"


CLOSED = object()
NOTHING = object()


class Conn:
    """One TCP connection; framed=True means nsqd frames, else nsqlookupd's."""

    def __init__(self, name, address, framed, deadline):
        self.name = name
        self.framed = framed
        self.codec = None
        self.buffer = b""
        self.closed = False
        self.held = {}  # used by the workload step
        try:
            self.sock = socket.create_connection(address, max(0.05, deadline - time.monotonic()))
        except OSError as exc:
            raise Mismatch(f"a connection to {address[0]}:{address[1]}", f"{exc}") from None
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def upgrade(self, kind):
        self.codec = {"deflate": DeflateCodec, "snappy": SnappyCodec}[kind]()
        rest, self.buffer = self.buffer, b""
        if rest:
            self._feed(rest)

    def send(self, data, deadline):
        if self.codec:
            data = self.codec.encode(data)
        self.sock.settimeout(max(0.05, deadline - time.monotonic()))
        try:
            self.sock.sendall(data)
        except TimeoutError:
            raise Mismatch(
                f"{self.name} to take {len(data)} bytes", "a send that did not complete in time"
            ) from None
        except OSError as exc:
            raise Mismatch(f"{self.name} to take {len(data)} bytes", f"{exc}") from None

    def _feed(self, data):
        if self.codec:
            try:
                data = self.codec.decode(data)
            except (ValueError, IndexError, zlib.error) as exc:
                raise Mismatch("a valid compressed stream", str(exc)) from None
        self.buffer += data

    def pull(self):
        """Read once from the socket (which is known to be readable)."""
        try:
            data = self.sock.recv(262144)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if data:
            self._feed(data)
        else:
            self.closed = True

    def parse(self):
        """The next complete frame in the buffer, or None."""
        if len(self.buffer) < 4:
            return None
        size = struct.unpack(">i", self.buffer[:4])[0]
        least = 4 if self.framed else 0
        if size < least or size > MAX_FRAME:
            raise Mismatch("a frame", f"a frame size of {size}: {show(self.buffer[:80])}")
        if len(self.buffer) < 4 + size:
            return None
        data, self.buffer = self.buffer[4 : 4 + size], self.buffer[4 + size :]
        if not self.framed:
            return Frame("response", data)
        number = struct.unpack(">i", data[:4])[0]
        return Frame(FRAME_NAMES.get(number, f"frame type {number}"), data[4:])

    def read(self, deadline):
        while True:
            frame = self.parse()
            if frame:
                return frame
            if self.closed:
                return CLOSED
            left = deadline - time.monotonic()
            if left <= 0:
                return NOTHING
            self.sock.settimeout(left)
            self.pull()

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.close()


class HttpResponse:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body


class HttpConn:
    """A minimal HTTP/1.1 client with a hard deadline for the whole exchange."""

    def __init__(self, address, deadline):
        self.address = address
        self.buffer = b""
        try:
            self.sock = socket.create_connection(address, max(0.05, deadline - time.monotonic()))
        except OSError as exc:
            raise Mismatch(f"an HTTP connection to {address[0]}:{address[1]}", f"{exc}") from None

    def request(self, method, target, headers, body, chunked, keep, deadline):
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.address[0]}:{self.address[1]}"]
        if not keep:
            lines.append("Connection: close")
        lines += [f"{k}: {v}" for k, v in headers.items()]
        if chunked:
            lines.append("Transfer-Encoding: chunked")
            half = len(body) // 2
            pieces = [piece for piece in (body[:half], body[half:]) if piece]
            body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
        elif body or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body)}")
        data = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self.sock.settimeout(max(0.05, deadline - time.monotonic()))
        try:
            self.sock.sendall(data)
        except OSError as exc:
            # the server may have answered and closed before reading everything
            if not isinstance(exc, (BrokenPipeError, ConnectionResetError)):
                raise Mismatch("the HTTP request to be taken", f"{exc}") from None
        return self._response(method, deadline)

    def _more(self, deadline, what):
        left = deadline - time.monotonic()
        if left <= 0:
            raise Mismatch("an HTTP response", f"no complete response in time ({what})")
        self.sock.settimeout(left)
        try:
            data = self.sock.recv(262144)
        except TimeoutError:
            raise Mismatch("an HTTP response", f"no complete response in time ({what})") from None
        except OSError:
            return False
        self.buffer += data
        return bool(data)

    def _line(self, deadline):
        while b"\r\n" not in self.buffer:
            if not self._more(deadline, "chunk"):
                raise Mismatch("an HTTP response", "a connection closed in mid-body")
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def _take(self, count, deadline):
        while len(self.buffer) < count:
            if not self._more(deadline, "body"):
                raise Mismatch("an HTTP response", "a connection closed in mid-body")
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def _response(self, method, deadline):
        while True:
            while b"\r\n\r\n" not in self.buffer:
                if not self._more(deadline, "headers"):
                    raise Mismatch("an HTTP response", "a closed connection")
            head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
            lines = head.decode("latin-1").split("\r\n")
            found = re.match(r"HTTP/1\.[01] (\d{3})(?: |$)", lines[0])
            if not found:
                raise Mismatch("an HTTP status line", show(lines[0]))
            status = int(found.group(1))
            if status >= 200:
                break
        headers = {}
        for line in lines[1:]:
            key, _, value = line.partition(":")
            headers[key.strip().lower()] = value.strip()
        try:
            if method == "HEAD" or status in (204, 304):
                body = b""
            elif "chunked" in headers.get("transfer-encoding", "").lower():
                body = b""
                while True:
                    size = int(self._line(deadline).split(b";")[0], 16)
                    body += self._take(size, deadline)
                    if size:
                        self._line(deadline)
                        continue
                    while self._line(deadline):
                        pass
                    break
            elif "content-length" in headers:
                body = self._take(int(headers["content-length"]), deadline)
            else:
                while self._more(deadline, "body"):
                    pass
                body, self.buffer = self.buffer, b""
        except ValueError:
            raise Mismatch("an HTTP response", "a malformed one") from None
        return HttpResponse(status, headers, body)

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.close()


# --------------------------------------------------------------------------
# JSON matching


def json_type(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    return {float: "float", str: "string", list: "list", dict: "object"}[type(value)]


def match_json(want, got, path="$"):
    """None when got matches want, else (expected, got) texts."""

    def differ(expected=None):
        return (f"{path} = {expected or json.dumps(want)}", show_json(got))

    if isinstance(want, dict) and want and all(k.startswith("$") for k in want):
        for op, arg in want.items():
            problem = match_operator(op, arg, got, path)
            if problem:
                return problem
        return None
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return differ("an object")
        for key, value in want.items():
            if isinstance(value, dict) and value.get("$absent"):
                if key in got:
                    return (f"no key {path}.{key}", show_json(got[key]))
            elif key not in got:
                return (f"a key {path}.{key}", f"an object with {', '.join(sorted(got)) or 'no keys'}")
            else:
                problem = match_json(value, got[key], f"{path}.{key}")
                if problem:
                    return problem
        return None
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return differ()
        for at, value in enumerate(want):
            problem = match_json(value, got[at], f"{path}[{at}]")
            if problem:
                return problem
        return None
    if json_type(want) != json_type(got) or want != got:
        return differ()
    return None


def match_operator(op, arg, got, path):
    def differ(expected):
        return (f"{path} to be {expected}", show_json(got))

    if op == "$type":
        kinds = arg if isinstance(arg, list) else [arg]
        actual = json_type(got)
        ok = actual in kinds or (actual in ("int", "float") and "number" in kinds)
        return None if ok else differ("of type " + " or ".join(kinds))
    if op == "$empty":
        return None if not got and not isinstance(got, (bool, int, float)) else differ("empty or null")
    if op == "$regex":
        ok = isinstance(got, str) and re.search(arg, got)
        return None if ok else differ(f"a string matching {arg}")
    if op == "$int":
        return None if json_type(got) == "int" and got == int(arg) else differ(str(int(arg)))
    if op in ("$gte", "$lte"):
        ok = json_type(got) in ("int", "float")
        ok = ok and (got >= arg if op == "$gte" else got <= arg)
        return None if ok else differ(f"{'>=' if op == '$gte' else '<='} {arg}")
    if op == "$len":
        ok = isinstance(got, (list, str, dict)) and len(got) == arg
        return None if ok else differ(f"of length {arg}")
    if op == "$oneof":
        ok = any(match_json(item, got, path) is None for item in arg)
        return None if ok else differ(f"one of {json.dumps(arg)}")
    if op == "$contains":
        if not isinstance(got, list):
            return differ("a list")
        for item in arg:
            if not any(match_json(item, other, path) is None for other in got):
                return differ(f"a list with {json.dumps(item)}")
        return None
    if op == "$lacks":
        if not isinstance(got, list) and got is not None:
            return differ("a list")
        for item in arg:
            if any(match_json(item, other, path) is None for other in got or []):
                return differ(f"a list without {json.dumps(item)}")
        return None
    if op == "$unordered":
        if not isinstance(got, list) or len(got) != len(arg):
            return differ(f"a list of {len(arg)}")
        rest = list(got)
        for item in arg:
            for at, other in enumerate(rest):
                if match_json(item, other, path) is None:
                    del rest[at]
                    break
            else:
                return differ(f"a list with {json.dumps(item)}")
        return None
    raise BadCase(f"unknown JSON operator {op}")


def show_json(value):
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 400 else f"{text[:400]}..."


def parse_json(body):
    try:
        return json.loads(body.decode("utf-8"))
    except ValueError:
        raise Mismatch("a JSON body", show(body)) from None


# --------------------------------------------------------------------------
# Running one case

STEP_KEYS = {
    "connect": {"to", "magic"},
    "send": {"on"},
    "recv": {"on", "within_ms", "heartbeats"},
    "recv_json": {"on", "within_ms", "heartbeats"},
    "recv_regex": {"on", "within_ms", "heartbeats"},
    "recv_error": {"on", "within_ms", "heartbeats"},
    "recv_error_regex": {"on", "within_ms", "heartbeats"},
    "recv_msg": {"on", "within_ms", "attempts", "as", "same_id_as", "same_timestamp_as", "other_id_than"},
    "recv_msgs": {"on", "within_ms", "attempts", "as", "finish", "per_conn", "min_per_conn"},
    "recv_count": {"on", "quiet_ms", "finish"},
    "recv_nothing": {"on", "heartbeats"},
    "recv_closed": {"on", "within_ms", "heartbeats", "drain"},
    "close": set(),
    "half_close": set(),
    "upgrade": {"on"},
    "http": {
        "to",
        "body",
        "chunked",
        "headers",
        "status",
        "expect",
        "expect_json",
        "expect_regex",
        "expect_headers",
        "retry_ms",
        "keep",
    },
    "sleep_ms": set(),
    "workload": set(),
}


class Targets:
    def __init__(self, args):
        self.address = {}
        for name in ("nsqd_tcp", "nsqd_http", "lookupd_tcp", "lookupd_http"):
            text = getattr(args, name)
            if text:
                host, _, port = text.rpartition(":")
                self.address[name] = (host.strip("[]") or "127.0.0.1", int(port))

    def has(self, kind):
        return f"{kind}_tcp" in self.address and f"{kind}_http" in self.address


class Runner:
    def __init__(self, case, kind, targets, patience, run_id):
        self.case = case
        self.kind = kind  # "nsqd" or "lookupd": where steps go by default
        self.targets = targets
        self.patience = patience
        self.conns = {}
        self.http_conns = {}
        self.messages = {}
        self.run_id = run_id
        self.fresh = {}
        self.vars = {"uid": f"u{run_id}"}
        for name, (host, port) in targets.address.items():
            self.vars[name] = f"{host}:{port}"
            self.vars[f"{name}_host"] = host
            self.vars[f"{name}_port"] = str(port)
        self.deadline = 0
        self.where = "start"

    # ---- templates

    def variable(self, name, extra):
        if extra and name in extra:
            return extra[name]
        if name in self.vars:
            return self.vars[name]
        if re.fullmatch(r"topic\d?", name) or re.fullmatch(r"topic_len_\d+", name):
            value = f"ct_{self.run_id}_{name[5:]}" if name != "topic" else f"ct_{self.run_id}"
            if name.startswith("topic_len_"):
                length = int(name[10:])
                value = (f"cl_{self.run_id}_" + "x" * length)[:length]
            self.vars[name] = self.fresh[name] = value
            return value
        raise BadCase(f"unknown placeholder {{{name}}}")

    def fill(self, text, extra=None):
        return PLACEHOLDER.sub(lambda m: self.variable(m.group(1), extra), text)

    def fill_tree(self, value, extra=None):
        if isinstance(value, str):
            return self.fill(value, extra)
        if isinstance(value, list):
            return [self.fill_tree(item, extra) for item in value]
        if isinstance(value, dict):
            return {self.fill(k, extra): self.fill_tree(v, extra) for k, v in value.items()}
        return value

    def encode(self, part, extra=None):
        """Bytes for a 'parts' value: text, a list of parts or a typed part."""
        if isinstance(part, str):
            return self.fill(part, extra).encode("utf-8")
        if isinstance(part, list):
            return b"".join(self.encode(item, extra) for item in part)
        if isinstance(part, dict):
            if "hex" in part:
                return bytes.fromhex(part["hex"])
            if "i32" in part:
                return struct.pack(">I", part["i32"] & 0xFFFFFFFF)
            if "sized" in part:
                data = self.encode(part["sized"], extra)
                return struct.pack(">I", len(data)) + data
            if "json" in part:
                return json.dumps(
                    self.fill_tree(part["json"], extra), ensure_ascii=False, separators=(",", ":")
                ).encode("utf-8")
            if "repeat" in part:
                return self.encode(part["repeat"], extra) * part["count"]
            if "each" in part:
                return b"".join(self.encode_each(part))
        raise BadCase(f"cannot encode {part!r}")

    def encode_each(self, part):
        start = part.get("from", 0)
        return [self.encode(part["each"], {"i": str(n)}) for n in range(start, start + part["count"])]

    # ---- deadlines

    def until(self, ms):
        return min(self.deadline, time.monotonic() + ms * self.patience / 1000)

    def within(self, step):
        return self.until(step.get("within_ms", DEFAULT_WITHIN_MS))

    # ---- connections

    def conn(self, name):
        if name not in self.conns:
            raise BadCase(f"connection {name!r} was never opened")
        return self.conns[name]

    def open(self, name, to=None, magic=None):
        to = to or self.kind
        address = self.targets.address.get(f"{to}_tcp")
        if not address:
            raise BadCase(f"no TCP address for {to}")
        conn = Conn(name, address, to == "nsqd", self.deadline)
        self.conns[name] = conn
        if magic is None:
            magic = "  V2" if to == "nsqd" else "  V1"
        if magic:
            conn.send(self.encode(magic), self.deadline)
        return conn

    def read(self, conn, deadline, heartbeats="answer"):
        while True:
            frame = conn.read(deadline)
            if (
                conn.framed
                and isinstance(frame, Frame)
                and frame.kind == "response"
                and frame.body == b"_heartbeat_"
                and heartbeats != "return"
            ):
                if heartbeats == "answer":
                    conn.send(b"NOP\n", self.deadline)
                continue
            return frame

    @staticmethod
    def describe(frame, ms):
        if frame is CLOSED:
            return "a closed connection"
        if frame is NOTHING:
            return f"nothing in {ms} ms"
        return str(frame)

    def expect_frame(self, step, kind, expected_text):
        conn = self.conn(step.get("on", "c"))
        heartbeats = step.get("heartbeats", "answer")
        if step.get("recv") == "_heartbeat_":
            heartbeats = "return"
        frame = self.read(conn, self.within(step), heartbeats)
        if not isinstance(frame, Frame) or frame.kind != kind:
            raise Mismatch(expected_text, self.describe(frame, step.get("within_ms", DEFAULT_WITHIN_MS)))
        return frame

    def parse_message(self, frame):
        body = frame.body
        if len(body) < 26:
            raise Mismatch("a message frame of at least 26 bytes", show(body))
        timestamp, attempts = struct.unpack(">qH", body[:10])
        ident = body[10:26]
        if not MESSAGE_ID.match(ident):
            raise Mismatch("a message id of 16 lowercase hex characters", show(ident))
        if abs(timestamp / 1e9 - time.time()) > CLOCK_TOLERANCE_S:
            raise Mismatch("a message timestamp in nanoseconds near now", str(timestamp))
        return {"id": ident.decode(), "attempts": attempts, "timestamp": timestamp, "body": body[26:]}

    def next_of(self, conns, deadline):
        """The next frame from any of several connections: (conn, frame)."""
        while True:
            for conn in conns:
                frame = conn.parse()
                while frame and frame.kind == "response" and frame.body == b"_heartbeat_":
                    conn.send(b"NOP\n", self.deadline)
                    frame = conn.parse()
                if frame:
                    return conn, frame
            for conn in conns:
                if conn.closed:
                    return conn, CLOSED
            left = deadline - time.monotonic()
            if left <= 0:
                return None, NOTHING
            ready, _, _ = select.select([c.sock for c in conns], [], [], left)
            for conn in conns:
                if conn.sock in ready:
                    conn.pull()

    # ---- the run

    def run(self):
        timeout = self.case.get("timeout_ms", DEFAULT_TIMEOUT_MS)
        self.deadline = time.monotonic() + timeout * self.patience / 1000
        try:
            for number, step in enumerate(self.case["steps"], 1):
                kinds = [key for key in step if key in STEP_KEYS]
                if len(kinds) != 1:
                    raise BadCase(f"step {number} must have exactly one action")
                kind = kinds[0]
                odd = set(step) - STEP_KEYS[kind] - {kind, "note"}
                if odd:
                    raise BadCase(f"step {number} ({kind}) has unknown keys {sorted(odd)}")
                on = step.get("on", "c")
                self.where = f"step {number} {kind}"
                if "on" in step or kind in ("send", "upgrade") or kind.startswith("recv"):
                    self.where += f" on {on if isinstance(on, str) else '+'.join(on)}"
                if time.monotonic() >= self.deadline:
                    raise Mismatch("the case to be done", f"a timeout after {timeout} ms")
                getattr(self, f"do_{kind}")(step)
        finally:
            for conn in list(self.conns.values()) + list(self.http_conns.values()):
                conn.close()
            self.http_conns = {}
            self.run_finally()

    def run_finally(self):
        """Best effort: put server-wide settings back, whatever happened before."""
        self.deadline = time.monotonic() + 2
        for step in self.case.get("finally", []):
            with contextlib.suppress(Mismatch):
                self.do_http(step)

    def cleanup(self):
        """Best effort: drop the topics this case used, so servers stay small."""
        text = json.dumps(self.case)
        names = []
        for value in self.fresh.values():
            names.append(value)
            if "#ephemeral" in text or "%23ephemeral" in text:
                names.append(f"{value}%23ephemeral")
        for to in ("nsqd", "lookupd"):
            address = self.targets.address.get(f"{to}_http")
            if not address or (to != self.kind and not self.case.get("needs")):
                continue
            for name in names:
                try:
                    deadline = time.monotonic() + 1
                    conn = HttpConn(address, deadline)
                    try:
                        conn.request("POST", f"/topic/delete?topic={name}", {}, b"", False, False, deadline)
                    finally:
                        conn.close()
                except Mismatch:
                    break

    # ---- steps

    def do_connect(self, step):
        self.open(step["connect"], step.get("to"), step.get("magic"))

    def do_send(self, step):
        self.conn(step.get("on", "c")).send(self.encode(step["send"]), self.deadline)

    def do_close(self, step):
        self.conn(step["close"]).close()

    def do_half_close(self, step):
        with contextlib.suppress(OSError):
            self.conn(step["half_close"]).sock.shutdown(socket.SHUT_WR)

    def do_upgrade(self, step):
        self.conn(step.get("on", "c")).upgrade(step["upgrade"])

    def do_sleep_ms(self, step):
        time.sleep(max(0, min(step["sleep_ms"] / 1000, self.deadline - time.monotonic())))

    def do_recv(self, step):
        want = self.encode(step["recv"])
        frame = self.expect_frame(step, "response", f"response {show(want)}")
        if frame.body != want:
            raise Mismatch(f"response {show(want)}", str(frame))

    def do_recv_error(self, step):
        want = self.encode(step["recv_error"])
        frame = self.expect_frame(step, "error", f"error {show(want)}")
        if frame.body != want:
            raise Mismatch(f"error {show(want)}", str(frame))

    def regex(self, step, key, kind):
        pattern = self.fill(step[key])
        frame = self.expect_frame(step, kind, f"{kind} matching /{pattern}/")
        if not re.search(pattern, frame.body.decode("utf-8", "backslashreplace")):
            raise Mismatch(f"{kind} matching /{pattern}/", str(frame))

    def do_recv_regex(self, step):
        self.regex(step, "recv_regex", "response")

    def do_recv_error_regex(self, step):
        self.regex(step, "recv_error_regex", "error")

    def do_recv_json(self, step):
        want = self.fill_tree(step["recv_json"])
        frame = self.expect_frame(step, "response", f"response with JSON {show_json(want)}")
        problem = match_json(want, parse_json(frame.body))
        if problem:
            raise Mismatch(*problem)

    def do_recv_msg(self, step):
        want = self.encode(step["recv_msg"])
        attempts = step.get("attempts", 1)
        text = f"message {show(want)}" + (f" (attempts {attempts})" if attempts != "any" else "")
        frame = self.expect_frame(step, "message", text)
        message = self.parse_message(frame)
        if message["body"] != want or attempts not in ("any", message["attempts"]):
            raise Mismatch(text, str(frame))
        for key, field, same in (
            ("same_id_as", "id", True),
            ("other_id_than", "id", False),
            ("same_timestamp_as", "timestamp", True),
        ):
            if key in step:
                other = self.messages[step[key]][field]
                if (message[field] == other) is not same:
                    raise Mismatch(
                        f"{text} with {'the same' if same else 'another'} {field} ({other})",
                        f"{field} {message[field]}",
                    )
        if "as" in step:
            self.vars[step["as"]] = message["id"]
            self.messages[step["as"]] = message

    def do_recv_msgs(self, step):
        spec = step["recv_msgs"]
        if isinstance(spec, dict) and "each" in spec:
            wanted = self.encode_each(spec)
        else:
            wanted = []
            for item in spec:
                if isinstance(item, dict) and "each" in item:
                    wanted += self.encode_each(item)
                else:
                    wanted.append(self.encode(item))
        names = step.get("on", "c")
        conns = [self.conn(name) for name in ([names] if isinstance(names, str) else names)]
        attempts = step.get("attempts", 1)
        rest, counts = list(wanted), {conn.name: 0 for conn in conns}
        deadline = self.within(step)
        while rest:
            conn, frame = self.next_of(conns, deadline)
            if not isinstance(frame, Frame) or frame.kind != "message":
                who = f" on {conn.name}" if conn else ""
                some = ", ".join(show(item, 40) for item in rest[:5])
                more = "..." if len(rest) > 5 else ""
                raise Mismatch(
                    f"{len(wanted)} messages (missing {len(rest)}: {some}{more})",
                    self.describe(frame, step.get("within_ms", DEFAULT_WITHIN_MS)) + who,
                )
            message = self.parse_message(frame)
            if message["body"] not in rest:
                kind = "repeated" if message["body"] in wanted else "unexpected"
                raise Mismatch("each message once", f"{kind} {frame} on {conn.name}")
            rest.remove(message["body"])
            if attempts != "any" and message["attempts"] != attempts:
                raise Mismatch(f"attempts {attempts}", f"{frame} on {conn.name}")
            counts[conn.name] += 1
            if "as" in step:
                key = f"{step['as']}.{message['body'].decode('utf-8', 'replace')}"
                self.vars[key] = message["id"]
                self.messages[key] = message
            if step.get("finish"):
                conn.send(f"FIN {message['id']}\n".encode(), self.deadline)
        if "per_conn" in step and any(counts[k] != v for k, v in step["per_conn"].items()):
            raise Mismatch(f"messages per connection {step['per_conn']}", str(counts))
        if "min_per_conn" in step and min(counts.values()) < step["min_per_conn"]:
            raise Mismatch(f"at least {step['min_per_conn']} per connection", str(counts))

    def do_recv_count(self, step):
        low, high = step["recv_count"]
        conn = self.conn(step.get("on", "c"))
        count = 0
        while True:
            frame = self.read(conn, self.until(step.get("quiet_ms", 500)))
            if frame is NOTHING:
                break
            if not isinstance(frame, Frame) or frame.kind != "message":
                raise Mismatch("messages", self.describe(frame, 0))
            message = self.parse_message(frame)
            count += 1
            if step.get("finish"):
                conn.send(f"FIN {message['id']}\n".encode(), self.deadline)
        if not low <= count <= high:
            raise Mismatch(f"{low} to {high} messages", str(count))

    def do_recv_nothing(self, step):
        conn = self.conn(step.get("on", "c"))
        ms = step["recv_nothing"]
        deadline = min(self.deadline, time.monotonic() + ms / 1000)
        frame = self.read(conn, deadline, step.get("heartbeats", "answer"))
        if frame is not NOTHING:
            raise Mismatch(f"no frame within {ms} ms", self.describe(frame, ms))

    def do_recv_closed(self, step):
        conn = self.conn(step.get("on", "c"))
        deadline = self.within(step)
        while True:
            frame = self.read(conn, deadline, step.get("heartbeats", "answer"))
            if isinstance(frame, Frame) and step.get("drain"):
                continue
            if frame is not CLOSED:
                raise Mismatch(
                    "a closed connection", self.describe(frame, step.get("within_ms", DEFAULT_WITHIN_MS))
                )
            if conn.buffer:
                raise Mismatch("a closed connection", f"a partial frame {show(conn.buffer[:80])}")
            return

    def http(self, method, target, body=b"", to=None, chunked=False, headers=None, keep=None):
        to = to or self.kind
        address = self.targets.address.get(f"{to}_http")
        if not address:
            raise BadCase(f"no HTTP address for {to}")
        conn = self.http_conns.get(keep) if keep else None
        if conn is None:
            conn = HttpConn(address, self.deadline)
            if keep:
                self.http_conns[keep] = conn
        try:
            return conn.request(method, target, headers or {}, body, chunked, bool(keep), self.deadline)
        finally:
            if not keep:
                conn.close()

    def do_http(self, step):
        method, target = self.fill(step["http"]).split(" ", 1)
        body = self.encode(step["body"]) if "body" in step else b""
        give_up = time.monotonic() + step.get("retry_ms", 0) * self.patience / 1000
        while True:
            try:
                reply = self.http(
                    method,
                    target,
                    body,
                    step.get("to"),
                    step.get("chunked", False),
                    step.get("headers"),
                    step.get("keep"),
                )
                self.check_http(step, reply)
                return
            except Mismatch:
                if time.monotonic() >= min(give_up, self.deadline - 0.05):
                    raise
                time.sleep(0.03)

    def check_http(self, step, reply):
        status = step.get("status", 200)
        if reply.status != status:
            raise Mismatch(f"HTTP {status}", f"HTTP {reply.status} {show(reply.body)}")
        if "expect" in step:
            want = self.encode(step["expect"])
            if reply.body != want:
                raise Mismatch(f"body {show(want)}", show(reply.body))
        if "expect_json" in step:
            problem = match_json(self.fill_tree(step["expect_json"]), parse_json(reply.body))
            if problem:
                raise Mismatch(*problem)
        if "expect_regex" in step:
            patterns = step["expect_regex"]
            for pattern in [patterns] if isinstance(patterns, str) else patterns:
                pattern = self.fill(pattern)
                if not re.search(pattern, reply.body.decode("utf-8", "replace")):
                    raise Mismatch(f"a body matching /{pattern}/", show(reply.body))
        for name, pattern in step.get("expect_headers", {}).items():
            value = reply.headers.get(name.lower())
            if value is None or not re.search(self.fill(pattern), value):
                raise Mismatch(f"header {name} matching /{pattern}/", show(value))

    # ---- randomised workloads

    def do_workload(self, step):
        Workload(self, step["workload"]).run()


class Workload:
    """Seeded random publishing and consuming, checked against a simple model."""

    def __init__(self, runner, spec):
        self.r = runner
        known = {
            "seed",
            "topic",
            "channels",
            "messages",
            "publish",
            "producers",
            "actions",
            "max_attempts",
            "msg_timeout",
            "drop",
            "defer_ms",
            "batch",
        }
        if set(spec) - known:
            raise BadCase(f"workload has unknown keys {sorted(set(spec) - known)}")
        self.spec = spec
        self.random = random.Random(spec["seed"])
        self.topic = runner.fill(spec.get("topic", "{topic}"))
        self.total = spec["messages"]
        self.sent = 0
        self.drops = spec.get("drop", 0)
        self.consumers = []
        self.state = {}  # (channel, body) -> model record
        self.finished = {}
        self.requeued = {}
        self.bodies = {}  # (channel, id) -> body

    def say(self, conn, text):
        conn.send(text.encode(), self.r.deadline)

    def response(self, conn, want=b"OK"):
        frame = self.r.read(conn, self.r.until(3000))
        if not isinstance(frame, Frame) or frame.kind != "response" or (want and frame.body != want):
            raise Mismatch('response "OK"', self.r.describe(frame, 3000))

    def setup(self):
        for channel, options in self.spec["channels"].items():
            self.finished[channel] = set()
            self.requeued[channel] = 0
            for number in range(options.get("consumers", 1)):
                conn = self.r.open(f"w_{channel}_{number}", "nsqd")
                body = json.dumps(
                    {
                        "client_id": f"{self.r.run_id}-{number}",
                        "msg_timeout": self.spec.get("msg_timeout", 10000),
                        "output_buffer_timeout": 25,
                    }
                ).encode()
                conn.send(b"IDENTIFY\n" + struct.pack(">I", len(body)) + body, self.r.deadline)
                self.response(conn)
                self.say(conn, f"SUB {self.topic} {channel}\n")
                self.response(conn)
                conn.channel, conn.rdy = channel, options.get("rdy", 1)
                self.say(conn, f"RDY {conn.rdy}\n")
                self.consumers.append(conn)
        self.producers = [self.r.open(f"p{n}", "nsqd") for n in range(self.spec.get("producers", 1))]

    def publish(self):
        how = self.random.choice(self.spec.get("publish", ["pub"]))
        count = 1
        if "mpub" in how:
            count = self.random.randint(1, self.spec.get("batch", 8))
        count = min(count, self.total - self.sent)
        bodies = [f"w{self.sent + n}".encode() for n in range(count)]
        self.sent += count
        conn = self.random.choice(self.producers)
        packed = b"".join(struct.pack(">I", len(b)) + b for b in bodies)
        binary = struct.pack(">I", count) + packed
        topic = self.topic
        if how == "pub":
            conn.send(f"PUB {topic}\n".encode() + packed, self.r.deadline)
            self.response(conn)
        elif how == "dpub":
            delay = self.random.randint(0, self.spec.get("defer_ms", 100))
            conn.send(f"DPUB {topic} {delay}\n".encode() + packed, self.r.deadline)
            self.response(conn)
        elif how == "mpub":
            conn.send(f"MPUB {topic}\n".encode() + struct.pack(">I", len(binary)) + binary, self.r.deadline)
            self.response(conn)
        else:
            target, body = {
                "http_pub": (f"/pub?topic={topic}", bodies[0]),
                "http_mpub": (f"/mpub?topic={topic}", b"\n".join(bodies)),
                "http_mpub_binary": (f"/mpub?topic={topic}&binary=true", binary),
            }[how]
            reply = self.r.http("POST", target, body, "nsqd")
            if reply.status != 200 or reply.body != b"OK":
                raise Mismatch(f'HTTP 200 "OK" from {target}', f"{reply.status} {show(reply.body)}")

    def deliver(self, conn, frame):
        if not isinstance(frame, Frame) or frame.kind != "message":
            raise Mismatch("a message", self.r.describe(frame, 0) + f" on {conn.name}")
        message = self.r.parse_message(frame)
        key = (conn.channel, message["body"])
        if not re.fullmatch(rb"w\d+", message["body"]) or int(message["body"][1:]) >= self.sent:
            raise Mismatch("a message that was published", str(frame))
        record = self.state.setdefault(
            key,
            {
                "id": message["id"],
                "seen": 0,
                "holder": None,
                "lost": False,
                "timestamp": message["timestamp"],
            },
        )
        if self.bodies.setdefault((conn.channel, message["id"]), message["body"]) != message["body"]:
            raise Mismatch("an id of its own for every message", str(frame))
        if message["id"] != record["id"] or message["timestamp"] != record["timestamp"]:
            raise Mismatch(f"id {record['id']} and timestamp kept on redelivery", str(frame))
        if message["body"] in self.finished[conn.channel]:
            raise Mismatch("no delivery after FIN", f"{frame} on {conn.name}")
        if record["holder"] is not None and not record["lost"]:
            raise Mismatch(
                f"{show(message['body'])} in flight on {record['holder'].name} only",
                f"{frame} on {conn.name}",
            )
        exact = record["seen"] + 1
        if message["attempts"] != exact and (not self.dropped or message["attempts"] < exact):
            raise Mismatch(f"attempts {exact}", f"{frame} on {conn.name}")
        record["seen"], record["holder"], record["lost"] = message["attempts"], conn, False
        conn.held[message["id"]] = message
        if len(conn.held) > conn.rdy:
            raise Mismatch(f"at most {conn.rdy} in flight on {conn.name}", str(len(conn.held)))

    def act(self, conn):
        ident = self.random.choice(list(conn.held))
        message = conn.held[ident]
        record = self.state[(conn.channel, message["body"])]
        actions = self.spec.get("actions", {"fin": 1})
        name = self.random.choices(list(actions), list(actions.values()))[0]
        if name == "hold":
            return
        if name == "touch":
            self.say(conn, f"TOUCH {ident}\n")
            return
        if name == "req" and record["seen"] < self.spec.get("max_attempts", 4):
            delay = self.random.choice([0, 0, 0, self.spec.get("defer_ms", 0)])
            self.say(conn, f"REQ {ident} {delay}\n")
            self.requeued[conn.channel] += 1
        else:
            self.say(conn, f"FIN {ident}\n")
            self.finished[conn.channel].add(message["body"])
        del conn.held[ident]
        record["holder"] = None

    def drop(self):
        """Close a consumer without answering what it holds."""
        busy = [
            c for c in self.consumers if c.held and sum(o.channel == c.channel for o in self.consumers) > 1
        ]
        if not busy:
            return
        victim = self.random.choice(busy)
        self.consumers.remove(victim)
        for message in victim.held.values():
            self.state[(victim.channel, message["body"])]["lost"] = True
        # half-close and wait, so that the server has taken every FIN sent before
        victim.sock.shutdown(socket.SHUT_WR)
        while self.r.read(victim, self.r.until(2000), "ignore") not in (CLOSED, NOTHING):
            pass
        victim.close()
        self.drops -= 1
        self.dropped = True

    def run(self):
        self.dropped = False
        self.setup()
        while True:
            done = all(len(f) == self.total for f in self.finished.values())
            if done and self.sent == self.total:
                break
            if time.monotonic() >= self.r.deadline:
                left = {c: self.total - len(f) for c, f in self.finished.items()}
                raise Mismatch(
                    "every message delivered on every channel",
                    f"a timeout with messages missing per channel: {left}",
                )
            if self.sent < self.total and self.random.random() < 0.5:
                self.publish()
            if self.drops and self.sent > self.total // 2 and self.random.random() < 0.2:
                self.drop()
            pause = 0 if any(c.held for c in self.consumers) or self.sent < self.total else 0.05
            conn, frame = self.r.next_of(self.consumers, time.monotonic() + pause)
            while frame is not NOTHING:
                self.deliver(conn, frame)
                conn, frame = self.r.next_of(self.consumers, 0)
            busy = [c for c in self.consumers if c.held]
            for conn in self.random.sample(busy, len(busy)):
                for _ in range(self.random.randint(0, len(conn.held))):
                    if conn.held:
                        self.act(conn)
        self.settle()

    def settle(self):
        conn, frame = self.r.next_of(self.consumers, time.monotonic() + 0.25)
        if frame is not NOTHING:
            raise Mismatch("no more messages", f"{self.r.describe(frame, 250)} on {conn.name}")
        want = {
            "topics": [
                {
                    "topic_name": self.topic,
                    "depth": 0,
                    "message_count": self.total,
                    "channels": {"$unordered": [self.channel_stats(name) for name in self.spec["channels"]]},
                }
            ]
        }
        deadline = time.monotonic() + 2
        while True:
            reply = self.r.http("GET", f"/stats?format=json&topic={self.topic}", to="nsqd")
            problem = match_json(want, parse_json(reply.body))
            if not problem:
                return
            if time.monotonic() > min(deadline, self.r.deadline):
                raise Mismatch(*problem)
            time.sleep(0.03)

    def channel_stats(self, name):
        stats = {
            "channel_name": name,
            "depth": 0,
            "in_flight_count": 0,
            "deferred_count": 0,
            "message_count": self.total,
            "requeue_count": self.requeued[name],
            "client_count": sum(c.channel == name for c in self.consumers),
        }
        if not self.dropped:
            stats["timeout_count"] = 0
        return stats


# --------------------------------------------------------------------------
# Loading and reporting


def load(path):
    with open(path, encoding="utf-8") as handle:
        data = json.load(handle)
    names = set()
    for case in data["cases"]:
        odd = set(case) - {
            "name",
            "about",
            "timeout_ms",
            "needs",
            "needs_flags",
            "exclusive",
            "tags",
            "steps",
            "finally",
        }
        if odd:
            raise SystemExit(f"{path}: case {case.get('name')} has unknown keys {sorted(odd)}")
        if case["name"] in names:
            raise SystemExit(f"{path}: duplicate case name {case['name']}")
        names.add(case["name"])
    return data


class Report:
    def __init__(self, verbose):
        self.lock = threading.Lock()
        self.verbose = verbose
        self.passed = self.failed = 0

    def add(self, name, error, seconds):
        with self.lock:
            if error is None:
                self.passed += 1
                if self.verbose:
                    print(f"ok   {name} ({seconds:.2f}s)", flush=True)
            else:
                self.failed += 1
                print(f"FAIL {name}: {error}", flush=True)


def outcome(case, kind, targets, patience, run_id, keep_topics=False):
    """Run a case; None when it passed, else what went wrong, in one line."""
    runner = Runner(case, kind, targets, patience, run_id)
    error = None
    try:
        runner.run()
    except Mismatch as exc:
        error = f"{runner.where}: expected {exc.expected}, got {exc.got}"
    except BadCase as exc:
        error = f"{runner.where}: BAD CASE: {exc}"
    except Exception as exc:  # a broken case must not end the run
        error = f"{runner.where}: {type(exc).__name__}: {exc}"
    if not keep_topics:
        runner.cleanup()
    return None if error is None else " ".join(error.split())


def run_case(name, case, kind, targets, options, report, run_id):
    started = time.monotonic()
    error = outcome(case, kind, targets, options.patience, run_id, options.keep_topics)
    report.add(name, error, time.monotonic() - started)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http"):
        parser.add_argument(f"--{name}", metavar="HOST:PORT")
    parser.add_argument(
        "--cases",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="case files (default: those beside this script for the servers given)",
    )
    parser.add_argument("--filter", metavar="REGEX", help="run only cases whose name matches")
    parser.add_argument(
        "--skip-tag",
        action="append",
        default=[],
        metavar="TAG",
        help="leave out cases with this tag (may be repeated)",
    )
    parser.add_argument("-j", "--jobs", type=int, default=8, help="cases run at a time (default 8)")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="run the cases in a random order")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="multiply all upper time limits (for slow machines)",
    )
    parser.add_argument("--keep-topics", action="store_true", help="do not delete topics after a case")
    parser.add_argument("--list", action="store_true", help="print the case names and exit")
    parser.add_argument("-v", "--verbose", action="store_true", help="print passing cases too")
    parser.add_argument(
        "--print-flags",
        nargs="?",
        const="nsqd",
        choices=["nsqd", "nsqlookupd"],
        help="print the flags to start the server with and exit",
    )
    options = parser.parse_args()

    if options.print_flags:
        print(" ".join(load(os.path.join(HERE, f"{options.print_flags}.json"))["flags"]))
        return 0

    targets = Targets(options)
    files = options.cases
    if not files:
        files = [
            os.path.join(HERE, f"{kind}.json")
            for kind, have in (("nsqd", targets.has("nsqd")), ("nsqlookupd", targets.has("lookupd")))
            if have or options.list
        ]
    if not files:
        parser.error("give --nsqd-tcp and --nsqd-http, or --lookupd-tcp and --lookupd-http")

    todo, skipped = [], []
    for path in files:
        data = load(path)
        kind = {"nsqd": "nsqd", "nsqlookupd": "lookupd"}[data["target"]]
        for case in data["cases"]:
            name = f"{data['target']}/{case['name']}"
            if options.filter and not re.search(options.filter, name):
                continue
            needs = {kind, *case.get("needs", [])}
            missing = [need for need in needs if not targets.has(need)]
            if options.list:
                print(name)
            elif missing:
                skipped.append(f"{name} (needs {', '.join(sorted(missing))})")
            elif set(options.skip_tag) & set(case.get("tags", [])):
                skipped.append(f"{name} (tag)")
            else:
                todo.append((name, case, kind))
    if options.list:
        return 0
    if options.shuffle is not None:
        random.Random(options.shuffle).shuffle(todo)

    report = Report(options.verbose)
    stamp = os.urandom(4).hex()
    numbered = [(*item, f"{stamp}{number:03d}") for number, item in enumerate(todo)]
    alone = [item for item in numbered if item[1].get("exclusive")]
    shared = [item for item in numbered if not item[1].get("exclusive")]
    # long cases first, so that they overlap with the rest
    if options.jobs > 1 and options.shuffle is None:
        shared.sort(key=lambda item: -item[1].get("timeout_ms", DEFAULT_TIMEOUT_MS))
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for name, case, kind, run_id in shared:
            pool.submit(run_case, name, case, kind, targets, options, report, run_id)
    for name, case, kind, run_id in alone:
        run_case(name, case, kind, targets, options, report, run_id)

    if skipped:
        print(f"{len(skipped)} skipped" + (": " + ", ".join(skipped) if options.verbose else ""))
    print(f"{report.passed} passed, {report.failed} failed")
    return 0 if report.failed == 0 and report.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
