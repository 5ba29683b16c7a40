"""The `nsqlookupd` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from nsquark.cli.daemon import run_daemon, serve_until_signal

from .options import Options, parse, validate
from .server import Server


def main() -> int:
    return run_daemon("nsqlookupd", parse, _prepare)


def _prepare(options: Options) -> Callable[[], Coroutine[Any, Any, bool]]:
    validate(options)
    return partial(serve_until_signal, partial(Server, options))


if __name__ == "__main__":
    sys.exit(main())
