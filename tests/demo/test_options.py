"""Which words of `make run ARGS="…"` are for the demo, and which for nsqd."""

from __future__ import annotations

import pytest

from nsquark.cli.flags import HelpRequested, StartError
from nsquark.demo.options import parse


def test_flags_that_are_not_its_own_go_to_nsqd() -> None:
    options, nsqd_flags = parse(
        ["--max-attempts=5", "--admin-http-address", "127.0.0.1:1", "-retention-time", "1h", "--data-path=x"]
    )
    assert (options.admin_http_address, options.data_path) == ("127.0.0.1:1", "x")
    assert nsqd_flags == ["--max-attempts=5", "-retention-time", "1h"]


def test_two_dashes_may_stand_between_them() -> None:
    options, nsqd_flags = parse(["--demo=false", "--", "--max-attempts=5"])
    assert not options.demo
    assert nsqd_flags == ["--max-attempts=5"]


def test_a_boolean_flag_takes_no_word_with_it() -> None:
    options, nsqd_flags = parse(["--demo", "word"])
    assert options.demo
    assert nsqd_flags == ["word"]


def test_a_flag_without_its_value_is_told() -> None:
    with pytest.raises(StartError, match="flag needs an argument: -data-path"):
        parse(["--data-path"])


def test_help_is_the_demos() -> None:
    with pytest.raises(HelpRequested):
        parse(["--max-attempts=5", "--help"])
