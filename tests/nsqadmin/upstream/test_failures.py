"""What an answer says of daemons that failed."""

from __future__ import annotations

from nsquark.nsqadmin.upstream import Failure, Found, UpstreamError

LOOKUPD = Failure("nsqlookupd", "l:4161", "no connection")
FIRST, SECOND = Failure("nsqd", "a:4151", "got response 404", 404), Failure("nsqd", "b:4151", "late")


def test_nothing_is_said_when_nothing_failed() -> None:
    assert Found([]).message == ""


def test_stages_are_divided_by_semicolons_and_daemons_by_lines() -> None:
    assert Found([], [LOOKUPD, FIRST, SECOND]).message == (
        "WARNING: l:4161: no connection; a:4151: got response 404\nb:4151: late"
    )


def test_an_error_names_the_kind_of_daemon_and_every_failure() -> None:
    error = UpstreamError("nsqd", [FIRST, SECOND])
    assert str(error) == "failed to query any nsqd: a:4151: got response 404\nb:4151: late"
    assert not error.not_found
    assert UpstreamError("nsqd", [FIRST]).not_found
    assert UpstreamError("nsqd", []).not_found
