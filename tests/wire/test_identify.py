"""The document of IDENTIFY: what NSQ's JSON reader takes, and what it does not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.errors import BadBody
from nsquark.wire import Identify, parse_identify
from nsquark.wire.identify import parse_identify_response

STRINGS = ["client_id", "hostname", "user_agent", "topology_region", "topology_zone"]
INTEGERS = [
    "heartbeat_interval",
    "output_buffer_timeout",
    "output_buffer_size",
    "sample_rate",
    "msg_timeout",
    "deflate_level",
]
FLAGS = ["feature_negotiation", "tls_v1", "snappy", "deflate"]


def refused(body: bytes) -> bool:
    try:
        parse_identify(body)
    except BadBody as error:
        return error.fatal and error.pack() == b"E_BAD_BODY IDENTIFY failed to decode JSON body"
    return False


@pytest.mark.parametrize(
    "body", [b"{}", b"null", b" \t\r\n{ }\n", b"\nnull ", b'{"short_id":1,"x":[{"y":null}]}']
)
def test_an_empty_document_asks_for_nothing(body: bytes) -> None:
    assert parse_identify(body) == Identify()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b'"x"',
        b"1",
        b"true",
        b"{",
        b"{}x",
        b"{}{}",
        b"nullnull",
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a"}',
        b"\xef\xbb\xbf{}",
        b'{"x":NaN}',
        b'{"x":Infinity}',
        b'{"x":-Infinity}',
        b'{"hostname":"a\nb"}',
        b'{"hostname":"a\x00b"}',
        b'{"x":01}',
        b'{"x":+1}',
        b'{"x":.5}',
        b'{"x":"\\x41"}',
        b"\xff{}",
        b"{}\x00",
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert refused(body)


def test_an_answer_of_brackets_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no JSON"):
        parse_identify_response(b'{"version":' + b"[" * 100_000)


def test_a_whole_document_is_understood() -> None:
    document = {
        "client_id": "c",
        "hostname": "h",
        "user_agent": "u/1",
        "heartbeat_interval": 1000,
        "output_buffer_timeout": -1,
        "output_buffer_size": 64,
        "sample_rate": 99,
        "msg_timeout": 1500,
        "feature_negotiation": True,
        "tls_v1": True,
        "snappy": True,
        "deflate": True,
        "deflate_level": 9,
        "topology_region": "r",
        "topology_zone": "z",
    }
    assert parse_identify(json.dumps(document).encode()) == Identify(**document)  # type: ignore[arg-type]
    shouted = {key.upper(): value for key, value in document.items()}
    assert parse_identify(json.dumps(shouted).encode()) == Identify(**document)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_strict(name: str) -> None:
    for wrong in ('"1000"', "true", "false", "1000.0", "1e3", "1.5", "[]", "{}", '""'):
        assert refused(f'{{"{name}":{wrong}}}'.encode()), wrong
    limit = 2**31 if name == "sample_rate" else 2**63
    assert refused(f'{{"{name}":{limit}}}'.encode())
    assert refused(f'{{"{name}":{-limit - 1}}}'.encode())
    assert refused(f'{{"{name}":1{"0" * 5000}}}'.encode())
    for value in (0, 1, -1, limit - 1, -limit):
        assert getattr(parse_identify(f'{{"{name}":{value}}}'.encode()), name) == value
    assert getattr(parse_identify(f'{{"{name}":-0}}'.encode()), name) == 0


@pytest.mark.parametrize("name", FLAGS)
def test_booleans_are_strict(name: str) -> None:
    for wrong in ("0", "1", '"true"', "1.0", "[]", "{}", '""'):
        assert refused(f'{{"{name}":{wrong}}}'.encode()), wrong
    assert getattr(parse_identify(f'{{"{name}":true}}'.encode()), name) is True
    assert getattr(parse_identify(f'{{"{name}":false}}'.encode()), name) is False


@pytest.mark.parametrize("name", STRINGS)
def test_strings_are_strict(name: str) -> None:
    for wrong in ("0", "1.5", "true", "[]", "{}", '["a"]'):
        assert refused(f'{{"{name}":{wrong}}}'.encode()), wrong
    assert getattr(parse_identify(f'{{"{name}":"a\\u00e9\\n"}}'.encode()), name) == "aé\n"


@pytest.mark.parametrize("name", STRINGS + INTEGERS + FLAGS)
def test_null_is_absent(name: str) -> None:
    assert parse_identify(f'{{"{name}":null}}'.encode()) == Identify()


def test_the_last_of_equal_keys_wins() -> None:
    body = b'{"msg_timeout":1,"msg_timeout":2,"Msg_Timeout":3,"hostname":"a","HOSTNAME":"b"}'
    assert parse_identify(body) == Identify(msg_timeout=3, hostname="b")


def test_every_one_of_equal_keys_must_have_its_type() -> None:
    with pytest.raises(BadBody):
        parse_identify(b'{"hostname":5,"hostname":"a"}')
    assert parse_identify(b'{"snappy":true,"snappy":null}') == Identify(snappy=True)


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    assert parse_identify(b'{"hostname":"a\xffb"}').hostname == "a\ufffdb"
    assert parse_identify(b'{"hostname":"\\ud800!"}').hostname == "\ufffd!"
    assert parse_identify(b'{"hostname":"\\ud83d\\ude00"}').hostname == "\U0001f600"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*STRINGS, *INTEGERS, *FLAGS, "x"]), JSON, max_size=4))
def test_any_document_is_taken_or_refused(document: dict[str, object]) -> None:
    kinds = {**dict.fromkeys(STRINGS, str), **dict.fromkeys(INTEGERS, int), **dict.fromkeys(FLAGS, bool)}
    body = json.dumps(document).encode()
    fits = all(
        value is None
        or name == "x"
        or (type(value) is kinds[name] and (type(value) is not int or -(2**31) <= value < 2**31))
        for name, value in document.items()
    )
    if fits:
        found = parse_identify(body)
        for name, value in document.items():
            if name != "x" and value is not None and not isinstance(value, str):
                assert getattr(found, name) == value
    else:
        # an int64 that is no int32 is the one thing between
        wide = [value for name, value in document.items() if name in INTEGERS and type(value) is int]
        assert refused(body) or any(abs(value) >= 2**31 for value in wide)


@given(st.binary(max_size=60))
def test_noise_is_refused_or_taken(noise: bytes) -> None:
    refused(noise)
    refused(b'{"hostname":"' + noise + b'"}')
