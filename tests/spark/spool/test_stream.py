"""Reading a stock nsqd through the spool: the same rows for the same offsets."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import ChannelInUse, DataLost, OptionError
from nsquark.spark.source.options import parse_stream_options
from nsquark.spark.stream_reader import NsqStreamReader
from tests.spark.broker import Broker, numbered

ALL = ReadAllAvailable()
Offset = dict[str, Any]


@pytest.fixture
def stock(broker: Broker) -> Iterator[str]:
    """The HTTP address of an nsqd that knows NSQ's routes and no others."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = 404, b'{"message":"NOT_FOUND"}'
            if self.path.partition("?")[0] in ("/ping", "/info", "/stats"):
                connection = http.client.HTTPConnection(broker.http_address, timeout=20)
                connection.request("GET", self.path)
                response = connection.getresponse()
                status, body = response.status, response.read()
                connection.close()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def readers() -> Iterator[list[NsqStreamReader]]:
    opened: list[NsqStreamReader] = []
    yield opened
    for reader in opened:
        reader.stop()


@pytest.fixture
def query(stock: str, tmp_path: Path, readers: list[NsqStreamReader]) -> Any:
    def new(**options: str) -> NsqStreamReader:
        given = {
            "nsqd.http.addresses": stock,
            "subscribe": "t",
            "channel": "q",
            "stagingDirectory": str(tmp_path / "spool"),
            "pollWaitMs": "20000",
            **options,
        }
        reader = NsqStreamReader(parse_stream_options(given), SCHEMA)
        readers.append(reader)
        return reader

    return new


def read(reader: NsqStreamReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    rows = [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: int(row["offset"]))


def read_until(reader: NsqStreamReader, start: Offset, rows: int) -> Offset:
    end = start
    while end["staged"] < rows:
        end = reader.latestOffset(end, ALL)
    return end


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return sorted((row["value"] for row in rows), key=lambda value: int(value.split()[1]))


def test_messages_are_consumed_spooled_and_read(broker: Broker, query: Any) -> None:
    broker.publish("t", numbered(50))
    reader = query()
    start = reader.initialOffset()
    assert start == {"staged": 0}
    end = read_until(reader, start, 50)
    rows = read(reader, start, end)
    assert values(rows) == numbered(50)
    assert [row["offset"] for row in rows] == list(range(50))
    assert {(row["topic"], row["nsqd"]) for row in rows} == {("t", broker.tcp_address)}
    assert len({row["id"] for row in rows}) == 50


def test_a_restart_reads_the_same_rows(broker: Broker, query: Any, readers: list[NsqStreamReader]) -> None:
    broker.publish("t", numbered(50))
    reader = query()
    end = read_until(reader, reader.initialOffset(), 50)
    rows = read(reader, {"staged": 0}, end)
    readers.remove(reader)
    reader.stop()
    again = query(minPartitions="3")
    assert again.initialOffset() == {"staged": 0}
    assert len(again.partitions({"staged": 0}, end)) == 3
    assert read(again, {"staged": 0}, end) == rows
    broker.publish("t", numbered(10, 50))
    more = read_until(again, end, 60)
    assert values(read(again, end, more)) == numbered(10, 50)


def test_available_now_takes_what_is_in_the_channel(broker: Broker, query: Any) -> None:
    broker.publish("t", numbered(3000))
    reader = query()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    half = reader.latestOffset(start, ReadMaxRows(2000))
    end = reader.latestOffset(half, ReadMaxRows(2000))
    assert (half, end) == ({"staged": 2000}, {"staged": 3000})
    assert reader.latestOffset(end, ALL) == end
    assert values(read(reader, start, half) + read(reader, half, end)) == numbered(3000)
    assert broker.depth("t", "q") == 0
    assert 0 < reader.latestOffset(start, ReadMaxBytes(10_000))["staged"] < 500


def test_a_redelivered_message_is_not_spooled_twice(
    broker: Broker, query: Any, readers: list[NsqStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer is killed between spooling and finishing: nsqd delivers messages again that are on disk."""
    broker.publish("t", numbered(20))
    with monkeypatch.context() as patch:
        patch.setattr("nsquark.client.Message.finish", lambda message: True)
        patch.setattr("nsquark.client.Message.dropped", lambda message: None)
        reader = query()
        end = read_until(reader, reader.initialOffset(), 20)
        readers.remove(reader)
        reader.stop()
    assert broker.depth("t", "q") == 20
    again = query()
    broker.publish("t", numbered(1, 20))
    more = read_until(again, end, 21)
    assert values(read(again, {"staged": 0}, more)) == numbered(21)


def test_a_file_that_is_gone_from_the_spool_is_named(broker: Broker, query: Any, tmp_path: Path) -> None:
    broker.publish("t", numbered(5))
    reader = query()
    end = read_until(reader, reader.initialOffset(), 5)
    partitions = reader.partitions({"staged": 0}, end)
    for path in (tmp_path / "spool").glob("*.messages"):
        path.unlink()
    with pytest.raises(
        DataLost, match=r"option 'stagingDirectory': offsets \[0, 5\) are to be read, but .* gone"
    ):
        list(reader.read(partitions[0]))


def test_what_this_mode_needs_and_cannot_do(broker: Broker, query: Any, stock: str) -> None:
    broker.publish("t", numbered(1))
    with pytest.raises(OptionError, match="option 'stagingDirectory': missing"):
        query(stagingDirectory="").initialOffset()
    with pytest.raises(OptionError, match="option 'startingTimestamp'"):
        query(startingTimestamp="5").initialOffset()
    with pytest.raises(OptionError, match=r"option 'mode': nsqd .* has no log to read"):
        query(mode="log").initialOffset()
    first = query()
    first.initialOffset()
    with pytest.raises(ChannelInUse, match=r"option 'stagingDirectory': .* is in use by another query"):
        query().initialOffset()
    with pytest.raises(OptionError, match="option 'checkpointLocation'"):
        first.latestOffset({"t": {"n": {"epoch": "e", "nsqd": "h:1", "offset": 1}}}, ALL)


def test_a_query_that_has_spooled_goes_on_spooling(broker: Broker, query: Any) -> None:
    """Even if its nsqd has a log by now."""
    broker.publish("t", numbered(5))
    address = {"nsqd.http.addresses": broker.http_address}
    reader = query(**address)
    assert read_until(reader, {"staged": 0}, 5) == {"staged": 5}
    assert query(**address, channel="new", stagingDirectory="").initialOffset().keys() == {"t"}
