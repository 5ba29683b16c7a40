"""One blocking call per item, all at the same time, in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MAX_THREADS = 16

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def call_each(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """The results in the order of the items. If calls fail, raises the error of the first item that failed.

    Returns or raises when all calls have ended.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    # Each call gets threads of its own: `work` may come here again, and must not wait for its own thread.
    with ThreadPoolExecutor(min(MAX_THREADS, len(items)), "nsqd") as pool:
        return list(pool.map(work, items))


def try_each(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result | Exception]:
    """Like `call_each`, but an error stands in the list in place of the result."""

    def attempt(item: _Item) -> _Result | Exception:
        try:
            return work(item)
        except Exception as error:
            return error

    return call_each(attempt, items)
