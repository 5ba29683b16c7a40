"""An archive in S3: with pyarrow's client, and a server that is not Amazon's.

It needs `moto_server`, which `pip install 'moto[server]'` brings. That is no part of the development set-up,
since it brings forty other packages.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from re import findall

import pytest

from nsquark.spark.source.archived_object import ArchivedObject, parse_object
from tests.daemon import until
from tests.log.contents import body_of, split_batches
from tests.nsqd.archive.archived import ArchivingNsqd, bodies, consumed
from tests.nsqd.replica.processes import free_port
from tests.nsqd.replica.processes import until as poll

COUNT = 200
SERVER = shutil.which("moto_server")

pytestmark = pytest.mark.skipif(SERVER is None, reason="there is no moto_server")


class Bucket:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"s3://bucket/nsq?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"

    def ask(self, method: str, path: str = "", body: bytes = b"") -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, "/bucket" + path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def speaks_s3(self) -> bool:
        """Whether an upload in parts ends with the answer that S3 gives: pyarrow looks at it."""
        (upload,) = findall(rb"<UploadId>([^<]*)<", self.ask("POST", "/try?uploads")[1])
        self.ask("PUT", f"/try?partNumber=1&uploadId={upload.decode()}", b"x")
        part = b"<Part><ETag>9dd4e461268c8034f5c8564e155c67a6</ETag><PartNumber>1</PartNumber></Part>"
        parts = b"<CompleteMultipartUpload>" + part + b"</CompleteMultipartUpload>"
        _, answer = self.ask("POST", f"/try?uploadId={upload.decode()}", parts)
        return b"<CompleteMultipartUploadResult" in answer

    def objects(self) -> list[str]:
        _, listed = self.ask("GET")
        return sorted(each.decode() for each in findall(rb"<Key>([^<]*\.log)</Key>", listed))


def is_created(bucket: Bucket) -> bool:
    try:
        return bucket.ask("PUT")[0] == 200
    except OSError:
        return False


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    port = free_port()
    assert SERVER is not None
    with open(tmp_path / "moto.log", "wb") as log:
        server = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    try:
        found = Bucket(port)
        poll(lambda: is_created(found))
        if not found.speaks_s3():
            pytest.skip("this moto_server does not end uploads as S3 does: 5.2.5 is known to")
        yield found
    finally:
        server.kill()
        server.wait()


async def test_segments_go_to_s3_come_back_and_are_deleted_there(tmp_path: Path, bucket: Bucket) -> None:
    with ArchivingNsqd(tmp_path).start(f"--archive-url={bucket.url}") as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.publish(COUNT)
        await nsqd.post("/channel/empty?topic=t&channel=c")
        await nsqd.emptied()
        objects = bucket.objects()
        assert len(objects) == len(nsqd.records()) >= 3
        assert all(each.startswith("nsq/") for each in objects)
        assert await nsqd.read_all(0, COUNT) == bodies(COUNT)
        await nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=10)
            assert await consumed(client, COUNT) == bodies(COUNT)
        assert await as_spark_reads_it(nsqd) == bodies(50)
        nsqd.kill()
        bucket.ask("DELETE", "/" + objects[0])
        nsqd.restart(f"--archive-url={bucket.url}")
        status, answer = await nsqd.http("GET", "/log/read?topic=t&from=0")
        assert (status, b"ARCHIVE_UNAVAILABLE" in answer) == (503, True)
        await nsqd.post("/topic/retention?topic=t&archive_bytes=1")
        await until(lambda: not bucket.objects() and not nsqd.records())
        assert (await nsqd.archive())["failure"] == ""
        status, answer = await nsqd.http("GET", "/log/read?topic=t&from=0")
        assert (status, b"POSITION_GONE" in answer) == (410, True)


async def as_spark_reads_it(nsqd: ArchivingNsqd) -> list[bytes]:
    """The first messages, as a task reads them that opens the archive itself."""
    status, answer = await nsqd.http("GET", "/log/read?topic=t&index=0&archive=1&from=0&to=50")
    assert status == 200
    _, _, part = parse_object(json.loads(answer), "")
    opened = ArchivedObject(part)
    try:
        data = bytearray(opened.unread)
        opened.read_into(memoryview(data))
    finally:
        opened.close()
    return [body_of(frame) for batch in split_batches(bytes(data)) for frame in batch.frames]
