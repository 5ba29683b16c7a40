from __future__ import annotations

from nsquark.pipeline.running.quiet import without_noise

GONE = b"""Traceback (most recent call last):
  File "python_streaming_source_runner.py", line 265, in main
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "socket.py", line 724, in write
    return self._sock.send(b)
           ^^^^^^^^^^^^^^^^^^
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = b"""Traceback (most recent call last):
  File "worker.py", line 1, in main
ValueError: something else
"""


def passed(text: bytes) -> bytes:
    return b"".join(without_noise(text.splitlines(keepends=True)))


def test_workers_whose_spark_has_gone_are_not_heard() -> None:
    assert passed(b"before\n" + GONE + b"after\n") == b"before\nafter\n"


def test_any_other_traceback_is_passed_on() -> None:
    assert passed(GONE + OTHER + GONE) == OTHER
    assert passed(OTHER + b"\n\nmore\n") == OTHER + b"\n\nmore\n"


def test_what_is_said_at_every_start_is_left_out() -> None:
    assert (
        passed(b'WARNING: Using incubator modules: x\nSetting default log level to "WARN".\nmore\n')
        == b"more\n"
    )


def test_a_traceback_that_breaks_off_is_passed_on() -> None:
    assert (
        passed(b"Traceback (most recent call last):\n  File\n")
        == b"Traceback (most recent call last):\n  File\n"
    )
