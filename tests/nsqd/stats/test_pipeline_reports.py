"""The bounds of what is kept of pipelines: by number, by bytes and by age."""

from __future__ import annotations

from typing import Any

from nsquark.nsqd.stats import pipeline_reports
from nsquark.nsqd.stats.pipeline_reports import (
    MOST_BYTES,
    MOST_REPORTS,
    OLDEST,
    SUMMARY,
    ChannelReports,
    PipelineReports,
)

NOW = 1_794_794_323_494


def report(received_ms: int = NOW, error: str | None = None, **fields: object) -> dict[str, Any]:
    return {**dict.fromkeys(SUMMARY), "received_ms": received_ms, "error": error, **fields}


def kept(reports: PipelineReports, channel: str, now_ms: int = NOW) -> ChannelReports:
    found = reports.of("t", channel, now_ms)
    assert found is not None
    return found


def test_the_channel_that_was_silent_longest_goes_first_when_there_are_too_many_bytes() -> None:
    reports = PipelineReports()
    large = report(error="x" * 2000)
    count = 0
    while ("t", "first") in reports.channels() or not count:
        reports.add("t", "first" if not count else f"c{count}", large)
        count += 1
    assert reports.summary("t", "first") is None
    assert len(reports.channels()) == count - 1 > 1000
    sizes = sum(kept(reports, channel).size for _, channel in reports.channels())
    assert MOST_BYTES - 10_000 < sizes <= MOST_BYTES


def test_who_reports_stays() -> None:
    reports = PipelineReports()
    large = report(error="x" * 2000)
    for number in range(5000):
        reports.add("t", f"c{number}", large)
        reports.add("t", "busy", large)
    assert ("t", "busy") in reports.channels()
    assert len(kept(reports, "busy").texts(1000)) == MOST_REPORTS


def test_what_was_counted_is_given_back() -> None:
    reports = PipelineReports()
    for _ in range(3):
        for number in range(200):
            reports.add("t", "c", report(NOW + number, "wrong" if number % 7 == 0 else None))
        reports.add("t", "d", report())
        kept(reports, "c", NOW + OLDEST + 190)
        assert reports._size == sum(kept(reports, channel).size for channel in "cd")
        reports.forget("t", "c")
        reports.forget("t", "never")
        reports.forget("t", "d")
        assert reports._size == 0
        assert not reports


def test_what_is_too_old_is_not_told() -> None:
    reports = PipelineReports()
    reports.add("t", "c", report(NOW, "wrong"))
    reports.add("t", "c", report(NOW + 10))
    assert len(kept(reports, "c", NOW + OLDEST).texts(9)) == 2
    aged = kept(reports, "c", NOW + OLDEST + 1)
    assert len(aged.texts(9)) == 1
    assert aged.error is None
    reports.expire(NOW + OLDEST + 10)
    assert reports.channels() == [("t", "c")]
    reports.expire(NOW + OLDEST + 11)
    assert reports.channels() == []


def test_a_new_report_drives_out_channels_that_are_too_old() -> None:
    reports = PipelineReports()
    reports.add("t", "old", report(NOW))
    reports.add("t", "new", report(NOW + OLDEST + 1))
    assert reports.channels() == [("t", "new")]


def test_an_error_counts_as_long_as_it_is_kept() -> None:
    """However many errors there are, the text of one is kept besides the reports."""
    channel = pipeline_reports.ChannelReports()
    for number in range(1000):
        channel.add(report(error=f"wrong {number}"))
    assert channel.size < pipeline_reports.CHANNEL_OVERHEAD + (MOST_REPORTS + 1) * 500
