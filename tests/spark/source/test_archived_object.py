"""Spans whose beginning is only in nsqd's archive: read there by the task itself, or sent by nsqd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import OptionError, Unreachable
from nsquark.spark.source import archived_object, span_reader
from nsquark.spark.source.archived_object import NEVER, ObjectPart, parse_object
from nsquark.spark.source.offsets import Span
from nsquark.spark.source.options import parse_batch_options
from nsquark.spark.source.partitions import LogPartition
from nsquark.spark.source.span_reader import read_span
from tests.daemon import PATIENCE
from tests.spark.broker import Broker

pytestmark = pytest.mark.xdist_group("spark")

COUNT = 600
BODIES = [b"%d " % number + b"x" * 700 for number in range(COUNT)]


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Broker]:
    url = f"--archive-url=file://{tmp_path / 'store'}"
    with Broker(tmp_path / "data", "--max-bytes-per-file=65536", url).start() as broker:
        broker.ask("POST", "/topic/create?topic=t")
        broker.ask("POST", "/channel/create?topic=t&channel=c")
        for first in range(0, COUNT, 10):
            broker.publish("t", BODIES[first : first + 10])
        broker.ask("POST", "/channel/empty?topic=t&channel=c")
        deadline = time.monotonic() + PATIENCE
        while len(list((broker.data_path / "topics" / "t").glob("*.log"))) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield broker


def objects(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "store").rglob("*.log"))


def fetched(broker: Broker) -> list[Path]:
    """What nsqd itself has read of its archive."""
    return list((broker.data_path / "archive.fetched").iterdir())


def rows(broker: Broker, start: int = 0, end: int = COUNT, **more: str) -> list[tuple[int, bytes]]:
    given = {"nsqd.http.addresses": broker.http_address, "subscribe": "t", "fetchoffset.numretries": "0"}
    span = Span("t", "n", "127.0.0.1:4150", broker.log("t")["epoch"], start, end)
    partition = LogPartition(span, f"http://{broker.http_address}")
    found: list[tuple[int, bytes]] = []
    for batch in read_span(partition, SCHEMA, parse_batch_options(given | more).fetch):
        found += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return found


@pytest.mark.parametrize("piece", [1000, 2 << 20])
def test_rows_come_from_the_archive_and_nsqd_fetches_nothing(
    nsqd: Broker, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(span_reader, "PIECE", piece)
    expected = list(enumerate(BODIES))
    for start, end in [(0, COUNT), (3, 4), (9, 11), (25, 595), (80, 90), (590, COUNT)]:
        assert rows(nsqd, start, end) == expected[start:end]
    assert not fetched(nsqd)


def test_nsqd_sends_what_a_task_cannot_read(nsqd: Broker, tmp_path: Path) -> None:
    elsewhere = {"archive.url": f"file://{tmp_path}/nothing"}
    assert rows(nsqd, **elsewhere) == list(enumerate(BODIES))
    assert fetched(nsqd)


def test_the_option_says_where_the_archive_is_for_a_task(nsqd: Broker, tmp_path: Path) -> None:
    (tmp_path / "mount").symlink_to(tmp_path / "store")
    assert rows(nsqd, **{"archive.url": f"file://{tmp_path}/mount"}) == list(enumerate(BODIES))
    assert not fetched(nsqd)
    assert rows(nsqd, **{"archive.url": NEVER}) == list(enumerate(BODIES))
    assert fetched(nsqd)


def test_a_damaged_object_gives_no_row_and_is_told(nsqd: Broker, tmp_path: Path) -> None:
    first = objects(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    with pytest.raises(Unreachable, match=r"ARCHIVE_UNAVAILABLE.*is damaged"):
        rows(nsqd)
    first.write_bytes(data[: len(data) // 2])
    with pytest.raises(Unreachable, match="ARCHIVE_UNAVAILABLE"):
        rows(nsqd)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"object": each} for each in ("../x", "/etc/x", "", "a//b")),
        *({"start": 9}, {"stop": 11}, {"size": -1}, {"count": "1"}, {"position": None}, {"url": 5}),
    ],
)
def test_an_answer_that_names_no_object_is_refused(wrong: dict[str, object]) -> None:
    told = {"count": 1, "position": 2, "url": "file:///s", "object": "n/t/e/o", "size": 10} | {"start": 0}
    right = told | {"stop": 9}
    assert parse_object(right, "") == (1, 2, ObjectPart("file:///s", "n/t/e/o", 10, 0, 9))
    with pytest.raises(ValueError, match=r"."):
        parse_object(right | wrong, "")


def test_the_option_takes_no_credentials() -> None:
    given = {"nsqd.http.addresses": "127.0.0.1:4151", "subscribe": "t"}
    wrong = ("s3://id:secret@bucket/x", "s3://bucket?secret_key=x", "s3://b?endpoint_override=id:secret@host")
    for url in (*wrong, "bucket"):
        with pytest.raises(OptionError, match=r"archive\.url") as refused:
            parse_batch_options(given | {"archive.url": url})
        assert "secret@" not in str(refused.value)


def test_a_table_has_what_is_only_in_the_archive(nsqd: Broker, spark: SparkSession) -> None:
    archived_object._open.cache_clear()
    options = {"nsqd.http.addresses": nsqd.http_address, "subscribe": "t", "minPartitions": "4"}
    found = spark.read.format("nsq").options(**options).load().select("offset", "value").collect()
    assert sorted((row.offset, bytes(row.value)) for row in found) == list(enumerate(BODIES))
    assert not fetched(nsqd)
