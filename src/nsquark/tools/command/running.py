"""How a utility runs and ends: the command line, the log on stderr, signals, exit codes.

| code | when |
|---|---|
| 0 | the normal end, `--help`, `--version`, SIGINT or SIGTERM |
| 1 | flags that do not fit each other, an error that ends the program |
| 2 | a command line that does not parse |
| 141 | the reader of stdout is gone, as a shell reports a process that SIGPIPE has ended |
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nsquark.cli import logs, process
from nsquark.cli.flags import CommandLine, FlagSet, StartError, ValueRefused, report
from nsquark.cli.log_forms import with_trace
from nsquark.errors import NsquarkError
from nsquark.version import NSQ_VERSION

OptionsT = TypeVar("OptionsT")
CLOSED_PIPE = 141
TOOLS_LOGGER = "nsquark.tools"
_LEVELS = {logging.DEBUG: "DBG", logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR"}


class ToolError(ValueRefused):
    """The utility cannot go on: one plain line on stderr, exit code 1."""


@dataclass(slots=True)
class Tool(Generic[OptionsT]):
    """One utility: its name, its flags, and what it does with them.

    `check` refuses options that do not fit each other, by ToolError. `run` is the program; it ends when its
    work is done or a signal says so. `set_up_logs` is for a utility whose log lines have their own form.
    `check_line` sees the command line before `--version` is answered.
    """

    name: str
    flags: FlagSet[OptionsT]
    check: Callable[[OptionsT], None]
    run: Callable[[OptionsT], Coroutine[Any, Any, None]]
    set_up_logs: Callable[[OptionsT], None] | None = None
    check_line: Callable[[CommandLine], None] | None = None

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the utility with `argv`, by default that of the process; returns the exit code."""
        try:
            options = self._parse(sys.argv[1:] if argv is None else argv)
            if options is not None:
                process.allow_many_files()
                (self.set_up_logs or set_up_logs)(options)
                process.run(self.run(options))
                _flush_stdout()
        except StartError as error:
            logs.flush()
            return report(error, "")
        except BrokenPipeError:
            _give_up_stdout()
            logs.flush()
            return CLOSED_PIPE
        except (NsquarkError, OSError) as error:
            logs.flush()
            return report(ToolError(str(error)), "")
        except KeyboardInterrupt:  # before the program could listen to signals
            return 0
        logs.flush()
        return 0

    def _parse(self, argv: Sequence[str]) -> OptionsT | None:
        """The checked options; None if the version was asked for, and is told."""
        line = self.flags.parse(argv)
        if self.check_line is not None:
            self.check_line(line)
        options = self.flags.build(line)
        if line.values.get("version"):
            print(f"{self.name} v{NSQ_VERSION}")
            _flush_stdout()
            return None
        line.check_rest()
        self.check(options)
        return options


def set_up_logs(options: object) -> None:
    """Log to stderr as NSQ's utilities do."""
    logs.set_up("", "info", form=format_record)


def format_record(prefix: str, record: logging.LogRecord, text: str, trace: Sequence[str]) -> str:
    """`YYYY/MM/DD HH:MM:SS text`; the lines of the client library have their level before the text."""
    if record.name.startswith(TOOLS_LOGGER):
        return with_trace(f"{prefix}{logs.timestamp(record.created)} {text}", trace)
    level = _LEVELS.get(record.levelno, record.levelname)
    return with_trace(f"{prefix}{logs.timestamp(record.created)} {level:<4} {text}", trace)


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _give_up_stdout() -> None:
    """Send what is still buffered nowhere: flushing it at the exit of Python would fail again."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.close(devnull)
