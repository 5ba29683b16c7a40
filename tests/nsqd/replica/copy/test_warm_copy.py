"""Operations that do not fit the copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.nsqd.replica.changes.frames import CUT, Frame, Operation
from nsquark.nsqd.replica.copy.warm_copy import CopyDiffers, WarmCopy

PATH = "topics/t/1.log"


@pytest.fixture
def copy(tmp_path: Path) -> WarmCopy:
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_bytes(b"12345")
    return WarmCopy(tmp_path)


def cut(offset: int) -> Frame:
    return Frame(1, 1, [Operation(CUT, PATH, offset)])


@pytest.mark.parametrize("offset", [6, (1 << 64) - 1])
def test_cutting_a_file_never_makes_it_longer(copy: WarmCopy, offset: int) -> None:
    with pytest.raises(CopyDiffers, match="has 5 bytes"):
        copy.apply(cut(offset), lenient=False)
    copy.apply(cut(offset), lenient=True)  # it was cut further since
    assert (copy.directory / PATH).read_bytes() == b"12345"


def test_a_file_is_cut(copy: WarmCopy) -> None:
    copy.apply(cut(5), lenient=False)
    copy.apply(cut(2), lenient=False)
    assert (copy.directory / PATH).read_bytes() == b"12"
