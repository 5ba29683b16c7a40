from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.errors import BadProtocol, FinFailed, Invalid
from nsquark.wire import CLOSE_WAIT, HEARTBEAT, OK, pack_error, pack_response
from nsquark.wire.frames import ERROR, MESSAGE, RESPONSE, pack_frame


def test_frames_are_laid_out_as_in_nsq() -> None:
    assert OK == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    assert CLOSE_WAIT == b"\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"
    assert HEARTBEAT == b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"
    assert pack_error(b"E_INVALID x") == b"\x00\x00\x00\x0f\x00\x00\x00\x01E_INVALID x"
    assert pack_frame(MESSAGE, b"") == b"\x00\x00\x00\x04\x00\x00\x00\x02"


@given(st.sampled_from([RESPONSE, ERROR, MESSAGE]), st.binary(max_size=50))
def test_a_frame_has_a_size_a_type_and_data(kind: int, data: bytes) -> None:
    frame = pack_frame(kind, data)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == kind
    assert frame[8:] == data
    if kind != MESSAGE:
        assert frame == (pack_response if kind == RESPONSE else pack_error)(data)


@pytest.mark.parametrize(
    ("error", "data", "fatal"),
    [
        (Invalid("invalid command "), b"E_INVALID invalid command ", True),
        (Invalid(b"invalid command \xff"), b"E_INVALID invalid command \xff", True),
        (FinFailed("FIN 1 failed"), b"E_FIN_FAILED FIN 1 failed", False),
        (BadProtocol(), b"E_BAD_PROTOCOL", True),
    ],
)
def test_an_error_is_a_code_and_a_text(error: Invalid, data: bytes, fatal: bool) -> None:
    assert error.pack() == data
    assert error.fatal is fatal
    assert str(error) == data.decode("utf-8", "backslashreplace")
