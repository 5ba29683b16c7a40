"""Line charts as SVG, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, GAP = 900, 180, 80, 50


@dataclass(slots=True)
class Chart:
    """One line over time, from zero up. `marks` are moments to be drawn as vertical lines."""

    title: str
    unit: str
    times: Sequence[float]  # seconds
    values: Sequence[float]


def svg(title: str, charts: Sequence[Chart], marks: Sequence[float] = ()) -> str:
    """The charts below each other, with a common time axis."""
    height = 40 + len(charts) * (HEIGHT + GAP)
    end = max((chart.times[-1] for chart in charts if chart.times), default=1.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + 20}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="16">{escape(title)}</text>',
    ]
    for number, chart in enumerate(charts):
        top = 40 + number * (HEIGHT + GAP)
        parts += _chart(chart, top, end, marks)
    return "\n".join([*parts, "</svg>", ""])


def _chart(chart: Chart, top: int, end: float, marks: Sequence[float]) -> list[str]:
    most = _round_up(max(chart.values, default=1.0))
    bottom = top + HEIGHT

    def x(moment: float) -> float:
        return LEFT + WIDTH * moment / end

    def y(value: float) -> float:
        return bottom - HEIGHT * value / most

    parts = [f'<text x="{LEFT}" y="{top - 4}">{escape(chart.title)}</text>']
    for step in range(5):
        value = most * step / 4
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">'
            f"{value:g} {escape(chart.unit)}</text>"
        )
    for step in range(6):
        moment = end * step / 5
        parts.append(
            f'<text x="{x(moment):.1f}" y="{bottom + 15}" text-anchor="middle">{moment / 60:.1f} min</text>'
        )
    for moment in marks:
        parts.append(
            f'<line x1="{x(moment):.1f}" x2="{x(moment):.1f}" y1="{top}" y2="{bottom}" stroke="#e0a000" '
            'stroke-dasharray="3 3"/>'
        )
    points = " ".join(
        f"{x(moment):.1f},{y(value):.1f}" for moment, value in zip(chart.times, chart.values, strict=True)
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="#3050c0" stroke-width="1.5"/>')
    return parts


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, …"""
    step = 1e-6
    while True:
        for factor in (1, 2, 5):
            if value <= step * factor:
                return step * factor
        step *= 10
