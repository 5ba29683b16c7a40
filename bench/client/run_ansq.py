"""ansq under load; see compare.py for what is measured."""

import asyncio

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
    watch = Stopwatch.start()
    if load.mode == "batches":
        bodies = load.bodies()
        for some in load.windows():
            await asyncio.gather(*(writer.mpub(load.topic, *bodies) for _ in range(some)))
    else:
        for some in load.windows():
            await asyncio.gather(*(writer.pub(load.topic, load.body) for _ in range(some)))
    took = watch.stop()
    await writer.close()
    return took


if __name__ == "__main__":
    main(lambda load: run_loop(measure(load)))
