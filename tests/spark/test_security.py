"""Source and sink against an nsqd that wants TLS, a client's certificate and a secret for everything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from nsquark.spark.http import fetch_json
from nsquark.spark.nsqd_urls import find_https_url
from nsquark.spark.reports.sender import ProgressSender
from nsquark.spark.source.options import parse_stream_options
from tests.daemon import Nsqlookupd
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority
from tests.spark.broker import Broker
from tests.spark.reports.test_listener import until as poll_until
from tests.spark.reports.test_sender import Plan, batch, fields

pytestmark = pytest.mark.xdist_group("spark")

SECRETS: dict[str, Any] = {
    "s3cret": [entry("^(in|out)$")],
    "reader": [entry("^in$", None, "subscribe")],
    "one channel": [entry("^in$", ["^secch$"], "subscribe")],
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    authority.sign("server")
    authority.sign("client")
    return authority


@pytest.fixture(scope="module")
def auth_server() -> Iterator[AuthServer]:
    """In a thread: these tests have no event loop."""
    server, ready, loop = AuthServer(SECRETS), threading.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        async with server:
            ready.set()
            await stopped.wait()

    stopped = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    yield server
    loop.call_soon_threadsafe(stopped.set)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd().start() as running:
        yield running


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory,
    authority: Authority,
    auth_server: AuthServer,
    lookupd: Nsqlookupd,
) -> Iterator[Broker]:
    flags = (
        f"--tls-cert={authority.folder / 'server.pem'}",
        f"--tls-key={authority.folder / 'server.key'}",
        f"--tls-root-ca-file={authority.file}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required",
        "--https-address=127.0.0.1:0",
        f"--auth-http-address={auth_server.address}",
        "--http-auth",
        f"--lookupd-tcp-address={lookupd.tcp_address}",
    )
    with Broker(tmp_path_factory.mktemp("guarded"), *flags).start() as broker:
        broker.wait_for_line(r"LOOKUPD\(.*\): peer is")
        yield broker


@pytest.fixture
def access(authority: Authority) -> dict[str, str]:
    return {
        "tls.caFile": str(authority.file),
        "tls.certFile": str(authority.folder / "client.pem"),
        "tls.keyFile": str(authority.folder / "client.key"),
        "auth.secret": "s3cret",
        "publish.numRetries": "1",
        "publish.retryIntervalMs": "1",
    }


def frame(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("concat('message ', id) AS value")


def save(rows: DataFrame, **options: str) -> None:
    rows.write.format("nsq").options(**options).mode("append").save()


def reading(access: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in access.items() if not name.startswith("publish.")}


def test_a_topic_is_written_read_and_copied(
    spark: SparkSession, guarded: Broker, lookupd: Nsqlookupd, access: dict[str, str], tmp_path: Path
) -> None:
    """Whichever way the nsqd is given."""
    by_http = {"nsqd.http.addresses": guarded.http_address}
    by_tcp = {"nsqd.tcp.addresses": guarded.tcp_address}
    by_lookupd = {"lookupd.http.addresses": lookupd.http_address}
    for number, where in enumerate((by_http, by_tcp, by_lookupd)):
        for delivery in ("atLeastOnce", "exactlyOnce"):
            save(frame(spark, 50), **where, **access, topic="in", deliveryMode=delivery)
        table = spark.read.format("nsq").options(**where, **reading(access), subscribe="in").load()
        assert table.count() == 100 * (number + 1)
    for number, where in enumerate((by_http, by_lookupd)):
        given = {**where, **reading(access), "subscribe": "in", "channel": f"c{number}"}
        stream = spark.readStream.format("nsq").options(**given, startingOffsets="earliest").load()
        writer = stream.select("value").writeStream.format("nsq")
        writer = writer.options(**where, **access, topic="out", deliveryMode="exactlyOnce")
        writer = writer.option("checkpointLocation", str(tmp_path / str(number)))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(100)
        table = spark.read.format("nsq").options(**where, **reading(access), subscribe="out").load()
        assert table.count() == 300 * (number + 1)


def test_a_grant_for_one_channel_streams_and_reports_and_reads_no_table(
    spark: SparkSession, guarded: Broker, access: dict[str, str], tmp_path: Path
) -> None:
    where = {"nsqd.http.addresses": guarded.http_address}
    save(frame(spark, 50), **where, **access, topic="in")
    given = {**where, **reading(access), "auth.secret": "one channel", "subscribe": "in"}
    stream = spark.readStream.format("nsq").options(**given, channel="secch", startingOffsets="earliest")
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", checkpoint)
    for _ in range(2):
        query = writer.trigger(availableNow=True).start(out)
        assert query.awaitTermination(100)
        read = spark.read.parquet(out).count()
        there = spark.read.format("nsq").options(**where, **reading(access), subscribe="in").load().count()
        assert read == there >= 50
        save(frame(spark, 50), **where, **access, topic="in")
    for refused in (
        spark.read.format("nsq").options(**given).load().count,
        spark.readStream.format("nsq").options(**given, channel="other").load().writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "other")).trigger(availableNow=True).start()
        .awaitTermination,
    ):  # fmt: skip
        with pytest.raises(PySparkException, match=r"403 UNAUTHORIZED; see option 'auth\.secret'"):
            refused()


def test_progress_is_reported_with_the_certificate_and_the_secret_of_the_source(
    guarded: Broker, lookupd: Nsqlookupd, access: dict[str, str]
) -> None:
    given = {**reading(access), "lookupd.http.addresses": lookupd.http_address, "subscribe": "in"}
    given["channel"] = "watched"
    how = parse_stream_options(given).addresses.access
    url = find_https_url(f"http://{guarded.http_address}", how)
    here = {"topic": "in", "channel": "watched"}
    fetch_json(url, how, "/topic/create", here, "POST")
    fetch_json(url, how, "/channel/create", here, "POST")
    sender = ProgressSender(interval=0)

    def is_registered() -> bool:
        sender.progress("r", batch(7))
        assert sender.wait(20)
        return bool(fetch_json(url, how, "/channel/reports", here)["channels"])

    sender.start("r", fields("r"), Plan({**given, "lookupd.pollIntervalMs": "1"}))
    poll_until(is_registered)
    sender.start("stranger", fields("stranger"), Plan({**given, "auth.secret": "wr0ng"}))
    sender.end("stranger", "")
    sender.end("r", "")
    assert sender.wait(20, ends=True)
    (channel,) = fetch_json(url, how, "/channel/reports", here)["channels"]
    assert [report["state"] for report in channel["reports"]] == ["running", "ended"]
    assert {report["run_id"] for report in channel["reports"]} == {"r"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"auth.secret": "wr0ng"}, "option 'auth.secret'"),
        ({"auth.secret": ""}, "option 'auth.secret'"),
        ({"auth.secret": "reader"}, "option 'auth.secret'"),
        ({"tls.caFile": ""}, "option 'tls.caFile'"),
        ({"tls.caFile": "/nowhere.pem"}, "option 'tls.caFile': '/nowhere.pem' cannot be used"),
        ({"tls.certFile": "", "tls.keyFile": ""}, "tls.certFile"),
    ],
)
@pytest.mark.parametrize(("by", "delivery"), [("tcp", "atLeastOnce"), ("http", "exactlyOnce")])
def test_a_sink_says_which_option_is_wrong(
    spark: SparkSession,
    guarded: Broker,
    access: dict[str, str],
    changes: dict[str, str],
    problem: str,
    delivery: str,
    by: str,
) -> None:
    where = {f"nsqd.{by}.addresses": guarded.http_address if by == "http" else guarded.tcp_address}
    given = {**access, **changes, "deliveryMode": delivery}
    with pytest.raises(PySparkException) as found:
        save(frame(spark, 1), **where, **given, topic="out")
    said = [line for line in str(found.value).splitlines() if problem in line]
    assert said, str(found.value)
    assert "wr0ng" not in str(found.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"auth.secret": "wr0ng"}, "401 AUTH_FAILED; see option 'auth.secret'"),
        ({"tls.caFile": ""}, "see option 'tls.caFile'"),
        ({"tls.certFile": "", "tls.keyFile": ""}, "see options 'tls.certFile' and 'tls.keyFile'"),
    ],
)
def test_a_source_says_which_option_is_wrong(
    spark: SparkSession, guarded: Broker, access: dict[str, str], changes: dict[str, str], problem: str
) -> None:
    given = {**reading(access), **changes, "nsqd.http.addresses": guarded.http_address, "subscribe": "in"}
    with pytest.raises(PySparkException) as found:
        spark.read.format("nsq").options(**given).load().collect()
    assert any(problem in line for line in str(found.value).splitlines()), str(found.value)
    assert "wr0ng" not in str(found.value)
