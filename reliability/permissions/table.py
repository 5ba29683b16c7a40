"""Tables of what happened when a client tried something."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

YES = "yes"


@dataclass(slots=True)
class Table:
    """A row for each thing that was tried, a column for each client that tried it."""

    title: str
    about: str
    columns: list[str]
    rows: dict[str, list[str]] = field(default_factory=dict)

    def column(self, name: str) -> dict[str, str]:
        at = self.columns.index(name)
        return {row: cells[at] for row, cells in self.rows.items()}

    @property
    def uniform(self) -> dict[str, str]:
        """The columns in which every row has the same answer, and the answer."""
        answers = {name: set(self.column(name).values()) for name in self.columns}
        return {name: next(iter(some)) for name, some in answers.items() if len(some) == 1}

    def markdown(self) -> str:
        parts = [f"## {self.title}\n\n{self.about}\n"]
        uniform = self.uniform
        if uniform:
            parts.append("\n| client | every one of them |\n|---|---|\n")
            parts += [f"| {name} | {_cell(answer)} |\n" for name, answer in uniform.items()]
        shown = [name for name in self.columns if name not in uniform]
        if not shown:
            parts.append("\n" + "".join(f"- `{row}`\n" for row in self.rows))
            return "".join(parts)
        parts.append(f"\n| | {' | '.join(shown)} |\n|---|{'---|' * len(shown)}\n")
        for row, cells in self.rows.items():
            told = [_cell(cell) for name, cell in zip(self.columns, cells, strict=True) if name in shown]
            parts.append(f"| `{row}` | {' | '.join(told)} |\n")
        return "".join(parts)

    def text(self) -> Iterator[str]:
        yield f"{self.title}\n"
        head = ["", *self.columns]
        lines = [head, *([row, *cells] for row, cells in self.rows.items())]
        widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
        for line in lines:
            told = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            yield f"{told.rstrip()}\n"
        yield "\n"


def _cell(answer: str) -> str:
    return answer if answer == YES or not answer else f"`{answer}`"
