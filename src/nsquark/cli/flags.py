"""Command line and config file, as every NSQ program reads them: Go's `flag` syntax over flat TOML.

A program's options are one dataclass whose fields are made by `flag`; a `FlagSet` fills it in. The command
line beats the config file, which beats the default. What a program checks beyond that is its own business.

    @dataclass(slots=True)
    class Options:
        max_msg_size: int = flag(INT, 1048576, "maximum size of a single message in bytes")

    flags = FlagSet("nsqd", Options)
    options = flags.build(flags.parse(sys.argv[1:]))

Everything that can go wrong is a StartError, to be shown by `report`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from nsquark.errors import NsquarkError
from nsquark.gotext import format_os_error, format_value, quote

from .flag_kinds import (
    BOOL,
    DURATION,
    FLOAT,
    FLOATS,
    INT,
    LOG_FORMAT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    Kind,
    parse_log_level,
)
from .log_forms import FORMS, line_of, text_form, timestamp

__all__ = [
    "BOOL",
    "DURATION",
    "FLOAT",
    "FLOATS",
    "INT",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "STRING",
    "STRINGS",
    "CommandLine",
    "Flag",
    "FlagError",
    "FlagSet",
    "HelpRequested",
    "Kind",
    "StartError",
    "ValueRefused",
    "flag",
    "parse_log_level",
    "report",
]


class StartError(NsquarkError):
    """The program cannot start as it was told to: something on stderr, and exit status `status`."""

    status = 1

    def for_stderr(self, log_prefix: str, now: float) -> str:
        return line_of(text_form, log_prefix, logging.CRITICAL, str(self), now) + "\n"


class ValueRefused(StartError):
    """A value that does not fit its option. NSQ says so without prefix and level."""

    def for_stderr(self, log_prefix: str, now: float) -> str:
        return f"{timestamp(now)} {self}\n"


class FlagError(StartError):
    """A command line that does not parse; the usage is shown below the error."""

    status = 2

    def __init__(self, text: str, usage: str) -> None:
        super().__init__(text)
        self.usage = usage

    def for_stderr(self, log_prefix: str, now: float) -> str:
        return f"{self}\n{self.usage}"


class HelpRequested(FlagError):
    """`-h` or `-help`: the usage alone, and no failure."""

    status = 0

    def __init__(self, usage: str) -> None:
        super().__init__("help requested", usage)

    def for_stderr(self, log_prefix: str, now: float) -> str:
        return self.usage


def report(error: StartError, log_prefix: str, log_format: str = "text") -> int:
    """Tell the error on stderr, without the log's queue, and return the exit status.

    `log_format` is that of the log, once the command line has been read.
    """
    if log_format == "text":
        told = error.for_stderr(log_prefix, time.time())
    else:
        told = line_of(FORMS[log_format], log_prefix, logging.CRITICAL, str(error), time.time()) + "\n"
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # closed or broken: no reader is left
            sys.stderr.write(told)
            sys.stderr.flush()
    return error.status


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class Flag:
    """One field of an options dataclass, as it is on the command line and in the config file."""

    name: str
    field: str
    kind: Kind
    help: str
    # Called for the default, which may cost a system call.
    default: Callable[[], Any]
    # The key in the config file and under /config; None if it has none.
    key: str | None
    # The name of the field in Go's programs: one error text shows it.
    go_name: str
    # The advice for a deprecated flag; empty for any other.
    deprecated: str


def flag(
    kind: Kind, default: Any, help: str, *, key: str | None = "", go_name: str = "", deprecated: str = ""
) -> Any:
    """A field of an options dataclass, named as the flag with `_` for `-` (`from_` is `--from`).

    A callable default is called for the value. `key` is the key in the config file, unless it is the
    field's name; None keeps the flag out of the file. `deprecated` says what to do instead.
    """
    metadata = {"kind": kind, "help": help, "key": key, "go_name": go_name, "deprecated": deprecated}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _flag_of(field: dataclasses.Field[Any]) -> Flag:
    default = field.default_factory
    key = field.metadata["key"]
    if key == "":
        key = field.name
    return Flag(
        name=field.name.rstrip("_").replace("_", "-"),
        field=field.name,
        kind=field.metadata["kind"],
        help=field.metadata["help"],
        default=(lambda: field.default) if default is dataclasses.MISSING else default,
        key=key,
        go_name=field.metadata["go_name"] or _go_name(key or field.name),
        deprecated=field.metadata["deprecated"],
    )


def _go_name(key: str) -> str:
    initials = ("ca", "e2e", "http", "https", "id", "tcp", "tls", "udp", "url")
    return "".join(word.upper() if word in initials else word.capitalize() for word in key.split("_"))


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class CommandLine:
    """A parsed command line: values by field, warnings for the log, and the words after the flags."""

    values: dict[str, Any]
    warnings: list[str]
    rest: list[str]

    def check_rest(self) -> None:
        """Flags end at the first other word, as in NSQ. Warn of words to ignore; refuse to ignore flags.

        Raises StartError: a daemon that runs with half of its flags does harm.
        """
        ignored = [word for word in self.rest if word.startswith("-")]
        if ignored and not self.values.get("version"):
            raise StartError(
                f"{quote(self.rest[0])} is no flag, and would hide what follows: {' '.join(ignored)}"
            )
        if self.rest:
            _append_once(self.warnings, f"ignored, since they are no flags: {' '.join(self.rest)}")


OptionsT = TypeVar("OptionsT")


class FlagSet(Generic[OptionsT]):
    """The flags of one program."""

    def __init__(
        self,
        program: str,
        options: type[OptionsT],
        *,
        renamed: Mapping[str, str] | None = None,
        checked_first: Sequence[str] = ("log_level",),
    ) -> None:
        """`options` is a dataclass; `renamed` maps old flags to today's. The config keys `checked_first` are
        checked before all others, in this order, and even if the command line overrides them.
        """
        self.program = program
        self.options = options
        fields = dataclasses.fields(options)  # type: ignore[arg-type]  # a type says nothing of being a dataclass
        self.flags = {f.name: f for f in (_flag_of(field) for field in fields if "kind" in field.metadata)}
        self.keys = {f.key: f for f in self.flags.values() if f.key is not None}
        self.renamed = renamed or {}
        self._checked_first = checked_first

    def parse(self, argv: Sequence[str]) -> CommandLine:
        """Read flags up to the first word that is none, or `--`; `argv` comes without the program's name."""
        line = CommandLine({}, [], list(argv))
        renamed_values: dict[str, Any] = {}
        words = line.rest
        while words and len(words[0]) >= 2 and words[0][0] == "-":
            word = words.pop(0)
            if word == "--":
                break
            name, equals, text = word[2 if word[1] == "-" else 1 :].partition("=")
            if not name or name[0] == "-":
                raise self._error(f"bad flag syntax: {word}")
            values = renamed_values if name in self.renamed else line.values
            found = self.flags.get(self.renamed.get(name, name))
            if found is None:
                if name in ("h", "help"):
                    raise HelpRequested(self.usage())
                raise self._error(f"flag provided but not defined: -{name}")
            if not equals and found.kind.boolean:
                text = "true"
            elif not equals:
                if not words:
                    raise self._error(f"flag needs an argument: -{name}")
                text = words.pop(0)
            try:
                values[found.field] = found.kind.parse(text, values.get(found.field))
            except ValueError as error:
                raise self._bad_value(found.kind, name, text, str(error)) from None
            advice = f"use --{found.name}" if name in self.renamed else found.deprecated
            if advice:
                _append_once(line.warnings, f"--{name} is deprecated: {advice}")
        # With both names given, the new one counts.
        line.values = renamed_values | line.values
        return line

    def build(self, line: CommandLine) -> OptionsT:
        """The options, from this command line and the config file that it names."""
        # --version is answered even if the file is broken.
        path = line.values.get("config", "")
        config = {} if line.values.get("version") else read_config(path)
        self._warn_of_unknown_keys(path, config, line.warnings)
        for key in self._checked_first:
            if key in config:
                try:
                    self.keys[key].kind.coerce(config[key])
                except ValueError:
                    raise StartError(f"failed parsing {key} {format_value(config[key])}") from None
        values = {}
        for found in self.flags.values():
            if found.field in line.values:
                values[found.field] = line.values[found.field]
            elif found.key is not None and found.key in config:
                values[found.field] = self._coerce(found, config[found.key])
        return self.options(**values)

    def _warn_of_unknown_keys(self, path: str, config: Mapping[str, Any], warnings: list[str]) -> None:
        """A key that is misspelt would leave its option at the default, and no other sign."""
        unknown = [key for key in config if key not in self.keys]
        if unknown:
            import difflib

            for key in unknown:
                near = difflib.get_close_matches(key.lower().replace("-", "_"), self.keys, 1)
                hint = f"did you mean {near[0]}?" if near else "it has no effect"
                _append_once(warnings, f"{path}: there is no key {key}: {hint}")

    def _coerce(self, found: Flag, value: Any) -> Any:
        try:
            return found.kind.coerce(value)
        except ValueError as error:
            default = found.kind.shown(found.default())
            raise ValueRefused(
                f"ERROR: Resolve failed to coerce value {format_value(value)} ({default})"
                f" for field {found.go_name} - {error}"
            ) from None

    def usage(self) -> str:
        """The usage as Go prints it: sorted by name, each with its default unless that is empty or zero."""
        entries = {found.name: (found.kind, found.help, found.default()) for found in self.flags.values()}
        for old, new in self.renamed.items():
            kind = self.flags[new].kind
            entries[old] = (kind, f"deprecated: use --{new}", None)
        text = f"Usage of {self.program}:\n"
        for name, (kind, help_text, default) in sorted(entries.items()):
            text += f"  -{name} {kind.word}".rstrip()
            text += "\t" if len(name) == 1 and not kind.word else "\n    \t"
            text += help_text
            shown = kind.default_shown(default)
            text += f" (default {shown})\n" if shown else "\n"
        return text

    def _bad_value(self, kind: Kind, name: str, text: str, reason: str) -> StartError:
        if kind.refused_without_usage:
            return ValueRefused(reason)
        if kind.boolean:
            return self._error(f"invalid boolean value {quote(text)} for -{name}: {reason}")
        return self._error(f"invalid value {quote(text)} for flag -{name}: {reason}")

    def _error(self, text: str) -> FlagError:
        return FlagError(text, self.usage())


def read_config(path: str) -> dict[str, Any]:
    """The TOML file at `path`; no path, no settings. Raises StartError."""
    if not path:
        return {}
    import tomllib  # most starts have no config file, and this would slow them

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        operation = "read" if isinstance(error, IsADirectoryError) else "open"
        reason = f"{operation} {path}: {format_os_error(error)}"
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or brackets without end
        reason = str(error)
    raise StartError(f"failed to load config file {path} - {reason}")


def _append_once(warnings: list[str], warning: str) -> None:
    if warning not in warnings:
        warnings.append(warning)
