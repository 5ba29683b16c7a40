"""nsquark's client under load; see compare.py for what is measured."""

from collections import deque
from collections.abc import Awaitable
from functools import partial

from workload import Stopwatch, Workload, main, run_loop

from nsquark import Config, Consumer, Producer


async def measure(load: Workload) -> tuple[float, float]:
    return await (consume(load) if load.mode == "consume" else publish(load))


async def consume(load: Workload) -> tuple[float, float]:
    config = Config(max_in_flight=load.max_in_flight)
    left = load.count
    async with Consumer(load.topic, "bench", nsqd=load.address, config=config) as consumer:
        message = await anext(consumer)
        watch = Stopwatch.start()
        message.finish()
        left -= 1
        async for message in consumer:
            message.finish()
            left -= 1
            if not left:
                break
        return watch.stop()


async def publish(load: Workload) -> tuple[float, float]:
    async with Producer(load.address) as producer:
        await producer.ping()
        if load.mode == "batches":
            send = partial(producer.publish_many_nowait, load.topic, load.bodies())
        else:
            send = partial(producer.publish_nowait, load.topic, load.body)
        watch = Stopwatch.start()
        pending: deque[Awaitable[None]] = deque()
        for _ in range(load.publishes):
            if len(pending) == load.window:
                await pending.popleft()
            pending.append(send())
        for each in pending:
            await each
        return watch.stop()


if __name__ == "__main__":
    main(lambda load: run_loop(measure(load)))
