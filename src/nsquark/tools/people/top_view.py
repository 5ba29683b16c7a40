"""What `nsquark top` shows: rows of topics and channels with rates, as many as fit. It does no I/O of its own
but to ask for the oldest message of the channels that are on the screen.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nsquark.version import VERSION

from .cluster.figures import ChannelFigures, TopicFigures, published
from .flags import quantities

_SORTS: Final = ("name", "depth", "rate")
_KEYS: Final = {b"\x1b[A": -1, b"k": -1, b"\x1b[B": 1, b"j": 1}
_PAGES: Final = {b"\x1b[5~": -1, b"\x1b[6~": 1, b" ": 1}
_CHROME: Final = 4  # lines that are no rows: title, head, a line, footer
_SMOOTHING: Final = 0.6  # how much of a rate is that of the last look


@dataclass(slots=True)
class Rates:
    into: float | None = None
    out: float | None = None


class TopView:
    def __init__(self, topic: str | None) -> None:
        self._topic = topic
        self._topics: dict[str, TopicFigures] = {}
        self._nsqds = 0
        self._looked_at = 0.0
        self._rates: dict[tuple[str, str], Rates] = {}
        self._oldest: dict[tuple[str, str], int] = {}  # when it was published, ns
        self._troubles: dict[str, None] = {}
        self._first_row = 0
        self._rows_shown = 10
        self._sort = 0

    # ---- what is told

    def take(self, topics: dict[str, TopicFigures], nsqds: int, now: float) -> None:
        """The figures of a look at a time of the monotonic clock."""
        elapsed = now - self._looked_at if self._topics or self._looked_at else 0.0
        rates: dict[tuple[str, str], Rates] = {}
        for topic in topics.values():
            before = self._topics.get(topic.name)
            known = self._rates.get((topic.name, ""), Rates())
            rates[topic.name, ""] = Rates(
                _rate(known.into, topic.messages, before.messages if before else None, elapsed)
            )
            for channel in topic.channels.values():
                earlier = before.channels.get(channel.name) if before else None
                known = self._rates.get((topic.name, channel.name), Rates())
                rates[topic.name, channel.name] = Rates(
                    _rate(known.into, channel.messages, earlier.messages if earlier else None, elapsed),
                    _rate(known.out, channel.finished, earlier.finished if earlier else None, elapsed),
                )
        self._topics, self._rates, self._nsqds, self._looked_at = topics, rates, nsqds, now

    def trouble(self, error: object) -> None:
        self._troubles[str(error)] = None

    def forget_troubles(self) -> None:
        self._troubles.clear()

    def key(self, keys: bytes) -> None:
        if b"s" in keys:
            self._sort = (self._sort + keys.count(b"s")) % len(_SORTS)
            self._first_row = 0
        for sequence, step in _KEYS.items():
            self._first_row += step * keys.count(sequence)
        for sequence, step in _PAGES.items():
            self._first_row += step * keys.count(sequence) * max(1, self._rows_shown - 1)
        if b"g" in keys or b"\x1b[H" in keys:
            self._first_row = 0

    async def ask_for_oldest(self) -> None:
        """Of the channels that are on the screen and have something unfinished."""
        shown = self._rows()[self._first_row : self._first_row + self._rows_shown]
        asked = [
            (topic, channel) for topic, channel in shown if channel is not None and channel.unfinished > 0
        ]
        found = await asyncio.gather(
            *(published(topic.nsqds, topic.name, channel.name) for topic, channel in asked)
        )
        self._oldest = {
            (topic.name, channel.name): since
            for (topic, channel), since in zip(asked, found, strict=True)
            if since is not None
        }

    # ---- what is shown

    def _rows(self) -> list[tuple[TopicFigures, ChannelFigures | None]]:
        """A topic and behind it its channels; sorted by the topic's name, its largest depth, or its rate."""
        topics = list(self._topics.values())
        if _SORTS[self._sort] == "depth":
            topics.sort(key=lambda topic: -max((topic.depth, *(c.depth for c in topic.channels.values()))))
        elif _SORTS[self._sort] == "rate":
            topics.sort(key=lambda topic: -(self._rates[topic.name, ""].into or 0.0))
        rows: list[tuple[TopicFigures, ChannelFigures | None]] = []
        for topic in topics:
            rows.append((topic, None))
            rows += [(topic, channel) for channel in topic.channels.values()]
        return rows

    def render(self, width: int, height: int) -> RenderableType:
        rows = self._rows()
        self._rows_shown = max(1, height - _CHROME - len(self._troubles))
        self._first_row = max(0, min(self._first_row, len(rows) - self._rows_shown))
        table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("topic / channel", no_wrap=True, overflow="ellipsis", ratio=1, min_width=12)
        # A narrow terminal has no room for what matters least.
        wide = width >= 70
        for name, columns in (("in/s", 6), ("out/s", 6), ("depth", 6), ("in flt", 6)):
            table.add_column(name, justify="right", width=columns, no_wrap=True)
        if wide:
            for name, columns in (("defer", 6), ("requ", 6), ("t/out", 6)):
                table.add_column(name, justify="right", width=columns, no_wrap=True)
        table.add_column("oldest", justify="right", width=6, no_wrap=True)
        for topic, channel in rows[self._first_row : self._first_row + self._rows_shown]:
            cells = (
                self._topic_cells(topic, wide)
                if channel is None
                else self._channel_cells(topic, channel, wide)
            )
            table.add_row(*cells)
        title = self._title()
        title.truncate(width, overflow="ellipsis")
        footer = self._footer(len(rows))
        footer.truncate(width, overflow="ellipsis")
        troubles = [Text(each, style="red", no_wrap=True, overflow="ellipsis") for each in self._troubles]
        fill = self._rows_shown - min(self._rows_shown, len(rows))
        return Group(title, Text(""), table, *[Text("")] * fill, *troubles, footer)

    def _topic_cells(self, topic: TopicFigures, wide: bool) -> list[Text]:
        rates = self._rates[topic.name, ""]
        name = Text(topic.name, style="bold")
        if topic.paused:
            name.append(" paused", style="yellow")
        cells = [name, _shown(rates.into), Text(""), _number(topic.depth, "cyan"), Text("")]
        return [*cells, *([Text("")] * 3 if wide else []), Text("")]

    def _channel_cells(self, topic: TopicFigures, channel: ChannelFigures, wide: bool) -> list[Text]:
        rates = self._rates[topic.name, channel.name]
        name = Text(f"  {channel.name}")
        if channel.paused:
            name.append(" paused", style="yellow")
        elif not channel.clients and channel.depth:
            name.append(" nobody", style="red")
        since = self._oldest.get((topic.name, channel.name))
        oldest = (
            Text(quantities.age(time.time() - since / 1e9)) if since is not None else Text("-", style="dim")
        )
        cells = [name, _shown(rates.into), _shown(rates.out), _number(channel.depth, "cyan")]
        cells.append(_number(channel.in_flight))
        if wide:
            cells += [_number(channel.deferred), _number(channel.requeued), _number(channel.timed_out, "red")]
        return [*cells, oldest if channel.unfinished else Text("-", style="dim")]

    def _title(self) -> Text:
        into = [rates.into for (_, channel), rates in self._rates.items() if not channel]
        out = [rates.out for (_, channel), rates in self._rates.items() if channel]
        channels = sum(len(topic.channels) for topic in self._topics.values())
        title = Text(f"nsquark {VERSION}  ", style="bold")
        title.append(f"{_many(self._nsqds, 'nsqd')}, {_many(len(self._topics), 'topic')}, ", style="default")
        title.append(f"{_many(channels, 'channel')}", style="default")
        if any(rate is not None for rate in into):
            title.append(f"   in {quantities.short(sum(rate or 0 for rate in into))}/s", style="green")
            title.append(f"   out {quantities.short(sum(rate or 0 for rate in out))}/s", style="green")
        return title

    def _footer(self, rows: int) -> Text:
        last = min(self._first_row + self._rows_shown, rows)
        where = f"rows {self._first_row + 1}-{last} of {rows}   " if rows > self._rows_shown else ""
        if not rows:
            where = "there are no topics   "
        return Text(f"{where}q quit   s sort (by {_SORTS[self._sort]})   ↑↓ scroll", style="dim")


def _rate(known: float | None, now: int, before: int | None, elapsed: float) -> float | None:
    """Messages a second since the look before, smoothed. A count that went back was begun again."""
    if before is None or elapsed <= 0:
        return None
    rate = max(0, now - before) / elapsed
    if known is None or rate == 0:
        return rate
    return _SMOOTHING * rate + (1 - _SMOOTHING) * known


def _shown(rate: float | None) -> Text:
    if rate is None:
        return Text("-", style="dim")
    return Text(quantities.short(rate), style="green" if rate else "dim")


def _number(number: int, style: str = "") -> Text:
    return Text(quantities.short(number), style=style if number else "dim")


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
