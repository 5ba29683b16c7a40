"""Exactly once, whatever is killed: every message that nsqd has taken is in the Parquet files, and once.

A program reads a topic into files (driver.py) while messages are published and another channel is consumed.
It is killed at random, and so is nsqd. NSQUARK_SPARK_ROUNDS says how often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.daemon import Client, Closed
from tests.spark.broker import Broker

ROUNDS = int(os.environ.get("NSQUARK_SPARK_ROUNDS", "2"))
DRIVER = Path(__file__).with_name("driver.py")


class Publisher(threading.Thread):
    """Publishes each number once. A number without an answer may be in the log or not."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self._ended = threading.Event()
        self.answered: list[int] = []
        self.unanswered: list[int] = []

    def run(self) -> None:
        number = 0
        while not self._ended.wait(0.02):
            numbers = list(range(number, number + random.randint(1, 40)))
            number = numbers[-1] + 1
            try:
                self._broker.publish("t", [b"%d" % each for each in numbers])
                self.answered += numbers
            except OSError:
                self.unanswered += numbers
                self._ended.wait(0.1)

    def stop(self) -> None:
        self._ended.set()
        self.join()


class OrdinaryConsumer(threading.Thread):
    """An ordinary consumer of another channel of the topic."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._ended = False
        self.seen: set[int] = set()

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        while not self._ended:
            try:
                client = await Client.connect(self._broker.tcp_address)
                try:
                    await client.sub("t", "other", 100)
                    while not self._ended:
                        message = await client.message(0.5)
                        self.seen.add(int(message.body))
                        client.fin(message)
                finally:
                    client.abort()
            except (Closed, OSError, TimeoutError):
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._ended = True
        self.join()


class Driver:
    def __init__(self, addresses: str, folder: Path, what: str, program: Path = DRIVER) -> None:
        self._errors = (folder / "stderr").open("a")
        self.process = subprocess.Popen(
            [sys.executable, str(program), addresses, str(folder), what],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def wait_for_batches(self, number: int) -> bool:
        """Whether it came so far; it may have failed when nsqd was killed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("batch"):
                number -= 1
                if number <= 0:
                    return True
        return False

    def kill(self) -> None:
        """The program, its JVM and its Python workers, all at once."""
        family = [self.process.pid, *descendants(self.process.pid)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._errors.close()


def started(addresses: str, folder: Path, program: Path = DRIVER) -> Driver:
    """One that has done a batch. On a busy machine Spark may give up waiting for its own Python processes
    (ten seconds), so it may take more than one."""
    for _ in range(3):
        driver = Driver(addresses, folder, "run", program)
        if driver.wait_for_batches(1):
            return driver
        driver.kill()
    raise AssertionError((folder / "stderr").read_text())


def finish(addresses: str, folder: Path, program: Path = DRIVER) -> None:
    for _ in range(3):
        driver = Driver(addresses, folder, "finish", program)
        try:
            if driver.process.wait(100) == 0:
                return
        finally:
            driver.kill()
    raise AssertionError((folder / "stderr").read_text())


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_every_message_is_in_the_files_exactly_once(broker: Broker, tmp_path: Path) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    broker.ask("POST", "/channel/create?topic=t&channel=other")
    # Before anything is published: what the other channel has finished is kept for this one.
    broker.ask("POST", "/channel/create?topic=t&channel=archive")
    publisher, consumer = Publisher(broker), OrdinaryConsumer(broker)
    publisher.start()
    consumer.start()
    try:
        for number in range(ROUNDS):
            driver = started(broker.http_address, tmp_path)
            try:
                if number % 2 == 0:
                    broker.kill()
                    broker.restart()
                driver.wait_for_batches(random.randint(1, 4))
                time.sleep(random.random() * 0.5)  # somewhere in a batch
            finally:
                driver.kill()
    finally:
        publisher.stop()
    try:
        finish(broker.http_address, tmp_path)
    finally:
        consumer.stop()
    lines = (tmp_path / "values").read_text().split("\n")[:-1]
    rows = Counter(int(line.split()[0]) for line in lines)
    assert len(publisher.answered) > 500
    assert [each for each in publisher.answered if rows[each] != 1] == []
    assert max(rows.values()) == 1
    assert rows.keys() <= set(publisher.answered) | set(publisher.unanswered)
    assert len({line.split()[1] for line in lines}) == len(lines)
    assert broker.depth("t", "archive") == 0
    assert set(publisher.answered) <= consumer.seen  # the other channel has not lost anything either
