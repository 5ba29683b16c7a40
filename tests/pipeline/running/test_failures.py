from __future__ import annotations

from nsquark.pipeline.running.failures import one_line


def test_our_own_error_is_found_in_the_midst_and_named_by_its_flag() -> None:
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception: pages
Traceback (most recent call last):
  File "x.py", line 1, in y
nsquark.spark.errors.ChannelInUse: option 'channel': 'archive' is read by another query
\tat org.apache.spark.Something"""
    assert one_line(Exception(text)) == "--channel: 'archive' is read by another query"


def test_an_error_of_spark_is_its_first_line() -> None:
    error = Exception("\n[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found.\n'Project [*]\n")
    assert one_line(error) == "[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found."


def test_an_error_of_java_is_what_comes_after_its_method() -> None:
    text = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'locl'
\tat org.apache.spark.SparkContext"""
    assert one_line(Exception(text)) == "Could not parse Master URL: 'locl'"


def test_what_says_nothing_is_named() -> None:
    assert one_line(KeyError()) == "KeyError"
