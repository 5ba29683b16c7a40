"""Whatever Spark tells, nsqd takes the report."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsquark.nsqd.http.reports import MAX_REPORT, parse_report
from nsquark.spark.reports.document import describe_batch, describe_error, describe_query, pack_report

ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
PROGRESS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("timestamp", "batchId", "numInputRows", "inputRowsPerSecond", "processedRowsPerSecond"), ANYTHING
        ),
        "durationMs": st.none() | st.dictionaries(st.just("triggerExecution"), ANYTHING),
        "sink": st.none() | st.dictionaries(st.just("description"), ANYTHING),
    },
)


@given(PROGRESS, st.text(st.characters()), st.text(st.characters(), min_size=1), st.none() | st.text())
def test_nsqd_takes_whatever_spark_tells(
    progress: dict[str, object], name: str, error: str, ui: str | None
) -> None:
    report = describe_query("id", "run", name, ui) | describe_batch(progress)
    report |= {"state": "failed", "error": describe_error(error)}
    assert parse_report(pack_report(report))["query_id"] == "id"


def test_the_longest_report_is_not_too_long() -> None:
    wide = "\U0001f600" * 5000
    report = describe_query("id", "run", wide, None) | describe_batch({"sink": {"description": wide}})
    report |= {"state": "failed", "error": describe_error(wide)}
    assert len(pack_report(report)) <= MAX_REPORT
    assert parse_report(pack_report(report))["error"] == report["error"]


def test_the_fields_of_a_batch() -> None:
    progress = {
        "timestamp": "2026-11-18T01:18:10.760Z",
        "batchId": 3,
        "numInputRows": 10,
        "inputRowsPerSecond": 0.7,
        "processedRowsPerSecond": 45.66666,
        "durationMs": {"addBatch": 172, "triggerExecution": 218},
        "sink": {"description": "org.apache.spark.sql.execution.datasources.v2.python.PythonTable@1a2b3c4d"},
    }
    assert describe_batch(progress) == {
        "timestamp_ms": 1794964690760,
        "batch": 3,
        "rows": 10,
        "input_rate": 0.7,
        "processed_rate": 45.667,
        "batch_ms": 218,
        "sink": "PythonTable",
    }


def test_the_link_leads_to_this_run() -> None:
    described = describe_query("id", "run", None, "http://driver:4040/")
    assert described["ui_url"] == "http://driver:4040/StreamingQuery/statistics?id=run"
    assert describe_query("id", "run", None, None)["ui_url"] is None
    assert describe_query("id", "run", None, "javascript:alert(1)//")["ui_url"] is None
    assert describe_query("id", "run", None, "http://" + "x" * 500)["ui_url"] is None


def test_an_error_is_its_line_and_then_the_whole_text_as_far_as_there_is_room() -> None:
    text = "org.apache.Failed: x\nTraceback (most recent call last):\nValueError: no such thing\n\tat java\n"
    assert describe_error(text) == "no such thing\n\n" + text
    assert len(describe_error("x" * 5000)) == 2000
