"""The `nsquark` command: runs a subcommand, and turns its end into an exit status (see running.py)."""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

import click

from nsquark.errors import NsquarkError, UsageError

from .failures import Partial, on_one_line, say
from .program import program


def main() -> NoReturn:
    _open_what_is_closed()
    status = _status()
    # A reader that has gone would be noticed only when Python flushes at its end, with a traceback.
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _let_go_of_stdout()
    sys.exit(status)


def _open_what_is_closed() -> None:
    """Standard streams that a caller has closed lead nowhere, and text that a terminal cannot show is `?`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the whole process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _status() -> int:
    stdout = sys.stdout
    try:
        result = program.main(prog_name="nsquark", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:  # called wrongly
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return 130
    except BrokenPipeError:
        _let_go_of_stdout()
        return 0
    except SystemExit as error:
        # click's own way with a reader that has gone: it says 1, and puts something else for stdout.
        if sys.stdout is not stdout:
            _let_go_of_stdout()
            return 0
        return error.code if isinstance(error.code, int) else 0
    except Partial:
        return 1
    except UsageError as error:
        return _fail(error, 2)
    except (NsquarkError, OSError) as error:
        return _fail(error, 1)


def _fail(error: Exception, status: int) -> int:
    say(f"nsquark: {on_one_line(error) or type(error).__name__}")
    return status


def _let_go_of_stdout() -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)


if __name__ == "__main__":
    main()
