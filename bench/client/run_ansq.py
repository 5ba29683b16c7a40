"""ansq under load; see compare.py for what is measured."""

import asyncio
from collections import deque
from functools import partial

import ansq
from workload import Stopwatch, Workload, main, run_loop


async def measure(load: Workload) -> tuple[float, float]:
    return await (consume(load) if load.mode == "consume" else publish(load))


async def consume(load: Workload) -> tuple[float, float]:
    # Its RDY is 1 for each connection whatever is wanted: the most it offers.
    reader = await ansq.create_reader(load.topic, "bench", nsqd_tcp_addresses=[load.address])
    left = load.count
    watch = None
    async for message in reader.messages():
        watch = watch or Stopwatch.start()
        await message.fin()
        left -= 1
        if not left:
            break
    took = watch.stop()
    await reader.close()
    return took


async def publish(load: Workload) -> tuple[float, float]:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[load.address])
    if load.mode == "batches":
        send = partial(writer.mpub, load.topic, *load.bodies())
    else:
        send = partial(writer.pub, load.topic, load.body)
    watch = Stopwatch.start()
    pending = deque()
    for _ in range(load.publishes):
        if len(pending) == load.window:
            await pending.popleft()
        pending.append(asyncio.ensure_future(send()))
    await asyncio.gather(*pending)
    took = watch.stop()
    await writer.close()
    return took


if __name__ == "__main__":
    main(lambda load: run_loop(measure(load)))
