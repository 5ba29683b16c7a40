"""IDENTIFY: ranges, their order and texts (section 2.2), and the answer (2.3)."""

from __future__ import annotations

import json

import pytest

from nsquark.errors import BadBody
from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol.negotiation import Settings, Upgrades
from nsquark.version import NSQ_VERSION, VERSION
from nsquark.wire import Identify

KEYS = [
    "max_rdy_count",
    "version",
    "max_msg_timeout",
    "msg_timeout",
    "tls_v1",
    "deflate",
    "deflate_level",
    "max_deflate_level",
    "snappy",
    "sample_rate",
    "auth_required",
    "output_buffer_size",
    "output_buffer_timeout",
    "topology_region",
    "topology_zone",
]


def options(**changes: object) -> Options:
    result = Options()
    for name, value in changes.items():
        assert hasattr(result, name)
        setattr(result, name, value)
    return result


def applied(known: Options | None = None, **asked: object) -> Settings:
    known = known or Options()
    settings = Settings.default(known)
    settings.apply(Identify(**asked), known)  # type: ignore[arg-type]
    return settings


def refusal(known: Options | None = None, **asked: object) -> str:
    with pytest.raises(BadBody) as caught:
        applied(known, **asked)
    assert caught.value.fatal
    return caught.value.pack().decode()


def test_who_asks_for_nothing_gets_the_defaults() -> None:
    for settings in (Settings.default(Options()), applied()):
        assert settings.heartbeat_interval == 30.0
        assert settings.output_buffer_size == 16384
        assert settings.output_buffer_timeout_ms == 250
        assert settings.msg_timeout == 60.0
        assert settings.sample_rate == 0


def test_the_defaults_come_from_the_options() -> None:
    settings = applied(options(output_buffer_timeout=0.1, msg_timeout=5.0))
    assert settings.output_buffer_timeout_ms == 100
    assert settings.msg_timeout == 5.0


# name, least, most, attribute, what a millisecond (or byte) of it is there, text
RANGES = [
    ("heartbeat_interval", 1000, 60000, "heartbeat_interval", 1000, "heartbeat interval"),
    ("output_buffer_timeout", 25, 30000, "output_buffer_timeout_ms", 1, "output buffer timeout"),
    ("output_buffer_size", 64, 65536, "output_buffer_size", 1, "output buffer size"),
    ("msg_timeout", 1000, 900000, "msg_timeout", 1000, "msg timeout"),
    ("sample_rate", 1, 99, "sample_rate", 1, "sample rate"),
]


@pytest.mark.parametrize(("name", "least", "most", "attribute", "unit", "text"), RANGES)
def test_a_value_has_a_range(name: str, least: int, most: int, attribute: str, unit: int, text: str) -> None:
    for value in (least, least + 1, most - 1, most):
        assert getattr(applied(**{name: value}), attribute) == value / unit
    assert getattr(applied(**{name: 0}), attribute) == getattr(applied(), attribute)
    for value in {least - 1, most + 1, -2, -(2**63), 2**63 - 1} - {0}:
        assert refusal(**{name: value}) == f"E_BAD_BODY IDENTIFY {text} ({value}) is invalid"


def test_the_ranges_follow_the_options() -> None:
    known = options(
        max_heartbeat_interval=2.0,
        min_output_buffer_timeout=0.5,
        max_output_buffer_timeout=1.0,
        max_output_buffer_size=100,
        max_msg_timeout=3.0,
    )
    for name, least, most in (
        ("heartbeat_interval", 1000, 2000),
        ("output_buffer_timeout", 500, 1000),
        ("output_buffer_size", 64, 100),
        ("msg_timeout", 1000, 3000),
    ):
        for value in (least, most):
            applied(known, **{name: value})
        for value in (least - 1, most + 1):
            assert f"({value}) is invalid" in refusal(known, **{name: value})


def test_minus_one_switches_off() -> None:
    assert applied(heartbeat_interval=-1).heartbeat_interval == 0
    assert applied(output_buffer_timeout=-1).output_buffer_timeout_ms == 0
    unbuffered = applied(output_buffer_size=-1)
    assert (unbuffered.output_buffer_size, unbuffered.output_buffer_timeout_ms) == (1, 0)
    unbuffered = applied(output_buffer_size=-1, output_buffer_timeout=500)
    assert (unbuffered.output_buffer_size, unbuffered.output_buffer_timeout_ms) == (1, 0)
    assert refusal(sample_rate=-1) == "E_BAD_BODY IDENTIFY sample rate (-1) is invalid"
    assert refusal(msg_timeout=-1) == "E_BAD_BODY IDENTIFY msg timeout (-1) is invalid"


def test_the_first_value_out_of_range_is_named() -> None:
    order = [
        "heartbeat_interval",
        "output_buffer_timeout",
        "output_buffer_size",
        "sample_rate",
        "msg_timeout",
    ]
    texts = [
        "heartbeat interval",
        "output buffer timeout",
        "output buffer size",
        "sample rate",
        "msg timeout",
    ]
    for number, text in enumerate(texts):
        asked = dict.fromkeys(order[number:], -7)
        assert refusal(**asked) == f"E_BAD_BODY IDENTIFY {text} (-7) is invalid"


def test_a_later_identify_changes_what_it_asks_for() -> None:
    known = Options()
    settings = Settings.default(known)
    settings.apply(Identify(heartbeat_interval=5000, msg_timeout=2000, sample_rate=10), known)
    settings.apply(Identify(msg_timeout=3000), known)
    assert (settings.heartbeat_interval, settings.msg_timeout, settings.sample_rate) == (5.0, 3.0, 0)


def test_the_answer_has_nsqs_keys_in_nsqs_order() -> None:
    known = Options()
    answer = (
        Settings.default(known).pack(known, Upgrades.negotiate(Identify(), known, tls_offered=False)).decode()
    )
    assert answer.startswith(
        '{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
        '"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,'
        '"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250,'
    )
    document = json.loads(answer)
    assert list(document)[: len(KEYS)] == KEYS
    assert document["version"] == NSQ_VERSION
    assert document["nsquark_version"] == VERSION
    assert set(document) == {*KEYS, "nsquark_version", "http_port", "max_msg_size", "max_body_size"}


def test_the_answer_says_what_is_in_force() -> None:
    known = options(
        max_rdy_count=7,
        max_msg_timeout=120.0,
        max_deflate_level=3,
        max_msg_size=2000,
        max_body_size=3000,
        topology_region="r",
        topology_zone="z",
    )
    settings = applied(
        known, msg_timeout=1500, sample_rate=42, output_buffer_size=-1, output_buffer_timeout=500
    )
    assert json.loads(settings.pack(known, Upgrades.negotiate(Identify(), known, tls_offered=False))) == {
        "max_rdy_count": 7,
        "version": NSQ_VERSION,
        "max_msg_timeout": 120000,
        "msg_timeout": 1500,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": 3,
        "max_deflate_level": 3,
        "snappy": False,
        "sample_rate": 42,
        "auth_required": False,
        "output_buffer_size": 1,
        "output_buffer_timeout": 0,
        "topology_region": "r",
        "topology_zone": "z",
        "nsquark_version": VERSION,
        "http_port": 0,
        "max_msg_size": 2000,
        "max_body_size": 3000,
    }


@pytest.mark.parametrize("milliseconds", [1000, 1001, 1999, 59999, 12345])
def test_times_come_back_as_they_were_asked_for(milliseconds: int) -> None:
    known = Options()
    assert (
        json.loads(
            applied(msg_timeout=milliseconds).pack(
                known, Upgrades.negotiate(Identify(), known, tls_offered=False)
            )
        )["msg_timeout"]
        == milliseconds
    )
