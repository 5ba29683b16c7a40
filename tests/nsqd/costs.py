"""What something costs, counted in calls instead of seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def calls(work: Callable[[], object]) -> int:
    """How many functions, Python's own included, are called by `work`.

    A walk over all of something that is large shows in it, for each item is at least looked at by one call.
    """
    count = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    collects = gc.isenabled()
    gc.disable()  # whose callbacks are calls, too
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count
