"""The sink exactly once, whatever is killed: a topic is copied to another one, and the copy is exact.

The program (copy_driver.py) is killed at random with its JVM and its workers, single tasks die in the midst
of their rows, nsqd is killed and restarted. NSQUARK_SPARK_ROUNDS says how often.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.broker import Broker
from tests.spark.test_exactly_once import ROUNDS, Driver, Publisher

PROGRAM = Path(__file__).with_name("copy_driver.py")


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_every_message_is_copied_exactly_once(tmp_path: Path) -> None:
    # kept whatever has been read, so that the end can be compared with the beginning
    with Broker(tmp_path / "data", "--retention-time=1h").start() as broker:
        broker.ask("POST", "/topic/create?topic=t")
        broker.ask("POST", "/topic/create?topic=out")
        publisher = Publisher(broker)
        publisher.start()
        try:
            for number in range(ROUNDS):
                driver = Driver(broker, tmp_path, "run", PROGRAM)
                try:
                    assert driver.wait_for_batches(1), (tmp_path / "stderr").read_text()
                    if number % 2 == 0:
                        time.sleep(random.random() * 0.3)  # somewhere in a batch
                        broker.kill()
                        broker.restart()
                    driver.wait_for_batches(random.randint(1, 4))
                    time.sleep(random.random() * 0.5)
                finally:
                    driver.kill()
        finally:
            publisher.stop()
        driver = Driver(broker, tmp_path, "finish", PROGRAM)
        try:
            assert driver.process.wait(100) == 0, (tmp_path / "stderr").read_text()
        finally:
            driver.kill()
        (app,) = broker.ask("GET", "/staged")["apps"]
        assert app["batches"] == []
    lines = (tmp_path / "values").read_text().split("\n")[:-1]
    rows = Counter(int(line.split()[0]) for line in lines)
    assert len(publisher.answered) > 500
    assert [each for each in publisher.answered if rows[each] != 1] == []
    assert max(rows.values()) == 1
    assert rows.keys() <= set(publisher.answered) | set(publisher.unanswered)
    assert len({line.split()[1] for line in lines}) == len(lines)
