from __future__ import annotations

import pytest

from nsquark.pipeline.replaying.pacing import OriginalTiming, Rate, Unpaced, choose_pace


def test_a_rate_spaces_messages_evenly() -> None:
    pace = Rate(10)
    assert [pace.due(0, 100.0) for _ in range(4)] == pytest.approx([100.0, 100.1, 100.2, 100.3])


def test_a_rate_does_not_make_up_for_a_long_halt() -> None:
    pace = Rate(10)
    pace.due(0, 100.0)
    assert pace.due(0, 160.0) == 160.0
    assert pace.due(0, 160.0) == pytest.approx(160.1)


def test_real_time_keeps_the_spacing_that_messages_had() -> None:
    pace = OriginalTiming(2)
    assert [pace.due(at, 100.0) for at in (50.0, 50.0, 52.0, 60.0)] == [100.0, 100.0, 101.0, 105.0]


def test_flags_choose_the_pace() -> None:
    assert isinstance(choose_pace(5, 0), Rate)
    assert isinstance(choose_pace(0, 1), OriginalTiming)
    assert isinstance(choose_pace(0, 0), Unpaced)
