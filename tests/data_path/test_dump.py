from pathlib import Path

import pytest

from nsquark.data_path.dump import NoSegment, messages
from nsquark.errors import LogCorrupt


def test_a_topic_is_printed_in_order(data_path: Path) -> None:
    found = list(messages(data_path / "topics" / "orders"))
    assert [each.position for each in found] == list(range(201))
    assert found[11].body == b"order 1 of 1 " + b"x" * 60
    assert len({each.id for each in found}) == 201
    assert [each.position for each in found if each.due_ns] == [200]
    assert found[0].timestamp_ns <= found[-1].timestamp_ns


def test_a_segment_is_printed_from_a_position_on(data_path: Path) -> None:
    second = sorted((data_path / "topics" / "orders").glob("*.log"))[1]
    base = int(second.stem)
    assert next(messages(second)).position == base
    assert next(messages(second, base + 3)).position == base + 3
    assert next(messages(second.parent, base - 1)).position == base - 1


def test_damage_ends_the_printing_behind_what_is_whole(data_path: Path) -> None:
    path = sorted((data_path / "topics" / "orders").glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found: list[int] = []
    with pytest.raises(LogCorrupt, match="damaged or torn"):
        found.extend(each.position for each in messages(path))
    assert found == list(range(len(found)))
    assert len(found) >= 10


def test_what_is_no_segment_is_refused(data_path: Path, tmp_path: Path) -> None:
    for path in (data_path, data_path / "nsqd.dat", tmp_path / "00000000000000000000.log"):
        with pytest.raises(NoSegment):
            next(messages(path))
