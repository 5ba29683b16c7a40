"""The sink exactly once, whatever is killed: a topic is copied to three nsqds, and the copy is exact.

The program (copy_driver.py) is killed at random with its JVM and its workers, single tasks die in the midst
of their rows, nsqds are killed and restarted. NSQUARK_SPARK_ROUNDS says how often.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.broker import Broker
from tests.spark.test_exactly_once import ROUNDS, Publisher, finish, started

PROGRAM = Path(__file__).with_name("copy_driver.py")


@pytest.mark.timeout(180 + 60 * ROUNDS)
def test_every_message_is_copied_exactly_once(tmp_path: Path) -> None:
    # kept whatever has been read, so that the end can be compared with the beginning
    brokers = [
        Broker(tmp_path / f"data{number}", "--retention-time=1h", f"--node-id={number}").start()
        for number in range(3)
    ]
    addresses = ",".join(each.http_address for each in brokers)
    try:
        brokers[0].ask("POST", "/topic/create?topic=t")
        for broker in brokers:
            broker.ask("POST", "/topic/create?topic=out")
        publisher = Publisher(brokers[0])
        publisher.start()
        try:
            for _ in range(ROUNDS):
                driver = started(addresses, tmp_path, PROGRAM)
                try:
                    time.sleep(random.random() * 0.3)  # somewhere in a batch
                    broker = random.choice(brokers)
                    broker.kill()
                    broker.restart()
                    driver.wait_for_batches(random.randint(1, 4))
                    time.sleep(random.random() * 0.5)
                finally:
                    driver.kill()
        finally:
            publisher.stop()
        finish(addresses, tmp_path, PROGRAM)
        for broker in brokers:
            (app,) = broker.ask("GET", "/staged")["apps"]
            assert app["home"] is not None
        assert all(broker.log("out")["next"] > 0 for broker in brokers)
    finally:
        for broker in brokers:
            broker.kill()
    lines = (tmp_path / "values").read_text().split("\n")[:-1]
    rows = Counter(int(line.split()[0]) for line in lines)
    assert len(publisher.answered) > 500
    assert [each for each in publisher.answered if rows[each] != 1] == []
    assert max(rows.values()) == 1
    assert rows.keys() <= set(publisher.answered) | set(publisher.unanswered)
    assert len({line.split()[1] for line in lines}) == len(lines)
