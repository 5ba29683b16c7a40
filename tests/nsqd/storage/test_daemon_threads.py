"""Threads that the end of the process does not wait for."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from nsquark.nsqd.storage.daemon_threads import DaemonThreads


def test_work_is_done_by_a_few_threads_and_errors_come_back() -> None:
    threads = DaemonThreads(2, "t")
    names = [threads.submit(lambda: threading.current_thread().name) for _ in range(20)]
    assert {each.result(20) for each in names} <= {"t_1", "t_2"}
    assert threads.submit(lambda number: number + 1, 4).result(20) == 5
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(20)
    threads.shutdown()


def test_a_thread_that_hangs_holds_up_neither_the_others_nor_the_end() -> None:
    threads = DaemonThreads(2, "t")
    never, begun = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        never.wait(60)

    hanging = threads.submit(hang)
    assert begun.acquire(timeout=20)
    assert threads.submit(lambda: 7).result(20) == 7
    second = threads.submit(hang)
    assert begun.acquire(timeout=20)
    waiting = threads.submit(lambda: 8)
    threads.shutdown()
    assert waiting.cancelled()
    assert not hanging.done()
    with pytest.raises(RuntimeError):
        threads.submit(lambda: 9)
    never.set()
    assert not wait([hanging, second], 20).not_done
