"""The topic that nsquark has already when messages of Go's nsqd are imported to it.

That is so where Go's nsqd has run on a data directory of nsquark. The import works on a copy of the topic,
which takes the topic's place when it is complete. Files that are not written to any more are shared.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from nsquark.durable import sync_path
from nsquark.log import ChannelState, Deferred, TopicLog, inspect_journal
from nsquark.log.opening import WITH_THE_SEGMENTS
from nsquark.nsqd.core.topic_journal import all_deferred

from .plan import TopicPlan


@dataclass(slots=True)
class KnownChannels:
    """The channels of a topic before an import."""

    epoch: int
    numbers: dict[str, int]
    channels: dict[str, ChannelState]
    deferred: list[Deferred]
    line: int | None  # where the topic's own queue begins; None if that is empty


def copy_topic(existing: Path, directory: Path) -> None:
    """Make `directory` anew, with the segments of the existing topic, if there is one. Raises OSError."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    entries = sorted(os.listdir(existing)) if existing.is_dir() else []
    segments = [each for each in entries if each.endswith(".log")]
    for entry in entries:
        if entry in segments[:-1] or entry.endswith(WITH_THE_SEGMENTS):
            try:
                os.link(existing / entry, directory / entry)
            except OSError:  # the file system has no links
                _copy(existing / entry, directory / entry)
    for entry in segments[-1:]:
        _copy(existing / entry, directory / entry)


def _copy(source: Path, target: Path) -> None:
    """Copy a file; the disk holds the copy when this returns. Raises OSError."""
    shutil.copyfile(source, target)
    os.chmod(target, 0o600)
    sync_path(target)


def read_channels(existing: Path, log: TopicLog, plan: TopicPlan) -> KnownChannels:
    """What the journal of the existing topic says, and the channels of the plan. Raises OSError."""
    state = inspect_journal(existing).state
    epoch = int.from_bytes(os.urandom(8), "big") if state.epoch is None else state.epoch
    # As a start of nsqd has it (`Topic.restore`): the journal's line counts where nothing was passed on.
    line = log.end
    if plan.paused or not state.channels:
        line = log.first if state.pumped is None else max(log.first, min(state.pumped, log.end))
    channels = dict(state.channels)
    for name in plan.channels:
        channels.setdefault(name, ChannelState(0, line))
    for each in channels.values():
        each.settle(log.end)
    return KnownChannels(
        epoch,
        {name: number for number, name in enumerate(channels)},
        channels,
        all_deferred(log, state.deferred, line),
        line if line < log.end else None,
    )
