"""The synchronous face: from a script, from threads, after a fork."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import nsquark
from nsquark import Config, sync
from nsquark.errors import ConnectFailed, PublishTimeout, UsageError
from tests.daemon import Nsqd
from tests.replica_group import needs_etcd, replica_group


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


@needs_etcd
def test_a_producer_follows_the_primary_of_a_replica_group(tmp_path: Path) -> None:
    with replica_group(tmp_path) as group:
        a, b = group.pair()
        with sync.Producer(group.tcp_addresses, mode="group", repeat_unknown=True) as producer:
            producer.publish("t", b"1", timeout=60.0)
            a.kill()
            producer.publish("t", b"2", timeout=60.0)
            producer.publish_nowait("t", b"3", timeout=60.0).result()
        stored = json.loads(b.ask("GET", "/topic/peek?topic=t&from=0")[1])["messages"]
        assert [each["body"] for each in stored] == ["1", "2", "3"]


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


# ---- run

WORKER = """
import logging
import sys
from nsquark import sync

logging.basicConfig(level=logging.INFO)

def handle(message):
    print("got", message.body.decode(), flush=True)
    sys.stdin.readline()
    print("done", flush=True)

sync.Consumer("t", "ch", nsqd=sys.argv[1]).run(handle)
print("ended", flush=True)
"""


@contextmanager
def worker(nsqd: Nsqd) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, nsqd.tcp_address]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def counts(nsqd: Nsqd) -> tuple[int, int]:
    """How many messages of channel ch wait, and how many are in flight."""
    stats = asyncio.run(nsquark.NsqdHttp(nsqd.http_address).stats(topic="t"))
    (channel,) = stats["topics"][0]["channels"]
    return channel["depth"], channel["in_flight_count"]


def wait_for_closing(process: subprocess.Popen[str], signal_name: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if f"{signal_name}: closing the consumer" in line:
            return
    raise AssertionError(f"the process ended without a word about {signal_name}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_handler_finish(nsqd: Nsqd, number: signal.Signals) -> None:
    with sync.Producer(nsqd.tcp_address) as producer:
        producer.publish_many("t", [b"one", b"two"])
    with worker(nsqd) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "got one\n"
        process.send_signal(number)
        wait_for_closing(process, number.name)  # else the handler may end before the signal comes
        process.stdin.write("\n")
        assert process.stdout.read() == "done\nended\n"
        assert process.wait(20) == 0
    assert counts(nsqd) == (1, 0)


def test_a_second_signal_waits_for_no_handler(nsqd: Nsqd) -> None:
    with sync.Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"one")
    with worker(nsqd) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "got one\n"
        process.send_signal(signal.SIGTERM)
        wait_for_closing(process, "SIGTERM")  # two signals that come at once would count as one
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "ended\n"
        assert process.wait(20) == 0
    assert counts(nsqd) == (1, 0)


def test_run_calls_the_handler_in_threads(nsqd: Nsqd) -> None:
    with sync.Producer(nsqd.tcp_address) as producer:
        producer.publish_many("t", [b"x"] * 9)
    together, lock = threading.Barrier(3), threading.Lock()
    threads: set[int] = set()
    seen = 0

    def handle(message: nsquark.Message) -> None:
        nonlocal seen
        together.wait(20)
        with lock:
            threads.add(threading.get_ident())
            seen += 1
            if seen == 9:
                closing.start()

    with sync.Consumer("t", "ch", nsqd=nsqd.tcp_address) as consumer:
        closing = threading.Thread(target=consumer.close)
        consumer.run(handle, concurrency=3, touch_every=10.0)
        closing.join(20)
        assert consumer.stats().finished == 9
    assert len(threads) == 3


def test_a_handler_that_raises_has_its_message_requeued(nsqd: Nsqd) -> None:
    with sync.Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
    attempts: list[int] = []

    def handle(message: nsquark.Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) == 1:
            raise StopIteration
        if len(attempts) == 2:
            raise SystemExit
        if len(attempts) == 3:
            raise sync.Requeue(0.0)
        closing.start()

    settings = Config(backoff=None, default_requeue_delay=0.0)
    consumer = sync.Consumer("t", "ch", nsqd=nsqd.tcp_address, config=settings)
    closing = threading.Thread(target=consumer.close)
    running = threading.Thread(target=consumer.run, args=(handle,))  # no main thread, no signals
    running.start()
    running.join(20)
    closing.join(20)
    assert attempts == [1, 2, 3, 4]
