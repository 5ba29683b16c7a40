"""A topic's journal: whether it reads, and whether what it says can be true of this log."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from nsquark.errors import UnknownVersion
from nsquark.log import (
    ChannelState,
    Damage,
    InspectedJournal,
    JournalState,
    inspect_journal,
    keep,
    records,
)

from .findings import Aside, ChannelSummary, Level, Report, TopicSummary
from .segments import LogContents


def check_journal(report: Report, summary: TopicSummary, log: LogContents, named: set[str] | None) -> None:
    """Check the journal against the log, and against the channels that nsqd.dat names (None: unknown).

    Raises OSError.
    """
    directory = summary.directory
    try:
        journal = inspect_journal(directory)
    except UnknownVersion as error:
        report.add(Level.ERROR, directory, str(error))
        return
    _check_files(report, directory, journal)
    if not journal.files or not journal.readable:
        if not journal.generations and log.end > log.first:
            text = "there is no journal: every message of the log is delivered again"
            report.add(Level.WARNING, directory, text)
        return
    path, state = journal.files[-1].path, journal.state
    for each in journal.files:
        report.bytes_read += each.path.stat().st_size
    if _is_foreign(report, path, state, log, named):
        return
    _check_positions(report, path, state, log)
    for name, channel in state.channels.items():
        channel.settle(log.end)
        summary.channels.append(_summarize(report, path, name, channel, log))
    for name in sorted((named or set()) - state.channels.keys()):
        text = f"does not know channel {name}, which nsqd.dat names: all that is in the log comes again there"
        report.add(Level.WARNING, path, text)


def _check_files(report: Report, directory: Path, journal: InspectedJournal) -> None:
    known = {(each.file, each.damage.offset, each.damage.length) for each in records(directory)}
    for file in journal.files:
        path = file.path
        if not file.whole:
            text = "its snapshot is damaged: the journal before it is used, or everything comes again"
            report.add(Level.ERROR, path, text, partial(_move, path))
            continue
        for damage in file.damages:
            text = f"{damage.length} bytes at offset {damage.offset} are damaged: some messages come again"
            if (path.name, damage.offset, damage.length) in known:
                report.add(Level.WARNING, path, text + "; the damage is kept aside already")
            else:
                report.add(Level.ERROR, path, text, partial(_keep, path, damage))
        if file.torn:
            text = f"a torn write: a start passes over {file.torn} bytes at the end"
            report.add(Level.WARNING, path, text)


def _move(path: Path, aside: Aside) -> str:
    return aside.move(path)


def _keep(path: Path, damage: Damage, aside: Aside) -> str:
    record, _ = keep(path, damage)
    return f"its bytes are in {record.path.name}"


def _is_foreign(
    report: Report, path: Path, state: JournalState, log: LogContents, named: set[str] | None
) -> bool:
    """Whether this is the journal of another log: then nothing that it says counts."""
    reason = _other_dues(state, log) or _other_channels(state, named)
    if reason:
        text = f"this is the journal of another log: {reason}"
        report.add(Level.ERROR, path, text, partial(_move, path))
    return bool(reason)


def _other_dues(state: JournalState, log: LogContents) -> str:
    """Due times are in the journal and in the log: where both know a message, they agree."""
    for position, due in _published_dues(state):
        if log.local_first <= position < log.end and position not in log.lost:
            known = log.deferred.due_of(position)
            if known != due:
                return f"it has position {position} due at {due} ns, and the log at {known} ns"
    return ""


def _published_dues(state: JournalState) -> Iterator[tuple[int, int]]:
    """(position, due) of messages that were published with a due time and not delivered yet."""
    for each in state.deferred:
        yield each.position, each.due
    for channel in state.channels.values():
        for position, (attempts, due) in channel.waiting.items():
            if due and not attempts:
                yield position, due


def _other_channels(state: JournalState, named: set[str] | None) -> str:
    if not named or not state.channels or named & state.channels.keys():
        return ""
    ours, theirs = ", ".join(sorted(named)), ", ".join(sorted(state.channels))
    return f"it has the channels {theirs}, and nsqd.dat has {ours}"


def _check_positions(report: Report, path: Path, state: JournalState, log: LogContents) -> None:
    """The journal is written behind the log, so it knows no position that the log does not have."""
    highest = state.pumped or 0
    for channel in state.channels.values():
        passed = [end for _, end in channel.passed]
        highest = max(highest, channel.position, *passed[-1:], *(each + 1 for each in channel.waiting))
    for each in state.deferred:
        highest = max(highest, each.position + each.count)
    if highest > log.end:
        text = (
            f"knows positions up to {highest - 1}, and the log ends before {log.end}: the newest segment is"
            " missing or was cut, a power cut has taken it, or this is the journal of another log"
        )
        report.add(Level.ERROR, path, text)
    if not state.channels and state.pumped is not None and state.pumped < log.first:
        text = (
            f"messages from position {state.pumped} on wait for a channel, and the log begins at {log.first}"
        )
        report.add(Level.ERROR, path, text + ": a segment is missing")


def _summarize(
    report: Report, path: Path, name: str, channel: ChannelState, log: LogContents
) -> ChannelSummary:
    """Count what a channel has not finished, and tell what of that the log does not have."""
    oldest = min([channel.position, *channel.waiting])
    missing = sum(1 for each in channel.waiting if each < log.first and each not in log.lost)
    if channel.position < log.first:
        missing += sum(end - start for start, end in channel.passed.gaps(channel.position, log.first))
    if missing:
        text = (
            f"channel {name} has not finished {missing} messages before position {log.first}, where the log"
            " begins: a segment is missing"
        )
        report.add(Level.ERROR, path, text)
    ahead = log.end - channel.position - channel.passed.count_from(channel.position)
    return ChannelSummary(name, max(0, ahead) + len(channel.waiting), oldest)
