"""What goes to stdout: bytes that may wait for their reader, tables, JSON. And bars, while a person waits.

A reader that goes away (`| head -1`) is ClosedPipe, which ends a command quietly. A reader that stands still
(`| less`) holds up the command and not its event loop, so that Ctrl-C and heartbeats are heard meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from rich.console import Console

# What a pipe that says it is writable takes without blocking.
_PIPE_BUF: Final = 4096
_LONGEST_NAP: Final = 0.02
_NARROWEST: Final = 8  # a column of a table, whatever the terminal


class ClosedPipe(BrokenPipeError):
    """The reader of our output has gone."""


class Output:
    """A descriptor to write to from an event loop, without making it non-blocking for other processes."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Raises ClosedPipe."""
        rest = memoryview(data)
        nap = 0.001
        while rest:
            ready = self._poll.poll(0)
            if not ready:
                await asyncio.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)
                continue
            nap = 0.001
            try:
                rest = rest[os.write(self._fd, rest[:_PIPE_BUF]) :]
            except BrokenPipeError:
                raise ClosedPipe from None

    async def closed(self) -> None:
        """Return when the reader has gone, also if there is nothing to write."""
        while True:
            events = self._poll.poll(0)
            if any(event & (select.POLLERR | select.POLLHUP) for _, event in events):
                return
            await asyncio.sleep(0.2)


async def while_read(work: Coroutine[Any, Any, None], output: Output) -> None:
    """Do some work until it is done, or until the reader of the output has gone: then raise ClosedPipe."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(output.closed())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClosedPipe
        working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def console(*, stderr: bool = False) -> Console:
    """Colours for a terminal only, and not where NO_COLOR is set."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, flexible: str = "") -> None:
    """A table: on a terminal as wide as that is, elsewhere as wide as it needs to be.

    A column whose name begins with `>` is aligned to the right. Only the column `flexible` (by default the
    first) gives way where the terminal is too narrow.
    """
    from rich.cells import cell_len

    names = [column.removeprefix(">") for column in columns]
    widths = [max(cell_len(row[at]) for row in (names, *rows)) for at in range(len(names))]
    if sys.stdout.isatty():
        _print_on_terminal(columns, names, rows, widths, names.index(flexible) if flexible else 0)
        return
    for row in (names, *rows):
        cells = (
            " " * (width - cell_len(cell)) + cell
            if column.startswith(">")
            else cell + " " * (width - cell_len(cell))
            for column, cell, width in zip(columns, row, widths, strict=True)
        )
        print("  ".join(cells).rstrip())
    sys.stdout.flush()


def _print_on_terminal(
    columns: Sequence[str],
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: list[int],
    flexible: int,
) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    too_wide = sum(widths) + 2 * (len(widths) - 1) - screen.width
    if too_wide > 0:
        widths[flexible] = max(_NARROWEST, widths[flexible] - too_wide)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column, name, width in zip(columns, names, widths, strict=True):
        right = column.startswith(">")
        table.add_column(name, justify="right" if right else "left", width=width, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    # A number that is cut is a wrong number: in a very narrow terminal lines wrap instead.
    screen.width = max(screen.width, sum(widths) + 2 * len(widths))
    screen.print(table, soft_wrap=True)


# ---- progress


class Progress(Protocol):
    def __call__(self, done: float, text: str = "") -> None: ...


def progress(what: str, total: float | None, shown: bool = True) -> AbstractContextManager[Progress]:
    """A bar on stderr while something takes its time, if that is a terminal. Without a total, a pulse."""
    if not shown or not sys.stderr.isatty():
        return nullcontext(_no_progress)
    return _Bar(what, total)


def _no_progress(done: float, text: str = "") -> None:
    pass


class _Bar:
    def __init__(self, what: str, total: float | None) -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            *([TimeRemainingColumn()] if total is not None else []),
            console=console(stderr=True),
            transient=True,
        )
        self._task = self._bars.add_task(what, total=total, text="")

    def __enter__(self) -> Progress:
        self._bars.start()
        return self._update

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _update(self, done: float, text: str = "") -> None:
        self._bars.update(self._task, completed=done, text=text)
