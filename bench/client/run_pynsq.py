"""pynsq under load; see compare.py for what is measured."""

import asyncio
import sys
from functools import partial

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
    if load.mode == "batches":
        send = partial(writer.mpub, load.topic, load.bodies())
    else:
        send = partial(writer.pub, load.topic, load.body)
    watch = Stopwatch.start()
    pending = 0
    room = asyncio.Event()

    def answered(connection, data) -> None:
        nonlocal pending
        if isinstance(data, nsq.Error):
            sys.exit(f"pynsq could not publish: {data}")
        pending -= 1
        room.set()

    for _ in range(load.publishes):
        if pending == load.window:
            room.clear()
            await room.wait()
        pending += 1
        send(answered)
    while pending:
        room.clear()
        await room.wait()
    return watch.stop()


if __name__ == "__main__":
    main(lambda load: run_loop(measure(load)))
