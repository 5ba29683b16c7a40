"""The live table on a terminal: a row for each nsqd, one for all of them, and the rates of late."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .counters import Counters, rates, total
from .polling import Round

_BARS: Final = "▁▂▃▄▅▆▇█"
_HISTORY: Final = 1000  # rounds
# Headings, their widths, and from which width of the terminal on a column is shown.
_COLUMNS: Final = (
    ("in/s", 6, 0),
    ("out/s", 6, 0),
    ("depth", 6, 0),
    ("disk", 6, 60),
    ("inflt", 5, 50),
    ("def", 5, 70),
    ("req", 6, 70),
    ("t-o", 6, 60),
    ("msgs", 6, 88),
    ("clients", 7, 78),
)


def short(number: int) -> str:
    """At most six characters, such as 12345, 123.4k or 12.35M."""
    if abs(number) < 100_000:
        return str(number)
    size, units = number / 1000, iter("kMGTPE")
    unit = next(units)
    while abs(size) >= 999.5:
        size, unit = size / 1000, next(units)
    return f"{size:.{1 if abs(size) >= 99.95 else 2}f}{unit}"


class StatTable:
    """What the terminal shows; `update` takes each round, and it is drawn to the width there is."""

    def __init__(self, topic: str, channel: str, interval: float) -> None:
        self._title = f"{topic}/{channel}"
        self._interval = interval
        self._round = Round()
        self._rates: dict[str, tuple[int, int]] = {}
        self._at: float | None = None  # of the last round, by the monotonic clock
        self._drawn_at = ""
        self._history: deque[tuple[int, int]] = deque(maxlen=_HISTORY)

    def update(self, polled: Round, now: float) -> None:
        """Rates are by the time that has passed, for nsqds that were there before."""
        if self._at is not None:
            old = self._round.nodes
            self._rates = {
                node: rates(old[node], counters, now - self._at)
                for node, counters in polled.nodes.items()
                if node in old
            }
            self._history.append(self._total_rates())
        self._round, self._at = polled, now
        self._drawn_at = time.strftime("%H:%M:%S")

    def _total_rates(self) -> tuple[int, int]:
        return sum(rate[0] for rate in self._rates.values()), sum(rate[1] for rate in self._rates.values())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield self._head(width)
        yield self._table(width)
        yield Group(*self._failures(), *self._sparklines(width))

    def _head(self, width: int) -> Text:
        every = f"every {self._interval:g} s  {self._drawn_at}"
        head = Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")
        head.truncate(max(1, width - len(every) - 2), overflow="ellipsis", pad=True)
        return head.append(f"  {every}", style="dim")

    def _table(self, width: int) -> Table:
        table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, width=width, header_style="dim")
        table.add_column("nsqd", ratio=1, no_wrap=True, overflow="ellipsis")
        for heading, wide, least in _COLUMNS:
            if width >= least:
                table.add_column(heading, justify="right", no_wrap=True, min_width=wide)
        if len(self._round.nodes) != 1:  # above the nsqds, which may be more than the terminal has lines
            all_rates = self._total_rates() if self._rates else None
            counters = total(self._round.nodes.values())
            table.add_row(*self._cells("total", counters, all_rates, width), style="bold")
        for node, counters in self._round.nodes.items():
            known = self._rates.get(node)
            table.add_row(*self._cells(node, counters, known, width), style="dim" if known is None else "")
        return table

    def _cells(self, name: str, of: Counters, rate: tuple[int, int] | None, width: int) -> list[str]:
        ingress, egress = ("-", "-") if rate is None else (short(rate[0]), short(rate[1]))
        numbers = (
            of.depth, of.backend_depth, of.in_flight, of.deferred,
            of.requeued, of.timed_out, of.messages, of.clients,
        )  # fmt: skip
        cells = [ingress, egress, *map(short, numbers)]
        return [name, *(cell for cell, (_, _, least) in zip(cells, _COLUMNS, strict=True) if width >= least)]

    def _failures(self) -> list[Text]:
        return [
            Text(text, style="red", no_wrap=True, overflow="ellipsis") for text in self._round.failed.values()
        ]

    def _sparklines(self, width: int) -> list[Text]:
        lines = [Text()]
        for name, index in (("in ", 0), ("out", 1)):
            history = [max(0, rate[index]) for rate in self._history]
            peak = max(history, default=0)
            tail = f" {short(peak)}/s at most"
            room = max(1, width - len(name) - len(tail) - 1)
            bars = "".join(_BARS[value * len(_BARS) // (peak + 1)] for value in history[-room:])
            lines.append(Text.assemble((f"{name} ", "dim"), (bars, "cyan"), (tail, "dim"), no_wrap=True))
        return lines


class Screen:
    """The terminal's other screen while the program runs; the last table stays behind on the usual one."""

    def __init__(self, table: StatTable) -> None:
        self._table = table
        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stderr=False)
        self._shown = False

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def draw(self) -> None:
        self._shown = True
        self._live.update(self._table, refresh=True)

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._shown:
            self._console.print(self._table)
