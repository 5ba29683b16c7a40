"""Publishers and consumers as processes, and the account of what they were promised and what they got."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from reliability.outcome import Outcome

LIBRARIES = ("nsquark", "pynsq")
PATIENCE = 60.0


class Worker:
    """A process of `worker.py`. `numbers` holds what it has told so far, `last` when it told something."""

    def __init__(self, library: str, role: str, *flags: str, prefix: tuple[str, ...] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "reliability.network.worker", library, role, *flags]
        self.library, self.role = library, role
        self.numbers: set[int] = set()
        self.last = 0.0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.numbers.add(int(line))
            self.last = time.monotonic()

    def end(self) -> int:
        """Close its stdin, and wait for its end: the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(PATIENCE)
        self._thread.join(PATIENCE)
        return status

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)


class Traffic:
    """A publisher and a consumer of each library, each pair with a topic of its own.

    `publishers` and `consumers` are the prefixes of their commands, which put them on a host.
    """

    def __init__(
        self,
        nsqd: str,
        lookupd: str = "",
        publishers: tuple[str, ...] = (),
        consumers: tuple[str, ...] = (),
        libraries: tuple[str, ...] = LIBRARIES,
    ) -> None:
        found = ["--lookupd", lookupd] if lookupd else ["--nsqd", nsqd]
        self.pairs: dict[str, tuple[Worker, Worker]] = {}
        for library in libraries:
            topic = ["--topic", f"of_{library}"]
            consumer = Worker(library, "consume", *topic, "--channel", "c", *found, prefix=consumers)
            publisher = Worker(library, "publish", *topic, "--nsqd", nsqd, prefix=publishers)
            self.pairs[library] = publisher, consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.kill()

    @property
    def workers(self) -> list[Worker]:
        return [worker for pair in self.pairs.values() for worker in pair]

    def flows(self, worker: int, more: int = 1) -> dict[str, float]:
        """Wait until each publisher (0) or consumer (1) has told `more` than now: seconds, by library.

        Raises TimeoutError.
        """
        wanted = {library: len(pair[worker].numbers) + more for library, pair in self.pairs.items()}
        begin = time.monotonic()
        took: dict[str, float] = {}

        def all_flow() -> bool:
            for library, count in wanted.items():
                if library not in took and len(self.pairs[library][worker].numbers) >= count:
                    took[library] = time.monotonic() - begin
            return len(took) == len(wanted)

        wait_for(all_flow, f"each {('publisher', 'consumer')[worker]} goes on")
        return took

    def settle(self, outcome: Outcome) -> None:
        """Stop publishing, wait for what is owed, and enter it: nothing that was answered may be missing."""
        for publisher, _ in self.pairs.values():
            outcome.demand(publisher.end() == 0, f"the publisher of {publisher.library} has failed")
        for library, (publisher, consumer) in self.pairs.items():
            deadline = time.monotonic() + PATIENCE
            while publisher.numbers - consumer.numbers and time.monotonic() < deadline:
                time.sleep(0.05)
            missing = publisher.numbers - consumer.numbers
            outcome.figures[library] = f"{len(publisher.numbers)} answered, {len(missing)} lost"
            outcome.demand(not missing, f"{library}: {len(missing)} answered publishes were lost")
            outcome.demand(bool(publisher.numbers), f"{library}: nothing was published")
            outcome.demand(consumer.process.poll() is None, f"the consumer of {library} has died")


def wait_for(condition: Callable[[], object], what: str, within: float = PATIENCE) -> float:
    """The seconds until `condition()`. Raises TimeoutError."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > within:
            raise TimeoutError(f"waited {within:g} s in vain: {what}")
        time.sleep(0.02)
    return time.monotonic() - begin
