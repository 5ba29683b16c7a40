"""What every client is measured with: the words of its command line, and the loop it runs on.

Imported by the run_….py scripts, each in the Python that has its client.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import perf_counter, process_time

WINDOW = 1000  # messages that are published and unanswered at once, at most


@dataclass
class Workload:
    mode: str  # consume, publish or batches
    address: str
    topic: str
    count: int
    size: int
    batch: int
    max_in_flight: int

    @property
    def body(self) -> bytes:
        return b"x" * self.size

    def bodies(self) -> list[bytes]:
        return [self.body] * self.batch

    @property
    def publishes(self) -> int:
        """Of a message, or of a batch."""
        return self.count // self.batch

    @property
    def window(self) -> int:
        """How many publishes may be under way; then a client waits for the oldest before the next."""
        return max(WINDOW // self.batch, 1)


@dataclass
class Stopwatch:
    """The time, and the processor time of this process, since it was started."""

    started: float
    cpu: float

    @classmethod
    def start(cls) -> "Stopwatch":
        return cls(perf_counter(), process_time())

    def stop(self) -> tuple[float, float]:
        return perf_counter() - self.started, process_time() - self.cpu


def main(measure: Callable[[Workload], tuple[float, float]]) -> None:
    parser = argparse.ArgumentParser()
    for name, kind in Workload.__annotations__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, required=True)
    load = Workload(**vars(parser.parse_args()))
    seconds, cpu = measure(load)
    json.dump({"seconds": seconds, "cpu": cpu}, sys.stdout)


def run_loop(coroutine: Coroutine[object, object, tuple[float, float]]) -> tuple[float, float]:
    """Run on uvloop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)
