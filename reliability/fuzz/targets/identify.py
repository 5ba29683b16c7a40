"""The JSON documents of IDENTIFY: the client's to nsqd with what nsqd makes of it, and nsqd's answer."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from nsquark.errors import ProtocolError
from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol.negotiation import Settings, Upgrades
from nsquark.wire import Identify, parse_identify
from nsquark.wire.identify import parse_identify_response
from reliability.fuzz.target import Target, Wrong, require_same

_OPTIONS = Options()


def _asked(data: bytes) -> object:
    try:
        asked = parse_identify(data)
    except ProtocolError as error:
        return str(error)
    for each in fields(asked):
        if type(getattr(asked, each.name)) is not type(each.default):
            raise Wrong(f"{each.name} is {getattr(asked, each.name)!r}")
    # What is understood can be said again, and means the same.
    again = parse_identify(json.dumps(asdict(asked)).encode())
    require_same("read again", asked, again)
    return asked, _negotiated(asked)


def _negotiated(asked: Identify) -> object:
    settings = Settings.default(_OPTIONS)
    try:
        settings.apply(asked, _OPTIONS)
        upgrades = Upgrades.negotiate(asked, _OPTIONS, True)
    except ProtocolError as error:
        return error.pack()
    answer = settings.pack(_OPTIONS, upgrades)
    understood = parse_identify_response(answer)
    if understood.msg_timeout < 1000 or not 0 <= understood.sample_rate <= 99:
        raise Wrong(f"negotiated {understood}")
    return settings, upgrades


def _answered(data: bytes) -> object:
    try:
        return parse_identify_response(data)
    except ValueError as error:
        return str(error)


def run(data: bytes) -> object:
    return _asked(data), _answered(data)


def seeds() -> list[bytes]:
    asked = asdict(Identify("id", "host", "agent/1", 30000, 250, 16384, 50, 60000, True, True, True))
    settings = Settings.default(_OPTIONS).pack(_OPTIONS, Upgrades(deflate=True))
    return [
        json.dumps(asked).encode(),
        settings,
        b'{"heartbeat_interval":-1,"output_buffer_size":-1,"output_buffer_timeout":-1}',
        b'{"HeartBeat_Interval":1e3,"snappy":null,"sample_rate":2147483648}',
        b'{"client_id":"\\ud800\\u0000","msg_timeout":NaN}',
        b"null",
        b"[" * 200,
        b'{"":' * 150 + b"1" + b"}" * 150,
    ]


TARGET = Target(
    name="identify",
    run=run,
    seeds=seeds,
    modules=("nsquark.wire.identify", "nsquark.nsqd.protocol.negotiation"),
    words=(
        *(b'"' + each.name.encode() + b'":' for each in fields(Identify)),
        b"true",
        b"null",
        b"-1",
        b"9223372036854775808",
        b"1e400",
        b"NaN",
        b"\\ud800",
        b"{",
        b"[" * 500,
        b"\xff",
    ),
    max_length=3000,
)
