"""A soak of five seconds, and whether it would notice what it is for."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from reliability.soak.plot import Chart, svg
from reliability.soak.run import Plan, draw, soak
from reliability.soak.trend import growth, slope

TIMES = [float(second) for second in range(100)]


async def test_five_seconds_with_a_restart_lose_nothing() -> None:
    outcome, samples = await soak(Plan(5.0, rate=100, restarts=1, sample_every=0.25))
    # Whether anything grows, a few seconds do not tell.
    assert not [fault for fault in outcome.faults if " grows: " not in fault], outcome.lines()
    assert len(samples.restarts) == 1
    assert samples.times
    drawn = ElementTree.fromstring(draw(outcome, samples))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 5


def test_a_leak_is_noticed_and_noise_is_not() -> None:
    leaking = [100.0 + second + (50.0 if second % 7 == 0 else 0.0) for second in range(100)]
    noisy = [100.0 + (80.0 if second % 7 == 0 else second % 3) for second in range(100)]
    assert slope(TIMES, leaking) == pytest.approx(1.0, abs=0.1)
    assert growth(TIMES, leaking) > 0.5
    assert abs(growth(TIMES, noisy)) < 0.05


def test_what_differs_at_the_beginning_only_is_flat() -> None:
    assert growth(TIMES, [float(min(second, 20)) + 100 for second in range(100)]) == 0.0


def test_a_chart_is_drawn_from_zero_to_its_most() -> None:
    drawn = svg("<title>", [Chart("a & b", "MiB", [0.0, 60.0], [10.0, 40.0])], [30.0])
    root = ElementTree.fromstring(drawn)
    (line,) = root.findall("{http://www.w3.org/2000/svg}polyline")
    # 0 … 50 MiB over 180 pixels, from the bottom at 220.
    assert line.get("points") == "80.0,184.0 980.0,76.0"
    assert len([each for each in root.iter() if each.get("stroke-dasharray")]) == 1
