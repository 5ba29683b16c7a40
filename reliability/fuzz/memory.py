"""A transport that is memory, and an event loop of this module's own: connections without sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from .target import Wrong

_T = TypeVar("_T")
_loop: asyncio.AbstractEventLoop | None = None


class _NoSocket:
    """Stands for a socket where code asks for its descriptor, to write past the transport: there is none."""

    def fileno(self) -> int:
        return -1

    def setsockopt(self, *_: object) -> None:
        pass


class MemoryTransport(asyncio.Transport):
    """Keeps what is written. The test hands the protocol what is to be received."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.eof = self.closed = self.paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 4000), "socket": _NoSocket()}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.eof:
            raise Wrong(f"{bytes(data)!r} is written behind the end")
        if not self.closed:
            self.written += data

    def write_eof(self) -> None:
        self.eof = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_reading(self) -> bool:
        return not self.paused

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        raise Wrong("no layer is put between")


def run_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on one loop for all inputs. What the loop would only log is a fault."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
    faults: list[dict[str, Any]] = []
    _loop.set_exception_handler(lambda _, context: faults.append(context))
    result = _loop.run_until_complete(work)
    if faults:
        raise Wrong(f"the event loop was told of {faults[0]}") from faults[0].get("exception")
    return result


class LoggedErrors(logging.Handler):
    """Gathers what nsquark logs with an exception: it was caught, and yet it was not expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.records.append(record)

    def __enter__(self) -> LoggedErrors:
        logger = logging.getLogger("nsquark")
        logger.addHandler(self)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("nsquark").removeHandler(self)

    def check(self) -> None:
        """Raise the first exception that was logged."""
        for record in self.records:
            assert record.exc_info is not None
            raise Wrong(f"logged: {record.getMessage()}") from record.exc_info[1]
