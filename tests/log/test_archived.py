"""The files that say what the archive has, as a hand may have written them: their CRC is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.log import Archived, Limits, TopicLog, archived_name, pack_archived
from nsquark.log.archived import parse_archived, read_archived
from nsquark.nsqd.archive.fetched_segments import FetchedSegments
from tests.log.contents import Ids, Model

RIGHT = Archived(
    "node/t/epoch/0-9.log", "0.log", 5, 9, 100, 900, 17, 1_700_000_000, 1.5, ((5, 100), (6, 200), (8, 700))
)


def test_what_is_packed_is_parsed() -> None:
    assert parse_archived("p", pack_archived(RIGHT)) == RIGHT


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"key": each}
            for each in ("/etc/x/y", "../../../etc/passwd", "n/t/e/..", "n//e/x", "x", "", 5, None)
        ),
        *({"key": each} for each in ("n/t/e/\ud800", "n/t/e/\n", "n/t/e/\0")),
        *({"file": each} for each in (5, None, "", "x.log", "0", "0.log.bad", "../0.log")),
        *({"base": each} for each in (-1, 9, 1 << 63, "5", 5.0, None, True)),
        *({"end": each} for each in (5, 1 << 64, "9", None)),
        *({"start": each} for each in (900, -1, None)),
        *({"stop": each} for each in (100, 1 << 63, [])),
        *({"crc": each} for each in ("x", -1, None)),
        *({"time": each} for each in ("x", None, 1.5)),
        *({"modified": each} for each in ("x", None, [1])),
        *({"marks": each} for each in (None, 5, (), "ab", ((5,),), (("5", 100),), ((6, 200),))),
        *(
            {"marks": ((5, 100), each)}
            for each in ((5, 200), (6, 100), (9, 200), (6, 900), (-1, 200), (6, 2**70))
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_archived("p", pack_archived(RIGHT._replace(**wrong)))


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(Archived._fields), ANYTHING)
def test_whatever_a_record_says_it_is_parsed_or_refused(name: str, value: Any) -> None:
    try:
        found = parse_archived("p", pack_archived(RIGHT._replace(**{name: value})))
    except ValueError:
        return
    assert 0 <= found.base < found.end
    assert 0 <= found.start < found.stop


def test_what_is_of_another_topic_or_has_another_name_is_no_part_of_the_log(tmp_path: Path) -> None:
    log, model = TopicLog(tmp_path / "t", Limits(1, 0), Ids()), Model()
    model.publish(log, [(0, [b"body"])])
    log.close()
    name = archived_name(5, 0)
    records = {
        name: RIGHT._replace(key="node/another/epoch/0-9.log"),
        archived_name(6, 0): RIGHT,
        name.replace(".archived", ".expired"): RIGHT._replace(key="node/another/epoch/0-9.log"),
    }
    for each, archived in records.items():
        (tmp_path / "t" / each).write_bytes(pack_archived(archived))
    store = FetchedSegments(tmp_path, 1, lambda *_: None)
    log = TopicLog(tmp_path / "t", Limits(1, 0), Ids(), store=store)
    assert log.files is not None
    assert sorted(path.name for path, _ in log.files.unread) == sorted(records)
    assert (log.first, log.end, log.files.expired, log.archived_segments) == (0, 1, [], [])
    log.close()
    (tmp_path / "t" / name).write_bytes(pack_archived(RIGHT))
    assert read_archived(tmp_path / "t")[0] == [RIGHT]
