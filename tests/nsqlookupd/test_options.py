"""nsqlookupd's flags and config file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsquark.cli.flags import FlagError, HelpRequested, StartError, ValueRefused
from nsquark.nsqlookupd.options import FLAGS, Options, parse, validate

DEFAULTS: dict[str, object] = {
    "log_level": "info",
    "log_format": "text",
    "log_prefix": "[nsqlookupd] ",
    "tcp_address": "0.0.0.0:4160",
    "http_address": "0.0.0.0:4161",
    "broadcast_address": os.uname().nodename,
    "inactive_producer_timeout": 300.0,
    "tombstone_lifetime": 45.0,
    "max_registrations": 2_000_000,
    "max_registrations_per_producer": 200_000,
}


def test_the_defaults_are_nsqs() -> None:
    options = parse([])
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    assert FLAGS.keys.keys() == DEFAULTS.keys()
    assert not options.version
    assert not options.warnings
    validate(options)


def test_flags_have_gos_syntax() -> None:
    options = parse(
        [
            "-tcp-address",
            "127.0.0.1:0",
            "--http-address=[::1]:4161",
            "-broadcast-address=lookup1.example",
            "--inactive-producer-timeout=1m30s",
            "-tombstone-lifetime",
            "250ms",
            "--log-level=DEBUG",
            "--log-prefix=",
            "--verbose",
        ]
    )
    assert options.tcp_address == "127.0.0.1:0"
    assert options.http_address == "[::1]:4161"
    assert options.broadcast_address == "lookup1.example"
    assert (options.inactive_producer_timeout, options.tombstone_lifetime) == (90.0, 0.25)
    assert (options.log_level, options.log_prefix) == ("debug", "")
    assert len(options.warnings) == 1
    assert "verbose" in options.warnings[0]


def test_the_first_other_word_ends_the_flags() -> None:
    assert parse(["stray"]).warnings == ["ignored, since they are no flags: stray"]
    with pytest.raises(StartError, match='"stray" is no flag, and would hide what follows: --tombstone'):
        parse(["stray", "--tombstone-lifetime=1s"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--nope"], "flag provided but not defined: -nope"),
        (
            ["--tombstone-lifetime=5"],
            'invalid value "5" for flag -tombstone-lifetime: parse error',
        ),
        (
            ["--log-level=loud"],
            'invalid value "loud" for flag -log-level: '
            "invalid log level 'loud' (debug, info, warn, error, fatal)",
        ),
        (["--tcp-address"], "flag needs an argument: -tcp-address"),
    ],
)
def test_a_bad_flag_is_a_usage_error(arguments: list[str], text: str) -> None:
    with pytest.raises(FlagError) as caught:
        parse(arguments)
    assert str(caught.value) == text
    assert caught.value.status == 2
    assert caught.value.usage.startswith("Usage of nsqlookupd:\n")


def test_help_is_no_failure() -> None:
    with pytest.raises(HelpRequested) as caught:
        parse(["-help"])
    assert caught.value.status == 0


def from_file(tmp_path: Path, text: str, *flags: str) -> Options:
    path = tmp_path / "nsqlookupd.cfg"
    path.write_text(text)
    return parse([f"--config={path}", *flags])


def test_the_config_file(tmp_path: Path) -> None:
    options = from_file(
        tmp_path,
        """
        tcp_address = "127.0.0.1:1"
        http_address = "127.0.0.1:2"
        broadcast_address = "from.file"
        inactive_producer_timeout = "2m"
        tombstone_lifetime = 1500
        log_level = "warn"
        log-prefix = "ignored"
        unknown = 5
        """,
        "--http-address=127.0.0.1:3",
    )
    assert options.tcp_address == "127.0.0.1:1"
    assert options.http_address == "127.0.0.1:3"
    assert options.broadcast_address == "from.file"
    assert (options.inactive_producer_timeout, options.tombstone_lifetime) == (120.0, 1.5)
    assert (options.log_level, options.log_prefix) == ("warn", "[nsqlookupd] ")


@pytest.mark.parametrize("text", ["tombstone_lifetime = '5'", "tcp_address = 5"])
def test_a_value_that_does_not_fit_is_fatal(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueRefused, match=r"^ERROR: Resolve failed to coerce value 5"):
        from_file(tmp_path, text)


@pytest.mark.parametrize("text", ["log_level = 'loud'", "log_level = "])
def test_a_bad_file_is_fatal(tmp_path: Path, text: str) -> None:
    with pytest.raises(StartError) as caught:
        from_file(tmp_path, text)
    assert caught.value.status == 1


@pytest.mark.parametrize("flag", ["--max-registrations", "--max-registrations-per-producer"])
def test_a_directory_without_room_is_refused(flag: str) -> None:
    with pytest.raises(StartError, match=f"{flag} must be > 0, not 0"):
        validate(parse([f"{flag}=0"]))
