"""Errors reach Spark without a traceback of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsquark.spark.errors import OptionError, RequestRefused, iterate_without_traceback, without_traceback


def fail() -> None:
    raise OptionError("topic", "missing")


def test_an_error_of_a_method_has_no_traceback() -> None:
    with pytest.raises(OptionError, match="option 'topic': missing") as caught:
        without_traceback(fail)()
    assert caught.traceback[-1].name == "wrapper"


def test_an_error_of_an_iterator_has_no_traceback() -> None:
    def items() -> Iterator[int]:
        yield 1
        fail()

    found = []
    with pytest.raises(OptionError) as caught:
        found.extend(iterate_without_traceback(items()))
    assert caught.traceback[-1].name == "iterate_without_traceback"


def test_other_errors_keep_their_traceback() -> None:
    def divide() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        without_traceback(divide)()
    assert caught.traceback[-1].name == "divide"


def test_a_refusal_for_want_of_a_secret_names_the_option() -> None:
    assert str(RequestRefused("http://h:1/x", 401, "AUTH_FAILED", {})).endswith("see option 'auth.secret'")
    assert str(RequestRefused("http://h:1/x", 404, "NOT_FOUND", {})) == "http://h:1/x: 404 NOT_FOUND"
