"""pynsq under load; see compare.py for what is measured."""

import asyncio

import nsq
from workload import Stopwatch, Workload, main, run_loop


async def measure(load: Workload) -> tuple[float, float]:
    return await (consume(load) if load.mode == "consume" else publish(load))


async def consume(load: Workload) -> tuple[float, float]:
    left = load.count
    watch = None
    done = asyncio.Event()

    def handle(message: nsq.Message) -> bool:
        nonlocal left, watch
        watch = watch or Stopwatch.start()
        left -= 1
        if not left:
            done.set()
        return True

    reader = nsq.Reader(
        load.topic,
        "bench",
        message_handler=handle,
        nsqd_tcp_addresses=[load.address],
        max_in_flight=load.max_in_flight,
    )
    await done.wait()
    took = watch.stop()
    reader.close()
    return took


async def publish(load: Workload) -> tuple[float, float]:
    writer = nsq.Writer([load.address])
    async with asyncio.timeout(10):
        while not any(connection.state == "CONNECTED" for connection in writer.conns.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # it does not say when it is
    watch = Stopwatch.start()
    if load.mode == "batches":
        bodies = load.bodies()
        for some in load.windows():
            await answered(some, lambda callback: writer.mpub(load.topic, bodies, callback))
    else:
        for some in load.windows():
            await answered(some, lambda callback: writer.pub(load.topic, load.body, callback))
    return watch.stop()


async def answered(count: int, send) -> None:
    done = asyncio.get_running_loop().create_future()

    def callback(connection, data) -> None:
        nonlocal count
        if isinstance(data, nsq.Error) and not done.done():
            done.set_exception(data)
        count -= 1
        if not count and not done.done():
            done.set_result(None)

    for _ in range(count):
        send(callback)
    await done


if __name__ == "__main__":
    main(lambda load: run_loop(measure(load)))
