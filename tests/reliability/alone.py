"""Running a function in a process of its own, for functions that fork.

A fork has one thread. A lock that another thread of the test process holds would stay locked there for ever.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def alone(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What the function returns, or raises. Its arguments and its result are pickled."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **named).result()
