import pytest

from nsquark.wire.log_answer import SIZE, LogAnswerHead, NoLogAnswer, pack_head, parse_head

HEAD = LogAnswerHead(messages=3, position=1 << 40, epoch=(1 << 64) - 1, length=77)
PACKED = b"NQR1" + bytes.fromhex("00000003 0000010000000000 ffffffffffffffff 000000000000004d")


def test_a_head_is_laid_out_as_documented() -> None:
    assert pack_head(HEAD) == PACKED
    assert len(PACKED) == SIZE


def test_a_head_is_parsed_whatever_follows_it() -> None:
    assert parse_head(PACKED) == HEAD
    assert parse_head(bytearray(PACKED) + b"batches") == HEAD


@pytest.mark.parametrize("data", [b"", PACKED[:-1], b"NQR2" + PACKED[4:], b"<html>" + bytes(40)])
def test_another_answer_is_refused(data: bytes) -> None:
    with pytest.raises(NoLogAnswer):
        parse_head(data)
