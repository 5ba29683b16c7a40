"""`nsqd.dat`: which topics and channels there are and which are paused, as NSQ writes it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsquark.errors import NsquarkError
from nsquark.log import Retention
from nsquark.names import is_ephemeral, is_valid_name
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic
from nsquark.version import NSQ_VERSION

logger = logging.getLogger(__name__)

FILE_NAME = "nsqd.dat"
RETENTION_KEYS = ("retention_bytes", "retention_time", "archive_bytes", "archive_time")
WORTH_SAVING = 60_000_000_000  # ns in which a channel has not been read


class BadMetadata(NsquarkError):
    """The file is there and cannot be understood: better not to start than to forget topics."""


@dataclass(slots=True)
class ChannelMetadata:
    paused: bool = False
    # The rest is ours; NSQ's nsqd passes it over.
    max_attempts: int | None = None
    hold_timeout: int | None = None  # ns
    idle_since: int | None = None  # seconds since the epoch


@dataclass(slots=True)
class TopicMetadata:
    paused: bool = False
    channels: dict[str, ChannelMetadata] = field(default_factory=dict)
    # The rest is ours; NSQ's nsqd passes it over.
    retention: Retention = field(default_factory=Retention)
    origin: int | None = 0  # the first position that the log ever had; None if only its folder is known


def pack(topics: Iterable[Topic]) -> bytes:
    """The file's content. What is ephemeral is left out."""
    known = {}
    for topic in topics:
        if not topic.ephemeral:
            channels = {each.name: _describe(each) for each in topic.channels.values() if not each.ephemeral}
            known[topic.name] = TopicMetadata(topic.paused, channels, topic.retention, topic.origin)
    return pack_known(known)


def _describe(channel: Channel) -> ChannelMetadata:
    readership, idle = channel.readership, channel.idle
    # A channel that is read does not tell when, as it would be wrong after a crash.
    readership.is_saved = idle >= WORTH_SAVING
    since = int(time.time() - idle / 1e9) if readership.is_saved else None
    return ChannelMetadata(channel.paused, channel.max_attempts, readership.hold_timeout, since)


def pack_known(known: Mapping[str, TopicMetadata]) -> bytes:
    """The file's content. No topics, or no channels, are null."""
    entries = []
    for name, topic in known.items():
        entry: dict[str, object] = {
            "name": name,
            "paused": topic.paused,
            "channels": [_pack_channel(*each) for each in topic.channels.items()] or None,
        }
        if topic.origin:
            entry["origin"] = topic.origin
        for key, value in zip(RETENTION_KEYS, topic.retention, strict=True):
            if value is not None:
                entry[key] = value
        entries.append(entry)
    document = {"topics": entries or None, "version": NSQ_VERSION}
    return json.dumps(document, separators=(",", ":")).encode()


def _pack_channel(name: str, channel: ChannelMetadata) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "paused": channel.paused}
    for key, value in (
        ("max_attempts", channel.max_attempts),
        ("hold_timeout", channel.hold_timeout),
        ("idle_since", channel.idle_since),
    ):
        if value is not None:
            entry[key] = value
    return entry


def load(path: Path) -> dict[str, TopicMetadata]:
    """The content of the file, by topic; empty if there is no file. Raises BadMetadata in NSQ's words."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadMetadata(f"failed to read metadata from {path} - {error.strerror}") from None
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("not an object")
        return {name: topic for name, topic in map(_parse_topic, document.get("topics") or []) if name}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadMetadata(f"failed to parse metadata in {path} - {error}") from None


def _parse_topic(entry: dict[str, Any]) -> tuple[str, TopicMetadata]:
    name = entry.get("name", "")
    if not is_valid_name(name):
        logger.warning("skipping creation of invalid topic %s", name)
        return "", TopicMetadata()
    topic = TopicMetadata(
        bool(entry.get("paused")),
        retention=Retention(*(_optional(entry, name) for name in RETENTION_KEYS)),
        origin=_optional(entry, "origin") or 0,
    )
    for channel in entry.get("channels") or []:
        if not is_valid_name(channel.get("name", "")):
            logger.warning("skipping creation of invalid channel %s", channel.get("name", ""))
        elif not is_ephemeral(channel["name"]):
            topic.channels[channel["name"]] = ChannelMetadata(
                bool(channel.get("paused")),
                *(_optional(channel, key) for key in ("max_attempts", "hold_timeout", "idle_since")),
            )
    return ("" if is_ephemeral(name) else name), topic


def _optional(entry: dict[str, Any], key: str) -> int | None:
    value = entry.get(key)
    return None if value is None else int(value)
