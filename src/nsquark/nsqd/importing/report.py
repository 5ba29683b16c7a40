"""`--import=check`: what an import would do, found by reading everything that it would read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from nsquark.diskqueue import QueueFiles, QueueReader, Unreadable

from . import progress
from .plan import ImportPlan, make_plan
from .takeover import warnings_of


def report(data_path: Path, node_id: int, max_msg_size: int) -> Iterator[str]:
    """Lines for an operator. Nothing is changed. Raises DataRefused, BadMetadata and OSError."""
    state = progress.load(data_path)
    if state is not None and state.complete:
        what = f"moves {len(state.done)} topics to their place"
        yield f"{data_path}: an import is complete; the next start {what}"
        return
    plan = make_plan(data_path, node_id)
    if plan.empty:
        yield f"{data_path}: there is nothing of Go's nsqd to import"
        return
    if state is not None:
        how = "goes on with it" if state.fits(plan) else "begins anew, as files have changed"
        yield f"{data_path}: an import was interrupted; the next start {how}"
    for line in warnings_of(plan):
        yield f"note: {line}"
    yield from _read(plan, max_msg_size)


def _read(plan: ImportPlan, max_msg_size: int) -> Iterator[str]:
    total = size = 0
    for topic in plan.topics:
        for queue in topic.all_queues:
            what = f"channel {queue.channel}" if queue.channel is not None else "its own queue"
            count, bodies, problems = _count(queue, max_msg_size)
            yield f"topic {topic.name}, {what}: {count} messages with {bodies} bytes"
            yield from (f"  damaged: {each}" for each in problems)
            total, size = total + count, size + bodies
    yield (
        f"{plan.data_path}: --import=on takes over {total} messages with {size} bytes"
        f" of {len(plan.topics)} topics, and deletes {len(plan.originals)} files of Go's nsqd then"
    )


def _count(queue: QueueFiles, max_msg_size: int) -> tuple[int, int, list[str]]:
    """Messages, the bytes of their bodies, and what does not read."""
    problems: list[str] = []

    def tell(path: Path, found: Unreadable) -> None:
        how = "cut off by a crash" if found.torn else "no message"
        problems.append(f"{found.length} bytes at offset {found.offset} of {path.name}: {how}")

    count = size = 0
    with closing(QueueReader(queue, max_msg_size, tell)) as reader:
        while reader.head is not None:
            count, size = count + 1, size + len(reader.head.body)
            reader.advance()
    return count, size, problems
