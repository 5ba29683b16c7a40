"""gnsq under load; see compare.py for what is measured."""

from gevent import monkey

monkey.patch_all()

from collections import deque  # noqa: E402
from functools import partial  # noqa: E402

import gnsq  # noqa: E402
from gevent.event import Event  # noqa: E402
from workload import Stopwatch, Workload, main  # noqa: E402


def measure(load: Workload) -> tuple[float, float]:
    return consume(load) if load.mode == "consume" else publish(load)


def consume(load: Workload) -> tuple[float, float]:
    left = load.count
    watch = None
    done = Event()

    def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        nonlocal left, watch
        watch = watch or Stopwatch.start()
        message.finish()
        left -= 1
        if not left:
            done.set()

    consumer = gnsq.Consumer(
        load.topic,
        "bench",
        nsqd_tcp_addresses=[load.address],
        message_handler=handle,
        max_in_flight=load.max_in_flight,
    )
    consumer.start(block=False)
    done.wait()
    took = watch.stop()
    consumer.close()
    return took


def publish(load: Workload) -> tuple[float, float]:
    producer = gnsq.Producer([load.address])
    producer.start()
    producer.publish("warm-up", b"x")
    if load.mode == "batches":
        send = partial(producer.multipublish, load.topic, load.bodies(), raise_error=False)
    else:
        send = partial(producer.publish, load.topic, load.body, raise_error=False)
    watch = Stopwatch.start()
    pending = deque()
    for _ in range(load.publishes):
        if len(pending) == load.window:
            pending.popleft().get()
        pending.append(send())
    for result in pending:
        result.get()
    took = watch.stop()
    producer.close()
    return took


if __name__ == "__main__":
    main(measure)
