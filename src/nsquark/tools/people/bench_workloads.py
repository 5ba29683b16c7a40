"""The workloads of `nsquark bench`: each loads one nsqd by the client library, and returns a Result."""

from __future__ import annotations

import asyncio
import struct
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from nsquark.client import Consumer, Message, Producer
from nsquark.errors import NsquarkError

from .failures import Failure, not_answering, on_one_line
from .flags.settings import Settings
from .output import Progress

_SAMPLES: Final = 1_000_000  # latencies that are kept
_RDY: Final = 2500
_LARGEST: Final = 500_000_000  # bytes of bodies that a workload may leave on the disk
_DRAIN: Final = 60.0  # seconds that consuming what was published may take at most
_CLOCK: Final = struct.Struct(">d")


@dataclass(frozen=True, slots=True)
class Load:
    """How much to do, from the command line."""

    seconds: float
    size: int
    batch: int
    connections: int
    window: int
    rate: float


@dataclass(slots=True)
class Result:
    """`count` messages of `size` bytes in `seconds`. Latencies are in seconds, in no order."""

    name: str
    what: str
    size: int
    count: int = 0
    seconds: float = 0.0
    latencies: array[float] = field(default_factory=lambda: array("d"))

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0

    def sample(self, seconds: float) -> None:
        if len(self.latencies) < _SAMPLES:
            self.latencies.append(seconds)

    def percentiles(self) -> dict[str, float]:
        ordered = sorted(self.latencies)
        last = len(ordered) - 1
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
        return {name: ordered[min(last, int(share * len(ordered)))] for name, share in shares.items()}

    def histogram(self) -> list[tuple[float, float, float]]:
        """(from, to, share of the messages), in buckets that double, without the empty ones at both ends."""
        buckets: dict[int, int] = {}
        for seconds in self.latencies:
            bucket = max(0, int(seconds * 1e6)).bit_length()
            buckets[bucket] = buckets.get(bucket, 0) + 1
        total = len(self.latencies)
        return [
            ((1 << bucket >> 1) / 1e6, (1 << bucket) / 1e6, buckets.get(bucket, 0) / total)
            for bucket in range(min(buckets), max(buckets) + 1)
        ]

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "workload": self.name,
            "messages": self.count,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.rate, 1),
            "bytes_per_second": round(self.rate * self.size, 1),
        }
        if self.latencies:
            document["latency_us"] = {
                name: round(value * 1e6, 1) for name, value in self.percentiles().items()
            }
            document["histogram_us"] = [
                {"from": round(low * 1e6), "to": round(high * 1e6), "share": round(share, 6)}
                for low, high, share in self.histogram()
            ]
        return document


# ---- publishing


async def mpub(address: str, topic: str, settings: Settings, load: Load, update: Progress) -> Result:
    result = Result(
        "mpub", f"MPUB of {load.batch}, {load.connections} connections, 2 under way on each", load.size
    )
    return await _publish(result, address, topic, settings, load, update, load.batch, 2)


async def pub(address: str, topic: str, settings: Settings, load: Load, update: Progress) -> Result:
    result = Result(
        "pub", f"PUB, {load.window} under way on each of {load.connections} connections", load.size
    )
    return await _publish(result, address, topic, settings, load, update, 1, load.window)


async def one(address: str, topic: str, settings: Settings, load: Load, update: Progress) -> Result:
    result = Result("one", f"PUB one at a time, {load.connections} connections", load.size)
    return await _publish(result, address, topic, settings, load, update, 1, 1)


async def _publish(
    result: Result,
    address: str,
    topic: str,
    settings: Settings,
    load: Load,
    update: Progress,
    batch: int,
    window: int,
) -> Result:
    """Keep `window` publishes of `batch` messages under way on each connection, for a time."""
    bodies = [b"x" * load.size] * batch
    producers = await _producers(address, settings, load)
    most = max(batch, _LARGEST // load.size)
    begun = time.perf_counter()
    ends = begun + load.seconds

    async def keep_busy(producer: Producer) -> None:
        under_way: deque[tuple[asyncio.Future[None], float]] = deque()
        while True:
            now = time.perf_counter()
            while now < ends and len(under_way) < window and result.count < most:
                if batch > 1:
                    under_way.append((producer.publish_many_nowait(topic, bodies), now))
                else:
                    under_way.append((producer.publish_nowait(topic, bodies[0]), now))
            if not under_way:
                return
            future, since = under_way.popleft()
            await future
            result.count += batch
            result.sample(time.perf_counter() - since)

    try:
        await _with_progress(asyncio.gather(*map(keep_busy, producers)), begun, update)
    except NsquarkError as error:
        raise Failure(f"nsqd {address} broke off: {on_one_line(error)}") from None
    finally:
        await _close(producers)
    result.seconds = time.perf_counter() - begun
    return result


# ---- consuming


async def sub(address: str, topic: str, settings: Settings, load: Load, update: Progress) -> Result:
    published = await mpub(address, topic, settings, load, lambda done, text="": None)
    result = Result("sub", f"consuming {published.count:,} messages with FIN, RDY {_RDY}", load.size)
    await _consume(result, address, topic, settings, published.count, update)
    return result


async def fanout(address: str, topic: str, settings: Settings, load: Load, update: Progress) -> Result:
    channels = 10
    result = Result("fanout", f"consuming on {channels} channels what is published by MPUB", load.size)
    consumers = [_consumer(address, topic, settings, f"ch{number}") for number in range(channels)]
    for consumer in consumers:
        await _start(consumer, address)
    begun = time.perf_counter()
    consuming = [asyncio.create_task(_count(result, consumer, None)) for consumer in consumers]
    try:
        published = await mpub(address, topic, settings, load, update)
        await _until(lambda: result.count >= published.count * channels, begun + load.seconds + _DRAIN)
        result.seconds = time.perf_counter() - begun
    finally:
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)
        await asyncio.gather(*(consumer.close(0) for consumer in consumers))
    return result


async def latency(address: str, topic: str, settings: Settings, load: Load, update: Progress) -> Result:
    result = Result("latency", f"from publish to delivery, at {load.rate:,.0f} messages/s", load.size)
    consumer = _consumer(address, topic, settings, "ch")
    await _start(consumer, address)
    (producer, *others) = await _producers(address, settings, load)
    begun = time.perf_counter()
    filler = b"x" * max(0, load.size - _CLOCK.size)

    def received(message: Message) -> None:
        result.sample(time.perf_counter() - _CLOCK.unpack_from(message.body)[0])

    consuming = asyncio.create_task(_count(result, consumer, received))
    try:
        await _with_progress(_at_rate(producer, topic, filler, load), begun, update)
        await producer.flush(_DRAIN)
        sent = int(load.seconds * load.rate)
        await _until(lambda: result.count >= sent, time.perf_counter() + _DRAIN)
        result.seconds = time.perf_counter() - begun
    except NsquarkError as error:
        raise Failure(f"nsqd {address} broke off: {on_one_line(error)}") from None
    finally:
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        await consumer.close(0)
        await _close([producer, *others])
    return result


async def _at_rate(producer: Producer, topic: str, filler: bytes, load: Load) -> None:
    begun = time.perf_counter()
    for number in range(int(load.seconds * load.rate)):
        wait = begun + number / load.rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        producer.publish_nowait(topic, _CLOCK.pack(time.perf_counter()) + filler)


async def _consume(
    result: Result, address: str, topic: str, settings: Settings, count: int, update: Progress
) -> None:
    consumer = _consumer(address, topic, settings, "ch")
    begun = time.perf_counter()
    await _start(consumer, address)
    consuming = asyncio.create_task(_count(result, consumer, None))
    try:
        await _with_progress(_until(lambda: result.count >= count, begun + _DRAIN), begun, update)
        result.seconds = time.perf_counter() - begun
    finally:
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        await consumer.close(0)


async def _count(result: Result, consumer: Consumer, received: Callable[[Message], None] | None) -> None:
    while batch := await consumer.take(_RDY):
        for message in batch:
            if received is not None:
                received(message)
            message.finish()
        result.count += len(batch)


# ---- connections


def _consumer(address: str, topic: str, settings: Settings, channel: str) -> Consumer:
    config = settings.client_config(max_in_flight=_RDY, max_attempts=0)
    return Consumer(topic, channel, nsqd=address, config=config, fail_fast=True)


async def _start(consumer: Consumer, address: str) -> None:
    try:
        await consumer.start()
    except NsquarkError as error:
        raise not_answering(address, error) from None


async def _producers(address: str, settings: Settings, load: Load) -> list[Producer]:
    config = settings.client_config(max_msg_size=1 << 28, max_body_size=1 << 29)
    producers = [Producer(address, config=config) for _ in range(load.connections)]
    try:
        await asyncio.gather(*(producer.ping(settings.timeout) for producer in producers))
    except (NsquarkError, TimeoutError) as error:
        await _close(producers)
        raise not_answering(address, error) from None
    return producers


async def _close(producers: list[Producer]) -> None:
    await asyncio.gather(*(producer.close(0.2) for producer in producers))


async def _until(condition: Callable[[], bool], deadline: float) -> None:
    while not condition():
        if time.perf_counter() > deadline:
            raise Failure(f"nsqd did not deliver everything within {_DRAIN:g} s")
        await asyncio.sleep(0.005)


async def _with_progress(work: Awaitable[Any], begun: float, update: Progress) -> None:
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            update(time.perf_counter() - begun)
            await asyncio.wait((task,), timeout=0.1)
        task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


Workload = Callable[[str, str, Settings, Load, Progress], Awaitable[Result]]
WORKLOADS: Final[dict[str, Workload]] = {
    "mpub": mpub,
    "sub": sub,
    "pub": pub,
    "one": one,
    "fanout": fanout,
    "latency": latency,
}
