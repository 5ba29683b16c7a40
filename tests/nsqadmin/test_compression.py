"""Who gets an answer compressed, and which."""

from __future__ import annotations

import gzip

import pytest
from starlette.responses import Response

from nsquark.nsqadmin.compression import IN_A_THREAD, compressed, takes_gzip


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        (b"gzip", True),
        (b"deflate, gzip, br", True),
        (b"GZIP;q=0.5", True),
        (b"gzip;q=1.0, identity;q=0", True),
        (b"x-gzip", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000, br", False),
        (b"gzipped", False),
        (b"br", False),
        (b"", False),
    ],
)
def test_gzip_is_for_those_who_take_it(accepted: bytes, taken: bool) -> None:
    assert takes_gzip([(b"host", b"gzip"), (b"accept-encoding", accepted)]) is taken


@pytest.mark.parametrize("size", [2000, IN_A_THREAD])
async def test_a_compressed_answer_says_so_and_how_long_it_is(size: int) -> None:
    response = Response(b"a" * size, media_type="text/html", headers={"X-Other": "kept"})
    headers, body = await compressed(response, True)
    told = dict(headers)
    assert gzip.decompress(body) == response.body
    assert len(told) == len(headers)
    assert told[b"content-encoding"] == b"gzip"
    assert told[b"content-length"] == b"%d" % len(body)
    assert (told[b"vary"], told[b"x-other"]) == (b"Accept-Encoding", b"kept")


async def test_one_who_takes_no_gzip_is_told_that_another_would_get_it() -> None:
    headers, body = await compressed(Response(b"{}", media_type="application/json"), False)
    assert (body, dict(headers)[b"vary"]) == (b"{}", b"Accept-Encoding")
    assert b"content-encoding" not in dict(headers)


async def test_a_picture_is_left_as_it_is() -> None:
    response = Response(b"picture", media_type="image/png")
    assert await compressed(response, True) == (response.raw_headers, b"picture")
