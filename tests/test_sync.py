"""The synchronous face: from a script, from threads, after a fork."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import nsquark
from nsquark import Config, sync
from nsquark.errors import ConnectFailed, PublishTimeout, UsageError
from tests.daemon import Nsqd


def test_a_script(nsqd: Nsqd) -> None:
    with sync.Producer(nsqd.tcp_address) as producer:
        producer.ping()
        producer.publish("t", b"one")
        producer.publish_many("t", [b"two", b"three"])
        assert producer.publish_nowait("t", b"four").result(20) is None
        producer.flush()
    got = []
    with sync.Consumer("t", "ch", nsqd=nsqd.tcp_address, config=Config(max_in_flight=10)) as consumer:
        for message in consumer:
            with message:
                got.append(message.body)
            if len(got) == 4:
                break
        assert consumer.stats().received == 4
    assert got == [b"one", b"two", b"three", b"four"]


def test_what_was_fetched_and_not_used_goes_back(nsqd: Nsqd) -> None:
    with sync.Producer(nsqd.tcp_address) as producer:
        producer.publish_many("t", [b"%d" % n for n in range(20)])
    with sync.Consumer("t", "ch", nsqd=nsqd.tcp_address, config=Config(max_in_flight=20)) as consumer:
        bodies = []
        for _ in range(20):
            for message in consumer:
                message.finish()
                bodies.append(int(message.body))
                break
        assert bodies == list(range(20))


def test_threads_share_a_consumer_and_a_producer(nsqd: Nsqd) -> None:
    with sync.Producer(nsqd.tcp_address) as producer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: producer.publish("t", b"%d" % n), range(200)))
    got: list[int] = []
    lock = threading.Lock()
    everything = threading.Event()

    def work(consumer: sync.Consumer) -> None:
        for message in consumer:
            with message, lock:
                got.append(int(message.body))
                if len(got) == 200:
                    everything.set()

    with sync.Consumer("t", "ch", nsqd=nsqd.tcp_address, config=Config(max_in_flight=16)) as consumer:
        threads = [threading.Thread(target=work, args=(consumer,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert everything.wait(20)
        consumer.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert sorted(got) == list(range(200))


def test_batches(nsqd: Nsqd) -> None:
    with sync.Producer(nsqd.tcp_address) as producer:
        producer.publish_many("t", [b"x"] * 30)
    with sync.Consumer("t", "ch", nsqd=nsqd.tcp_address, config=Config(max_in_flight=100)) as consumer:
        count = 0
        for batch in consumer.batches(10, max_wait=0.1):
            count += len(batch)
            for message in batch:
                message.finish()
            if count == 30:
                break
        consumer.pause()
        consumer.resume()
        consumer.set_max_in_flight(5)
        assert consumer.stats().max_in_flight == 5


def test_giving_up_calls_a_plain_function(nsqd: Nsqd) -> None:
    given_up: list[bytes] = []
    with sync.Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
    settings = Config(max_attempts=1, backoff=None)
    consumer = sync.Consumer(
        "t", "ch", nsqd=nsqd.tcp_address, config=settings, on_give_up=lambda m: given_up.append(m.body)
    )
    with consumer:
        next(iter(consumer)).requeue(0.0)
        deadline = time.monotonic() + 20
        while consumer.stats().finished < 1 and time.monotonic() < deadline:
            time.sleep(0.002)
    assert given_up == [b"x"]


def test_errors_come_through() -> None:
    with sync.Producer("127.0.0.1:1") as producer:
        with pytest.raises(PublishTimeout):
            producer.publish("t", b"x", timeout=0.05)
        with pytest.raises(UsageError):
            producer.publish("a b", b"x")
    with pytest.raises(ConnectFailed):
        sync.Consumer("t", "ch", nsqd="127.0.0.1:1", fail_fast=True).start()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads is what is tested
def test_a_forked_child_gets_a_loop_of_its_own(nsqd: Nsqd) -> None:
    with sync.Producer(nsqd.tcp_address) as old:
        old.publish("t", b"parent")
        child = os.fork()
        if not child:
            status = 1
            try:
                try:
                    old.publish("t", b"no")
                except UsageError:
                    with sync.Producer(nsqd.tcp_address) as new:
                        new.publish("t", b"child")
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        old.publish("t", b"parent again")
    with sync.Consumer("t", "ch", nsqd=nsqd.tcp_address, config=Config(max_in_flight=3)) as consumer:
        bodies = set()
        for message in consumer:
            with message:
                bodies.add(message.body)
            if len(bodies) == 3:
                break
    assert bodies == {b"parent", b"child", b"parent again"}


def test_it_is_found_by_its_name() -> None:
    assert nsquark.sync is sync
