"""`nsqd.dat`: which topics and channels there are and which are paused, as NSQ writes it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsquark.errors import NsquarkError
from nsquark.names import is_ephemeral, is_valid_name
from nsquark.version import NSQ_VERSION

if TYPE_CHECKING:
    from nsquark.nsqd.core.channel import Channel
    from nsquark.nsqd.core.topic import Topic

logger = logging.getLogger(__name__)

FILE_NAME = "nsqd.dat"


class BadMetadata(NsquarkError):
    """The file is there and cannot be understood: better not to start than to forget topics."""


@dataclass(slots=True)
class ChannelMetadata:
    paused: bool = False
    max_attempts: int | None = None  # ours; NSQ's nsqd passes it over


@dataclass(slots=True)
class TopicMetadata:
    paused: bool = False
    channels: dict[str, ChannelMetadata] = field(default_factory=dict)


def pack(topics: Iterable[Topic]) -> bytes:
    """The file's content. What is ephemeral is left out; no topics, or no channels, are null."""
    entries = []
    for topic in topics:
        if topic.ephemeral:
            continue
        channels = [_pack_channel(each) for each in topic.channels.values() if not each.ephemeral]
        entries.append({"name": topic.name, "paused": topic.paused, "channels": channels or None})
    document = {"topics": entries or None, "version": NSQ_VERSION}
    return json.dumps(document, separators=(",", ":")).encode()


def _pack_channel(channel: Channel) -> dict[str, object]:
    entry: dict[str, object] = {"name": channel.name, "paused": channel.paused}
    if channel.max_attempts is not None:
        entry["max_attempts"] = channel.max_attempts
    return entry


def load(path: Path) -> dict[str, TopicMetadata]:
    """What the file says, by topic; nothing if there is none. Raises BadMetadata as NSQ words it."""
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
    except (ValueError, TypeError, AttributeError) as error:
        raise BadMetadata(f"failed to parse metadata in {path} - {error}") from None


def _parse_topic(entry: dict[str, Any]) -> tuple[str, TopicMetadata]:
    name = entry.get("name", "")
    if not is_valid_name(name):
        logger.warning("skipping creation of invalid topic %s", name)
        return "", TopicMetadata()
    topic = TopicMetadata(bool(entry.get("paused")))
    for channel in entry.get("channels") or []:
        if not is_valid_name(channel.get("name", "")):
            logger.warning("skipping creation of invalid channel %s", channel.get("name", ""))
        elif not is_ephemeral(channel["name"]):
            limit = channel.get("max_attempts")
            topic.channels[channel["name"]] = ChannelMetadata(
                bool(channel.get("paused")), None if limit is None else int(limit)
            )
    return ("" if is_ephemeral(name) else name), topic
