"""The soak: nsqd under steady load, restarted now and then, sampled all the time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from nsquark.client import Config, Consumer, Producer
from nsquark.client.config import Reconnect
from nsquark.errors import NsquarkError
from reliability.outcome import Outcome, percentile
from tests.daemon import Nsqd, until

from .plot import Chart, svg
from .trend import growth

MEBI = 1 << 20
MORE = 120.0  # seconds
TOPICS = ("a", "b", "c")
CHANNELS = ("one", "two")
CONFIG = Config(
    reconnect=Reconnect(first=0.05, cap=0.5),
    max_in_flight=200,
    max_attempts=0,
    backoff=None,
    msg_timeout=30.0,
)
BODY = b"x" * 200


@dataclass(slots=True, frozen=True)
class Plan:
    seconds: float
    rate: int = 200  # messages a second to each topic, in batches and one by one; a few are deferred
    restarts: int = 3
    sample_every: float = 1.0
    # What may grow over the whole time, as a share of the middle value; or by a little, in a short run.
    memory_growth: float = 0.10
    descriptor_growth: float = 0.05
    latency_growth: float = 0.5
    processor_growth: float = 0.15


@dataclass(slots=True)
class Samples:
    times: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # MiB
    descriptors: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)  # p99 of PUBs in ms
    processor: list[float] = field(default_factory=list)  # µs of nsqd's processor time for each message
    lateness: list[float] = field(default_factory=list)  # p99 of a timer of this process, in ms
    restarts: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Account:
    """What was answered and what was got, by number."""

    answered: set[int] = field(default_factory=set)
    got: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)  # of PUBs since the last sample, in ms
    late: list[float] = field(default_factory=list)  # of a timer since then, in ms
    processor: float = 0.0  # seconds that nsqd had used at the last sample
    sampled: int = 0  # messages that were answered by then


async def soak(plan: Plan) -> tuple[Outcome, Samples]:
    # Small files and no retention, so that many are begun and deleted.
    flags = ("--max-bytes-per-file=1000000", "--max-req-timeout=1h")
    with tempfile.TemporaryDirectory() as folder, Nsqd(Path(folder) / "data", *flags).start() as nsqd:
        return await _soak(nsqd, plan)


async def _soak(nsqd: Nsqd, plan: Plan) -> tuple[Outcome, Samples]:
    outcome, samples, account = Outcome("soak"), Samples(), Account()
    # The channels are there before the first message, so that each gets all.
    for topic in TOPICS:
        await nsqd.post(f"/topic/create?topic={topic}")
        for channel in CHANNELS:
            await nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    stop = asyncio.Event()
    producer = Producer(nsqd.tcp_address, config=CONFIG)
    publishing = [asyncio.create_task(_publish(producer, plan, account, topic, stop)) for topic in TOPICS]
    consuming = [
        asyncio.create_task(_consume(nsqd, account, topic, channel))
        for topic in TOPICS
        for channel in CHANNELS
    ]
    watching = asyncio.create_task(_watch(account))
    begin = time.monotonic()
    due = [plan.seconds * number / (plan.restarts + 1) for number in range(1, plan.restarts + 1)]
    # On a busy machine it may take longer until there is something to tell.
    while (now := time.monotonic() - begin) < plan.seconds or (
        now < plan.seconds + MORE and (due or not samples.times)
    ):
        await asyncio.sleep(plan.sample_every)
        _sample(nsqd, samples, account, time.monotonic() - begin)
        if due and now >= due[0]:
            due.pop(0)
            samples.restarts.append(now)
            # In turn as an operator ends it and as a crash does.
            end = nsqd.stop if len(samples.restarts) % 2 else nsqd.kill
            await asyncio.to_thread(end)
            await asyncio.to_thread(nsqd.restart)
            account.processor = 0.0
    stop.set()
    watching.cancel()
    await asyncio.gather(*publishing)
    await _settle(account)
    for task in consuming:
        task.cancel()
    await asyncio.gather(*consuming, return_exceptions=True)
    await producer.close()
    _judge(outcome, samples, account, plan)
    outcome.demand(not [line for line in nsqd.lines if "Traceback" in line], "nsqd logged a traceback")
    return outcome, samples


async def _publish(producer: Producer, plan: Plan, account: Account, topic: str, stop: asyncio.Event) -> None:
    """Numbers go up in steps, so that each topic has its own."""
    number, begin = TOPICS.index(topic), time.monotonic()
    sent = 0
    while not stop.is_set():
        ahead = sent / plan.rate - (time.monotonic() - begin)
        if ahead > 0:
            await asyncio.sleep(ahead)
        many = [number + each * len(TOPICS) for each in range(20)]
        number += len(many) * len(TOPICS)
        sent += len(many)
        try:
            await producer.publish_many(topic, [_body(each) for each in many[:10]])
            account.answered.update(many[:10])
            for each in many[10:]:
                start = time.monotonic()
                await producer.publish(topic, _body(each), delay=0.2 if each % 5 == 0 else None)
                account.waits.append((time.monotonic() - start) * 1e3)
                account.answered.add(each)
        except (NsquarkError, OSError, TimeoutError):
            await asyncio.sleep(0.05)  # it restarts, and nothing was promised


def _body(number: int) -> bytes:
    return b"%d %b" % (number, BODY)


async def _consume(nsqd: Nsqd, account: Account, topic: str, channel: str) -> None:
    got = account.got.setdefault((topic, channel), set())
    async with Consumer(topic, channel, nsqd=nsqd.tcp_address, config=CONFIG) as consumer:
        async for message in consumer:
            number = int(message.body.partition(b" ")[0])
            if number % 50 == 0 and message.attempts == 1:
                message.requeue(0.1, backoff=False)
                continue
            got.add(number)
            message.finish()


def _sample(nsqd: Nsqd, samples: Samples, account: Account, now: float) -> None:
    waits, account.waits = sorted(account.waits), []
    late, account.late = sorted(account.late), []
    used, messages = _processor_time(nsqd), len(account.answered) - account.sampled
    spent, account.processor = used - account.processor, used
    account.sampled = len(account.answered)
    if not waits or not late or not messages:
        return
    samples.times.append(now)
    samples.memory.append(nsqd.memory() / MEBI)
    samples.descriptors.append(len(os.listdir(f"/proc/{nsqd.process.pid}/fd")))
    samples.latency.append(percentile(waits, 0.99))
    samples.processor.append(spent / messages * 1e6)
    samples.lateness.append(percentile(late, 0.99))


def _processor_time(nsqd: Nsqd) -> float:
    """Seconds that the process has used."""
    fields = Path(f"/proc/{nsqd.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _watch(account: Account) -> None:
    """How late a timer of this process is tells what the machine itself does to latencies."""
    while True:
        due = time.monotonic() + 0.01
        await asyncio.sleep(0.01)
        account.late.append((time.monotonic() - due) * 1e3)


async def _settle(account: Account, within: float = 300.0) -> None:
    """Wait until every channel has got what was answered."""
    with contextlib.suppress(AssertionError):
        await until(lambda: not _missing(account), within)


def _missing(account: Account) -> int:
    owed = {topic: {n for n in account.answered if n % len(TOPICS) == at} for at, topic in enumerate(TOPICS)}
    return sum(len(owed[topic] - got) for (topic, _), got in account.got.items())


def _judge(outcome: Outcome, samples: Samples, account: Account, plan: Plan) -> None:
    missing = _missing(account)
    outcome.figures["answered"] = f"{len(account.answered)}, {missing} lost on {len(account.got)} channels"
    outcome.figures["restarts"] = str(len(samples.restarts))
    outcome.demand(not missing, f"{missing} messages were lost")
    outcome.demand(bool(samples.times), "nothing was sampled")
    busier = growth(samples.times, samples.lateness) * median(samples.lateness or [0.0])
    for name, values, unit, most, little in (
        ("memory", samples.memory, "MiB", plan.memory_growth, 5.0),
        ("descriptors", samples.descriptors, "", plan.descriptor_growth, 5.0),
        ("processor for each message", samples.processor, "µs", plan.processor_growth, 50.0),
        # A machine that gets busier makes everything later.
        ("latency p99", samples.latency, "ms", plan.latency_growth, 20.0 + 3 * max(0.0, busier)),
        ("timer late p99", samples.lateness, "ms", math.inf, 0.0),
    ):
        if not values:
            continue
        share = growth(samples.times, values)
        told = sorted(values)
        outcome.figures[name] = (
            f"{percentile(told, 0.5):.1f} {unit} (most {told[-1]:.1f}), slope {share:+.1%} over the run"
        ).replace("  ", " ")
        by = share * percentile(told, 0.5)
        outcome.demand(
            share <= most or by <= little,
            f"{name} grows: {share:+.1%} or {by:.1f} {unit}, {most:.0%} are allowed",
        )


def draw(outcome: Outcome, samples: Samples) -> str:
    verdict = "failed" if outcome.faults else "passed"
    charts = [
        Chart("nsqd's memory", "MiB", samples.times, samples.memory),
        Chart("open descriptors", "", samples.times, samples.descriptors),
        Chart("PUB to OK, p99 of a sample", "ms", samples.times, samples.latency),
        Chart("processor time for each message", "µs", samples.times, samples.processor),
        Chart("a timer of the measuring process is late, p99", "ms", samples.times, samples.lateness),
    ]
    return svg(f"Soak: {verdict}. Dashed lines are restarts.", charts, samples.restarts)
