"""`nsqd.dat`: written as NSQ writes it, read as NSQ reads it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.log import Retention
from nsquark.names import is_ephemeral
from nsquark.nsqd.core.readership import Readership
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.storage import metadata, metadata_saving
from nsquark.nsqd.storage.metadata import FILE_NAME, BadMetadata, ChannelMetadata, TopicMetadata, load, pack
from nsquark.version import NSQ_VERSION
from tests.daemon import until
from tests.nsqd.api import running

SECOND = 1_000_000_000


@dataclass
class Entry:
    """A topic or a channel, as far as the metadata look at it."""

    name: str
    paused: bool = False
    channels: dict[str, Entry] = field(default_factory=dict)
    max_attempts: int | None = None
    retention: Retention = field(default_factory=Retention)
    origin: int = 0
    readership: Readership = field(default_factory=lambda: Readership(0))
    idle: int = 0

    @property
    def ephemeral(self) -> bool:
        return is_ephemeral(self.name)


def topic(name: str, *channels: Entry, paused: bool = False) -> Any:
    return cast(Any, Entry(name, paused, {channel.name: channel for channel in channels}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def test_the_file_is_written_as_nsq_writes_it() -> None:
    assert FILE_NAME == "nsqd.dat"
    assert NSQ_VERSION == "1.3.0"
    assert pack([]) == b'{"topics":null,"version":"1.3.0"}'
    assert pack([topic("t", Entry("ch"))]) == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"ch","paused":false}]}],"version":"1.3.0"}'
    )
    assert pack([topic("t", paused=True)]) == (
        b'{"topics":[{"name":"t","paused":true,"channels":null}],"version":"1.3.0"}'
    )


def test_what_is_ephemeral_is_left_out() -> None:
    topics = [topic("e#ephemeral", Entry("ch")), topic("t", Entry("c#ephemeral"), Entry("d", paused=True))]
    assert json.loads(pack(topics))["topics"] == [
        {"name": "t", "paused": False, "channels": [{"name": "d", "paused": True}]}
    ]
    assert json.loads(pack(topics[:1]))["topics"] is None
    assert json.loads(pack([topic("t", Entry("c#ephemeral"))]))["topics"][0]["channels"] is None


def test_what_is_ours_is_written_only_if_it_is_not_the_default() -> None:
    channel = Entry("ch", idle=59 * SECOND)
    entry = topic("t", channel)
    entry.retention, entry.origin = Retention(bytes=0), 7
    channel.readership.hold_timeout = 0
    assert json.loads(pack([entry]))["topics"] == [
        {
            "name": "t", "paused": False, "origin": 7, "retention_bytes": 0,
            "channels": [{"name": "ch", "paused": False, "hold_timeout": 0}],
        }
    ]  # fmt: skip
    assert not channel.readership.is_saved
    channel.idle = 3600 * SECOND
    before = int(time.time()) - 3600
    (told,) = json.loads(pack([entry]))["topics"][0]["channels"]
    assert before <= told["idle_since"] <= before + 60
    assert channel.readership.is_saved


NAMES = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)


LIMITS = st.none() | st.integers(0, 65535)
TIMES = st.none() | st.integers(0, (1 << 63) - 1)
CHANNELS = st.dictionaries(
    NAMES, st.builds(ChannelMetadata, st.booleans(), LIMITS, TIMES, st.none()), max_size=3
)


KEPT = st.none() | st.integers(-1, (1 << 63) - 1)
TOPICS = st.builds(
    TopicMetadata, st.booleans(), CHANNELS, st.builds(Retention, KEPT, KEPT), st.integers(0, (1 << 63) - 1)
)


@given(st.dictionaries(NAMES, TOPICS))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, topics: dict[str, TopicMetadata]
) -> None:
    path = tmp_path_factory.getbasetemp() / FILE_NAME
    entries = []
    for name, told in topics.items():
        channels = []
        for channel, each in told.channels.items():
            channels.append(Entry(channel, each.paused, max_attempts=each.max_attempts))
            channels[-1].readership.hold_timeout = each.hold_timeout
        entries.append(topic(name, *channels, paused=told.paused))
        entries[-1].retention, entries[-1].origin = told.retention, told.origin
        told.channels = {name: each for name, each in told.channels.items() if not is_ephemeral(name)}
    path.write_bytes(pack(entries))
    assert load(path) == {name: told for name, told in topics.items() if not is_ephemeral(name)}


def test_no_file_is_a_fresh_start(file: Path) -> None:
    assert load(file) == {}


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("{}", {}),
        ('{"topics":null}', {}),
        ('{"topics":[]}', {}),
        ('{"topics":[{"name":"t"}]}', {"t": TopicMetadata()}),
        ('{"topics":[{"name":"t","channels":null,"paused":true}]}', {"t": TopicMetadata(True)}),
        ('{"topics":[{"name":"t","channels":[]}]}', {"t": TopicMetadata()}),
        (
            ' {"version":"0.2.18","x":1,"topics":[{"y":2,"channels":[{"name":"c","z":[]}],"name":"t"}]}\n',
            {"t": TopicMetadata(False, {"c": ChannelMetadata()})},
        ),
        ('{"topics":[{"name":"."},{"name":".."}]}', {".": TopicMetadata(), "..": TopicMetadata()}),
        ('{"topics":[{"name":"t#ephemeral"}]}', {}),
    ],
)
def test_what_is_absent_null_or_unknown_is_fine(file: Path, text: str, topics: object) -> None:
    file.write_text(text)
    assert load(file) == topics


def test_invalid_names_are_skipped_with_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["", "a b", "a" * 65, "#ephemeral", "a\n", "é"]
    topics: list[object] = [{"name": name} for name in names]
    topics.append({"channels": [{"name": "c"}]})
    topics.append({"name": "t", "channels": [{"name": name} for name in names] + [{"name": "c"}, {}]})
    file.write_text(json.dumps({"topics": topics}))
    with caplog.at_level(logging.WARNING):
        assert load(file) == {"t": TopicMetadata(False, {"c": ChannelMetadata()})}
    assert "skipping creation of invalid topic a b" in caplog.text
    assert "skipping creation of invalid channel a b" in caplog.text
    assert len(caplog.records) == 2 * (len(names) + 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"{",
        b"[]",
        b"1",
        b'"x"',
        b'{"topics":[{"name":"t"}]',
        b'{"topics":[{"name":"t"}]}}',
        b'{"topics":5}',
        b'{"topics":{"a":1}}',
        b'{"topics":["t"]}',
        b'{"topics":[{"name":5}]}',
        b'{"topics":[{"name":"t","channels":5}]}',
        b'{"topics":[{"name":"t","channels":["c"]}]}',
        b'{"topics":[{"name":"t","channels":[{"name":7}]}]}',
        b'{"topics":[{"name":"t","origin":Infinity}]}',
        b'{"topics":' + b"[" * 100_000,
        b"\xff\xfe",
        b"\0" * 50,
    ],
)
def test_what_cannot_be_understood_stops_the_start(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(BadMetadata) as caught:
        load(file)
    assert str(caught.value).startswith(f"failed to parse metadata in {file} - ")


def test_what_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadMetadata) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"failed to read metadata from {tmp_path} - ")


async def test_topics_that_come_one_after_the_other_are_saved_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_saving, "SAVE_REST", 1e9)  # for ever, as the test sees it
    async with running(tmp_path) as api:
        broker = api.broker
        saves: list[int] = []
        real = metadata.pack

        def counted(topics: Iterable[Topic]) -> bytes:
            data = real(topics)
            saves.append(len(broker.topics))
            if len(saves) == 1:
                broker.topic("second")  # comes while the first is saved
            return data

        monkeypatch.setattr(metadata, "pack", counted)
        broker.topic("first")
        await until(lambda: len(saves) == 1 and broker.saving.idle)
        broker.topic("third")
        await asyncio.sleep(0)
        assert saves == [1]
        assert [*load(tmp_path / FILE_NAME)] == ["first"]
        await broker.save_metadata()  # a request that waits for it
        assert saves == [1, 3]
        assert [*load(tmp_path / FILE_NAME)] == ["first", "second", "third"]
    assert [*load(tmp_path / FILE_NAME)] == ["first", "second", "third"]
