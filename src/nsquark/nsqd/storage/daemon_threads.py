"""Threads for work that may never end. The process does not wait for them when it ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar
from weakref import WeakSet

_T = TypeVar("_T")
_Work = tuple[Future[Any], Callable[[], Any]]
_begun: WeakSet[threading.Thread] = WeakSet()


def are_left() -> bool:
    """Whether any of these threads has not ended: libraries may have the process wait for what it does."""
    return any(each.is_alive() for each in _begun)


class DaemonThreads(Executor):
    """Runs work in at most so many threads, which begin when they are needed."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, work: Callable[..., _T], /, *args: Any, **named: Any) -> Future[_T]:
        """Raises RuntimeError after `shutdown`."""
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("no more work is taken")
            self._busy += 1
            self._work.put((future, lambda: work(*args, **named)))
            if self._threads < min(self._busy, self._most):
                self._threads += 1
                name = f"{self._name}_{self._threads}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                _begun.add(thread)
                thread.start()
        return future

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            try:
                if future.set_running_or_notify_cancel():
                    try:
                        result = work()
                    except BaseException as error:
                        future.set_exception(error)
                    else:
                        future.set_result(result)
            finally:
                with self._lock:
                    self._busy -= 1
            del item, future, work

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and begin none that waits. What is under way goes on."""
        with self._lock:
            self._closed = True
        while True:
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        for _ in range(self._threads):
            self._work.put(None)
