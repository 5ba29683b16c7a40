# ruff: noqa: RUF009 - `flag` makes a dataclasses.field
import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsquark.cli.flags import (
    BOOL,
    DURATION,
    FLOAT,
    FLOATS,
    INT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    CommandLine,
    FlagError,
    FlagSet,
    HelpRequested,
    StartError,
    ValueRefused,
    flag,
    report,
)
from nsquark.errors import NsquarkError
from nsquark.nsqd import options as nsqd_options

NOW = 1714557600.25


@dataclasses.dataclass(slots=True)
class Options:
    version: bool = flag(BOOL, False, "print version string", key=None)
    config: str = flag(STRING, "", "path to config file", key=None)
    log_level: str = flag(LOG_LEVEL, "info", "how much to say")
    name: str = flag(STRING, "joe", "whose")
    title: str = flag(STRING, "", "what before")
    max_size: int = flag(INT, 10, "how large", go_name="MaximumSize")
    n: int = flag(INT, 0, "how many")
    v: bool = flag(BOOL, False, "how loud")
    ratio: float = flag(FLOAT, 0.5, "how much of it")
    http_timeout: float = flag(DURATION, 1.5, "how long")
    open: bool = flag(BOOL, True, "whether at all")
    address: list[str] = flag(STRINGS, list, "where to", key="addresses")
    percentile: list[float] = flag(FLOATS, list, "which of them")
    host: str = flag(STRING, lambda: "here", "where from")
    old: bool = flag(BOOL, False, "deprecated: has no effect", key=None, deprecated="leave it out")
    # Not a flag.
    found: int = 7


FLAGS = FlagSet("prog", Options, renamed={"maximum": "max-size", "addr": "address"})

USAGE = """\
Usage of prog:
  -addr value
    \tdeprecated: use --address
  -address value
    \twhere to
  -config string
    \tpath to config file
  -host string
    \twhere from (default "here")
  -http-timeout duration
    \thow long (default 1.5s)
  -log-level value
    \thow much to say (default info)
  -max-size int
    \thow large (default 10)
  -maximum int
    \tdeprecated: use --max-size
  -n int
    \thow many
  -name string
    \twhose (default "joe")
  -old
    \tdeprecated: has no effect
  -open
    \twhether at all (default true)
  -percentile value
    \twhich of them
  -ratio float
    \thow much of it (default 0.5)
  -title string
    \twhat before
  -v\thow loud
  -version
    \tprint version string
"""


def parse(*argv: str) -> CommandLine:
    return FLAGS.parse(argv)


def load(*argv: str) -> Options:
    return FLAGS.build(FLAGS.parse(argv))


def refusal(*argv: str) -> str:
    with pytest.raises(StartError) as caught:
        load(*argv)
    return str(caught.value)


WithConfig = Callable[..., list[str]]


@pytest.fixture
def config(tmp_path: Path) -> WithConfig:
    """A command line with a config file of this text, and the given flags."""

    def with_config(text: str | bytes, *argv: str) -> list[str]:
        path = tmp_path / "prog.cfg"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return [f"--config={path}", *argv]

    return with_config


# The syntax.


def test_without_flags_every_option_has_its_default() -> None:
    options = load()
    assert dataclasses.asdict(options) == {
        "version": False,
        "config": "",
        "log_level": "info",
        "name": "joe",
        "title": "",
        "max_size": 10,
        "n": 0,
        "v": False,
        "ratio": 0.5,
        "http_timeout": 1.5,
        "open": True,
        "address": [],
        "percentile": [],
        "host": "here",
        "old": False,
        "found": 7,
    }


def test_two_loads_share_no_list() -> None:
    load().address.append("x")
    assert load().address == []


@pytest.mark.parametrize(
    "argv", [["-max-size=5"], ["--max-size=5"], ["-max-size", "5"], ["--max-size", "5"]], ids=" ".join
)
def test_one_dash_or_two_and_equals_or_a_word_are_the_same(argv: list[str]) -> None:
    assert load(*argv).max_size == 5


def test_a_value_may_hold_equals_signs_begin_with_a_dash_or_be_empty() -> None:
    assert load("--name=a=b").name == "a=b"
    assert load("--name", "--v").name == "--v"
    assert load("--name=").name == ""
    assert load("--name", "").name == ""


def test_the_last_of_a_repeated_scalar_wins_and_lists_accumulate() -> None:
    options = load("--name=a", "--address=x", "--name=b", "--address", "y,z", "--address=")
    assert options.name == "b"
    assert options.address == ["x", "y,z", ""]


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_words_for_true(word: str) -> None:
    assert load(f"--v={word}").v is True


@pytest.mark.parametrize("word", ["0", "f", "F", "FALSE", "false", "False"])
def test_words_for_false(word: str) -> None:
    assert load(f"--open={word}").open is False


def test_a_boolean_takes_no_separate_word() -> None:
    line = parse("--v", "false", "--name=x")
    assert line.values == {"v": True}
    assert line.rest == ["false", "--name=x"]


@pytest.mark.parametrize(
    ("argv", "rest"),
    [
        (["--v", "word", "--unknown"], ["word", "--unknown"]),
        (["--v", "--", "--unknown"], ["--unknown"]),
        (["--v", "-", "--unknown"], ["-", "--unknown"]),
        (["--v", "", "--unknown"], ["", "--unknown"]),
        (["--v"], []),
    ],
)
def test_parsing_stops_at_the_first_word_that_is_no_flag(argv: list[str], rest: list[str]) -> None:
    line = parse(*argv)
    assert (line.values, line.rest) == ({"v": True}, rest)


def test_percentiles_accumulate_split_at_commas_and_come_sorted_downwards() -> None:
    assert load("--percentile=0.5,0.99", "--percentile=1,.9").percentile == [1.0, 0.99, 0.9, 0.5]


def test_durations_become_seconds() -> None:
    assert load("--http-timeout=1m30s").http_timeout == 90.0
    assert load("--http-timeout=-1ms").http_timeout == -0.001
    assert load("--http-timeout=0").http_timeout == 0.0


def test_integers_may_be_written_in_any_base() -> None:
    assert [load(f"--n={text}").n for text in ("0x10", "010", "0b10", "1_0", "-3")] == [16, 8, 2, 10, -3]


def test_the_log_level_is_a_word_in_any_case() -> None:
    assert load("--log-level=WaRn").log_level == "warn"


# What is refused.


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--nope"], "flag provided but not defined: -nope"),
        (["-nope=5"], "flag provided but not defined: -nope"),
        (["--Name=x"], "flag provided but not defined: -Name"),
        (["--max_size=5"], "flag provided but not defined: -max_size"),
        (["--found=1"], "flag provided but not defined: -found"),
        (["---name=x"], "bad flag syntax: ---name=x"),
        (["-=x"], "bad flag syntax: -=x"),
        (["--=x"], "bad flag syntax: --=x"),
        (["--name"], "flag needs an argument: -name"),
        (["--v=yes"], 'invalid boolean value "yes" for -v: parse error'),
        (["--v="], 'invalid boolean value "" for -v: parse error'),
        (["--n=x"], 'invalid value "x" for flag -n: parse error'),
        (["--n="], 'invalid value "" for flag -n: parse error'),
        (["--n", 'a"\n'], 'invalid value "a\\"\\n" for flag -n: parse error'),
        (["--n=9223372036854775808"], 'invalid value "9223372036854775808" for flag -n: value out of range'),
        (["--ratio=x"], 'invalid value "x" for flag -ratio: parse error'),
        (["--ratio=1e999"], 'invalid value "1e999" for flag -ratio: value out of range'),
        (["--http-timeout=60"], 'invalid value "60" for flag -http-timeout: parse error'),
        (["--http-timeout=3000000h"], 'invalid value "3000000h" for flag -http-timeout: parse error'),
        (
            ["--log-level=loud"],
            'invalid value "loud" for flag -log-level: '
            "invalid log level 'loud' (debug, info, warn, error, fatal)",
        ),
        (["--maximum=x"], 'invalid value "x" for flag -maximum: parse error'),
    ],
)
def test_a_bad_command_line_is_refused_with_gos_text_and_the_usage(argv: list[str], text: str) -> None:
    with pytest.raises(FlagError) as caught:
        load(*argv)
    assert str(caught.value) == text
    assert caught.value.status == 2
    assert caught.value.for_stderr("[prog] ", NOW) == f"{text}\n{USAGE}"


@pytest.mark.parametrize("word", ["-h", "--h", "-help", "--help", "--help=me"])
def test_help_is_the_usage_alone_and_no_failure(word: str) -> None:
    with pytest.raises(HelpRequested) as caught:
        load("--v", word, "--nope")
    assert caught.value.status == 0
    assert caught.value.for_stderr("[prog] ", NOW) == USAGE


@pytest.mark.parametrize(
    ("text", "part"), [("x", "x"), ("0.5,y,z", "y"), ("", ""), ("0.5,", ""), ("1 ", "1 ")]
)
def test_a_percentile_that_is_no_number_ends_the_program_without_the_usage(text: str, part: str) -> None:
    with pytest.raises(ValueRefused) as caught:
        load(f"--percentile={text}")
    assert str(caught.value) == f"Could not parse: {part}"
    assert caught.value.status == 1


def test_all_refusals_are_ours() -> None:
    assert issubclass(StartError, NsquarkError)
    assert issubclass(FlagError, StartError)


# Old names.


def test_a_deprecated_flag_is_taken_with_one_warning() -> None:
    assert parse("--old", "--old=false").warnings == ["--old is deprecated: leave it out"]


def test_an_old_name_sets_the_new_option_with_a_warning() -> None:
    line = parse("--maximum=5")
    assert FLAGS.build(line).max_size == 5
    assert line.warnings == ["--maximum is deprecated: use --max-size"]


@pytest.mark.parametrize(
    "argv", [["--maximum=5", "--max-size=6"], ["--max-size=6", "--maximum=5"]], ids=" ".join
)
def test_the_new_name_beats_the_old_in_either_order(argv: list[str]) -> None:
    assert load(*argv).max_size == 6


def test_an_old_name_accumulates_too() -> None:
    assert load("--addr=a", "--addr=b").address == ["a", "b"]


# The config file.


def test_the_config_file_beats_the_default_and_the_command_line_beats_both(config: WithConfig) -> None:
    options = load(*config('name = "file"\nmax_size = 7\naddresses = ["f"]', "--name=line", "--address=l"))
    assert (options.name, options.max_size, options.address) == ("line", 7, ["l"])


def test_even_a_default_given_on_the_command_line_beats_the_file(config: WithConfig) -> None:
    assert load(*config("open = false", "--open")).open is True


def test_unknown_keys_flag_spellings_and_keyless_flags_in_the_file_are_ignored(config: WithConfig) -> None:
    text = '"max-size" = 1\naddress = ["x"]\nversion = true\nold = 5\nfound = 1\n[table]\nmax_size = 3\n'
    options = load(*config(text))
    assert (options.max_size, options.address, options.version, options.found) == (10, [], False, 7)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("max_size = 5", "max_size", 5),
        ('max_size = "5"', "max_size", 5),
        ('max_size = "-05"', "max_size", -5),
        ("max_size = 5.0", "max_size", 5),
        ("ratio = 2", "ratio", 2.0),
        ("ratio = 0.25", "ratio", 0.25),
        ('ratio = "0.25"', "ratio", 0.25),
        ('http_timeout = "1m"', "http_timeout", 60.0),
        ("http_timeout = 250", "http_timeout", 0.25),
        ("http_timeout = -250", "http_timeout", -0.25),
        ('addresses = ["a", "b,c"]', "address", ["a", "b,c"]),
        ('addresses = "a, b"', "address", ["a", "b"]),
        ('addresses = ""', "address", []),
        ("addresses = []", "address", []),
        ("open = false", "open", False),
        ('open = "false"', "open", False),
        ('v = "true"', "v", True),
        ("percentile = [0.5, 1.0, 0.9]", "percentile", [0.5, 1.0, 0.9]),
        ('percentile = "0.5, 1"', "percentile", [0.5, 1.0]),
        ('log_level = "DEBUG"', "log_level", "debug"),
        ('name = ""', "name", ""),
    ],
)
def test_the_file_is_read_generously(config: WithConfig, text: str, field: str, value: object) -> None:
    assert getattr(load(*config(text)), field) == value


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('max_size = "x"', 'x (10) for field MaximumSize - strconv.ParseInt: parsing "x": invalid syntax'),
        ("max_size = 5.5", "5.5 (10) for field MaximumSize - invalid value type float64"),
        ("max_size = inf", "+Inf (10) for field MaximumSize - invalid value type float64"),
        ("max_size = true", "true (10) for field MaximumSize - invalid value type bool"),
        (
            "max_size = 9223372036854775808",
            "9223372036854775808 (10) for field MaximumSize - "
            'strconv.ParseInt: parsing "9223372036854775808": value out of range',
        ),
        ("ratio = true", "true (0.5) for field Ratio - invalid value type bool"),
        ('http_timeout = "60"', '60 (1.5s) for field HTTPTimeout - time: missing unit in duration "60"'),
        ("http_timeout = 1.5", "1.5 (1.5s) for field HTTPTimeout - invalid value type float64"),
        ("http_timeout = true", "true (1.5s) for field HTTPTimeout - invalid value type bool"),
        ("addresses = 5", "5 ([]) for field Addresses - invalid value type int64"),
        ('addresses = ["a", 5]', "[a 5] ([]) for field Addresses - invalid value type int64"),
        ("open = 0", "0 (true) for field Open - invalid value type int64"),
        ('open = "yes"', 'yes (true) for field Open - strconv.ParseBool: parsing "yes": invalid syntax'),
        ("percentile = [1]", "[1] ([]) for field Percentile - invalid value type int64"),
        ("percentile = 0.5", "0.5 ([]) for field Percentile - invalid value type float64"),
        ("name = 5", "5 (joe) for field Name - invalid value type int64"),
        ("name = [1]", "[1] (joe) for field Name - invalid value type array"),
        ("name = {a = 1}", "map[a:1] (joe) for field Name - invalid value type table"),
        ("name = 1979-05-27", "1979-05-27 (joe) for field Name - invalid value type date"),
    ],
)
def test_a_value_of_the_wrong_type_in_the_file_is_refused(
    config: WithConfig, text: str, refused: str
) -> None:
    with pytest.raises(ValueRefused) as caught:
        load(*config(text))
    assert str(caught.value) == f"ERROR: Resolve failed to coerce value {refused}"
    assert caught.value.status == 1


def test_a_wrong_type_in_the_file_is_no_matter_if_the_command_line_has_the_option(config: WithConfig) -> None:
    assert load(*config("max_size = true", "--max-size=5")).max_size == 5


@pytest.mark.parametrize(("value", "shown"), [('"loud"', "loud"), ("5", "5"), ("true", "true"), ('""', "")])
def test_a_bad_log_level_in_the_file_is_refused_even_if_overridden(
    config: WithConfig, value: str, shown: str
) -> None:
    assert refusal(*config(f"log_level = {value}", "--log-level=info")) == f"failed parsing log_level {shown}"


def test_a_missing_config_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nope"
    assert (
        refusal(f"--config={path}")
        == f"failed to load config file {path} - open {path}: no such file or directory"
    )


def test_a_directory_as_config_file_is_refused(tmp_path: Path) -> None:
    expected = f"failed to load config file {tmp_path} - read {tmp_path}: is a directory"
    assert refusal(f"--config={tmp_path}") == expected


@pytest.mark.parametrize(
    "text", [b"= 5", b"name = ", b"name = \xff", b"a = " + b"[" * 100_000, b"a = 1\na = 2"]
)
def test_a_config_file_that_is_no_toml_is_refused_in_one_line(config: WithConfig, text: bytes) -> None:
    argv = config(text)
    with pytest.raises(StartError) as caught:
        load(*argv)
    path = argv[0].removeprefix("--config=")
    assert str(caught.value).startswith(f"failed to load config file {path} - ")
    shown = caught.value.for_stderr("[prog] ", NOW)
    assert shown.count("\n") == 1
    assert shown.endswith("\n")


def test_an_empty_config_path_is_none() -> None:
    assert load("--config=").name == "joe"


def test_whoever_asks_for_the_version_gets_it_whatever_the_file_says() -> None:
    assert load("--version", "--config=/does/not/exist").version is True


# Telling the user.


def test_a_fatal_error_is_a_log_line() -> None:
    shown = StartError("no good").for_stderr("[prog] ", NOW)
    assert shown.startswith("[prog] 2024/05/01 ")
    assert shown.endswith(".250000 FATAL: no good\n")


def test_a_refused_value_is_a_line_of_gos_log_package() -> None:
    shown = ValueRefused("Could not parse: x").for_stderr("[prog] ", NOW)
    assert shown.startswith("2024/05/01 ")
    assert shown.endswith(":00 Could not parse: x\n")


def test_report_writes_to_stderr_and_returns_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(FlagError("bad", "Usage of prog:\n"), "[prog] ") == 2
    assert report(HelpRequested("Usage of prog:\n"), "[prog] ") == 0
    captured = capsys.readouterr()
    assert captured.err == "bad\nUsage of prog:\nUsage of prog:\n"
    assert captured.out == ""


def test_report_without_a_stderr_still_returns_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert report(StartError("bad"), "[prog] ") == 1


def test_a_word_that_is_no_utf8_can_be_told() -> None:
    program = (
        "import sys; from nsquark.cli.flags import *; import dataclasses\n"
        "@dataclasses.dataclass\nclass O:\n  n: int = flag(INT, 0, 'how many')\n"
        "try: FlagSet('prog', O).parse(sys.argv[1:])\nexcept StartError as e: sys.exit(report(e, ''))"
    )
    done = subprocess.run([sys.executable, "-c", program, b"-n=\xff"], capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b'invalid value "\\xff" for flag -n: parse error\nUsage of prog:\n')


def test_reading_flags_imports_nothing_heavy() -> None:
    program = (
        "import sys, asyncio; before = set(sys.modules)\n"
        "from nsquark.nsqd import options; options.parse(['--msg-timeout=5s'])\n"
        "print(*(m for m in set(sys.modules) - before if not m.startswith('nsquark')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert not {"tomllib", "argparse", "decimal", "fractions", "json"} & set(done.stdout.split())


def test_an_unknown_key_is_told_with_the_nearest_known_one(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text('max_msg_sise = 5\nMax-Body-Size = 6\nbananas = 7\n[table]\nx = 1\nlog_level = "warn"\n')
    options = nsqd_options.parse([f"--config={path}"])
    assert options.warnings == [
        f"{path}: there is no key max_msg_sise: did you mean max_msg_size?",
        f"{path}: there is no key Max-Body-Size: did you mean max_body_size?",
        f"{path}: there is no key bananas: it has no effect",
        f"{path}: there is no key table: it has no effect",
    ]
    assert options.max_msg_size == 1 << 20
