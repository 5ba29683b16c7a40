"""The manners of a Python process of Spark that reads or writes a topic: what it collects, and how it ends.

A worker collects garbage after each task. It then looks at all objects of all modules that it has imported,
which takes longer than everything else that Spark does for a small task. Modules stay, so it need not look.

Spark closes the socket of a Python process that it no longer needs: when a query stops, when a session ends,
when a worker has been idle for a while. The process takes the end of its input for a failure, and tries to
report the failure to Spark over the closed socket. With Unix domain sockets this fails in turn, and the
process prints the traceback of a BrokenPipeError. Nothing has gone wrong, so the process must not print it.
"""

from __future__ import annotations

import gc
import sys
import traceback
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Final

_DAEMON: Final = "pyspark.daemon"  # whose children are the workers
_SOURCE_OF_A_QUERY: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def adapt_process() -> None:
    """If this is a process of Spark, spare it the collection of modules and the traceback at its end.

    Call it when all modules are imported.
    """
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", "")
    if name == _DAEMON and isinstance(main, ModuleType):
        gc.collect()  # garbage that is frozen would stay, too
        gc.freeze()
        # The daemon prints what ends a worker by `traceback.print_exc`, and then leaves the process.
        main.traceback = SimpleNamespace(print_exc=_print_exc, format_exc=traceback.format_exc)  # type: ignore[attr-defined]
    elif name == _SOURCE_OF_A_QUERY:
        sys.excepthook = _print_exception


def _print_exc() -> None:
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()


def _print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, ConnectionError):
        sys.__excepthook__(kind, error, trace)
