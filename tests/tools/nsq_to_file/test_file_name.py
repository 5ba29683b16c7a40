import os
import socket
import time
from pathlib import Path

import pytest

from nsquark.tools.nsq_to_file.file_name import FileNames, strftime, with_revision

DEFAULT = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
NOW = time.mktime((2026, 11, 8, 15, 4, 9, 0, 0, -1))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%Y-%m-%d_%H", "2026-11-08_15"),
        ("%y %b %B %a %A %I%p %M:%S", "26 Nov November Sun Sunday 03PM 04:09"),
        ("100%% %%Y", "100% %Y"),
        ("%j %e %Q %", "%j %e %Q %"),
        ("v1 2006 January Mon", "v1 2006 January Mon"),
    ],
)
def test_the_codes_of_nsq_are_dates_and_all_else_stays_as_written(form: str, text: str) -> None:
    assert strftime(form, NOW) == text


def test_the_zone_is_the_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "XYZ-3")
        time.tzset()
        assert strftime("%z %Z %H", 0) == "+0300 XYZ 03"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_tokens_are_replaced_everywhere() -> None:
    names = FileNames.of("<TOPIC>/<TOPIC>.<HOST>.<PID>", "", topic="clicks")
    short = socket.gethostname().partition(".")[0]
    assert names.current(NOW) == f"clicks/clicks.{short}.{os.getpid()}"


def test_a_host_identifier_has_tokens_too() -> None:
    names = FileNames.of("<HOST>", "", topic="t", host_identifier="<SHORT_HOST>-<HOSTNAME>-x")
    hostname = socket.gethostname()
    assert names.current(NOW) == f"{hostname.partition('.')[0]}-{hostname}-x"


def test_without_need_of_revisions_the_token_vanishes() -> None:
    names = FileNames.of(DEFAULT, "%Y", topic="t", host_identifier="h")
    assert names.current(NOW) == "t.h.2026.log"


def test_a_revision_has_six_digits_or_more() -> None:
    names = FileNames.of(DEFAULT, "%Y", topic="t", host_identifier="h", with_revisions=True)
    assert with_revision(names.current(NOW), 7) == "t.h-000007.2026.log"
    assert with_revision(names.current(NOW), 1234567) == "t.h-1234567.2026.log"


def test_the_extension_is_added_unless_it_is_there() -> None:
    assert FileNames.of("a.log", "", topic="t", extension=".gz").current(NOW) == "a.log.gz"
    assert FileNames.of("a.gz", "", topic="t", extension=".gz").current(NOW) == "a.gz"


def test_the_pattern_finds_the_files_of_other_dates_revisions_and_processes() -> None:
    names = FileNames.of(
        "<TOPIC>/<PID><REV>.<DATETIME>.log", "%Y", topic="t", host_identifier="h", with_revisions=True
    )
    found = names.pattern.fullmatch("t/1-000003.2019.log")
    assert found is not None
    assert found[1] == "-000003"
    for other in ("u/1-000003.2019.log", "t/1-03.2019.log", "t/x-000003.2019.log", "t/1-000003.2019.log.gz"):
        assert names.pattern.fullmatch(other) is None


@pytest.mark.parametrize(("form", "topic"), [("<TOPIC>/x", ".."), ("../x", "t"), ("", "t"), ("a/", "t")])
def test_a_name_that_no_file_below_the_directory_can_have_is_refused(form: str, topic: str) -> None:
    with pytest.raises(ValueError, match="no name for a file"):
        FileNames.of(form, "", topic=topic)


def test_an_absolute_format_stays_below_the_directory(tmp_path: Path) -> None:
    assert FileNames.of("/etc/x", "", topic="t").current(NOW) == "etc/x"


def test_the_pattern_crosses_directories_only_where_the_date_does() -> None:
    flat = FileNames.of("<DATETIME>.log", "%H", topic="t")
    deep = FileNames.of("<DATETIME>.log", "%Y/%H", topic="t")
    assert flat.pattern.fullmatch("12.log")
    assert not flat.pattern.fullmatch("2026/12.log")
    assert deep.pattern.fullmatch("2026/12.log")
