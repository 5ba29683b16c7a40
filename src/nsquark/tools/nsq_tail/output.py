"""Message bodies on stdout: one write for a run of messages, counted by topic."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from nsquark.kernel import Delivery

from ..command.stdout import StdoutWriter


class Output:
    """`limit` is how many messages of each topic are shown; 0 is all of them."""

    def __init__(self, print_topic: bool, limit: int) -> None:
        self.shown: Counter[str] = Counter()  # by topic
        self._print_topic = print_topic
        self._limit = max(0, limit)
        self._stdout = StdoutWriter()
        self._writing: asyncio.Task[None] | None = None

    def wanted(self, topic: str, most: int) -> int:
        """How many more messages of the topic to show, `most` of them at once; 0 when there were enough."""
        return min(most, self._limit - self.shown[topic]) if self._limit else most

    async def show(self, topic: str, messages: Sequence[Delivery]) -> None:
        """Return when the messages are written. Raises OSError."""
        prefix = self._prefix(topic)
        data = prefix + (b"\n" + prefix).join([each.body for each in messages]) + b"\n"
        await self._write(data, {topic: len(messages)})

    async def show_mixed(self, messages: Sequence[tuple[str, Delivery]]) -> None:
        """`show` for messages of several topics, each with its topic."""
        lines = [b"%b%b\n" % (self._prefix(topic), message.body) for topic, message in messages]
        await self._write(b"".join(lines), Counter(topic for topic, _ in messages))

    async def _write(self, data: bytes, counts: Mapping[str, int]) -> None:
        # A caller that is cancelled does not undo the write, and the messages count.
        self._writing = asyncio.create_task(self._write_and_count(data, counts))
        self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._writing)

    async def _write_and_count(self, data: bytes, counts: Mapping[str, int]) -> None:
        await self._stdout.write(data)
        self.shown.update(counts)

    async def last_written(self, within: float) -> None:
        """Return when the last write is over, or after so many seconds."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=within)

    def _prefix(self, topic: str) -> bytes:
        return f"{topic} | ".encode() if self._print_topic else b""

    def report(self) -> str:
        total = self.shown.total()
        return "1 message shown" if total == 1 else f"{total} messages shown"
