"""nsqd is killed, again and again, in the midst of its work: nothing that was answered is lost.

`NSQUARK_CRASH_ROUNDS` says how often in all, `NSQUARK_CRASH_SEED` repeats the choices of a run that failed
(not the moments of its kills: those are the machine's).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.crash.ledger import Holder, Ledger, Track
from tests.daemon import PATIENCE, Client, Closed, Message, Nsqd, dpub, mpub, pub

ROUNDS = int(os.environ.get("NSQUARK_CRASH_ROUNDS", "50"))
SEED = int(os.environ.get("NSQUARK_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
SERIES = 5  # data directories, each of which lives through its share of the rounds

TOPIC, CHANNELS = "orders", ("billing", "shipping")
PULSE = "pulse"  # where consumers publish to have an answer; its one channel comes at the end
ALL_CHANNELS = {TOPIC: CHANNELS, PULSE: ("doctor",)}
LONGEST_DELAY_MS = 400
FILE_SIZES = (4096, 65536, 104857600)


class Life:
    """One nsqd process from its start to its end, with its clients."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, rng: random.Random, number: int) -> None:
        self.nsqd = nsqd
        self.ledger = ledger
        self.rng = rng
        self.number = number
        self.holders: list[Holder] = []
        self._names = 0

    def body(self) -> bytes:
        """A body that no other message has: mostly small, some larger than a file is to be."""
        self._names += 1
        size = self.rng.choice((0, 0, 0, 0, 200, 200, 3000, 30000))
        return b"%d.%d " % (self.number, self._names) + b"x" * size

    # ---- clients

    async def produce(self, limit: int) -> None:
        """Publish in every way there is, then keep the connection until it ends."""
        rng, ledger = self.rng, self.ledger
        before = self._names
        try:
            client = await self.nsqd.connect()
        except Closed:
            return
        try:
            while self._names - before < limit:
                kind = rng.choice(("pub", "pub", "pubs", "mpub", "dpub"))
                now = time.time()
                commands = []
                if kind == "mpub":
                    bodies = [self.body() for _ in range(rng.choice((1, 5, 30)))]
                    commands.append((mpub(TOPIC, bodies), ledger.publishing(TOPIC, bodies)))
                elif kind == "dpub":
                    body, delay_ms = self.body(), rng.randrange(LONGEST_DELAY_MS)
                    due = now + delay_ms / 1000
                    commands.append((dpub(TOPIC, delay_ms, body), ledger.publishing(TOPIC, [body], due)))
                else:
                    for _ in range(rng.choice((2, 10, 50)) if kind == "pubs" else 1):
                        body = self.body()
                        commands.append((pub(TOPIC, body), ledger.publishing(TOPIC, [body])))
                client.send(b"".join(command for command, _ in commands))
                for _, sent in commands:
                    await client.ok()
                    ledger.published(sent)
            await client.frame()
        except Closed:
            pass
        finally:
            client.abort()

    async def consume(self, channel: str) -> None:
        """Finish, requeue, defer and hold; leave now and then, and come back."""
        while True:
            try:
                client = await self.nsqd.connect()
            except Closed:
                return
            holder = Holder(channel)
            try:
                await client.sub(TOPIC, channel)
                await self._consume(client, holder, self.rng.choice((1, 7, 100)))
            except Closed:
                return
            finally:
                self.ledger.closed(holder)
                client.abort()

    async def _consume(self, client: Client, holder: Holder, rdy: int) -> None:
        rng, ledger = self.rng, self.ledger
        held: list[tuple[Message, Track]] = []
        client.rdy(rdy)
        while rng.random() > 0.005:
            try:
                message = await client.message(0.05 if held else PATIENCE)
            except TimeoutError:
                pass
            else:
                held.append((message, ledger.delivered(holder, message, time.time())))
                if len(held) < rdy and rng.random() < 0.1:
                    continue
            message, track = held.pop(rng.randrange(len(held)))
            self.answer(client, holder, message, track)
            if rng.random() < 0.2:
                await self.pulse(client, holder)

    def answer(self, client: Client, holder: Holder, message: Message, track: Track) -> None:
        rng = self.rng
        action = rng.choice(("fin", "fin", "fin", "fin", "fin", "touch", "req", "defer"))
        if action == "req":
            self.ledger.requeuing(holder, track, 0.0)
            client.req(message)
        elif action == "defer":
            delay_ms = rng.randrange(1, LONGEST_DELAY_MS)
            self.ledger.requeuing(holder, track, time.time() + delay_ms / 1000)
            client.req(message, delay_ms)
        else:
            if action == "touch":
                client.touch(message)
            self.finish(client, holder, message, track)

    def finish(self, client: Client, holder: Holder, message: Message, track: Track) -> None:
        self.ledger.finishing(holder, track)
        client.fin(message)

    async def pulse(self, client: Client, holder: Holder) -> None:
        """A round trip behind everything this connection has done."""
        body = self.body()
        sent = self.ledger.publishing(PULSE, [body])
        holder.asking()
        await client.pub(PULSE, body)
        holder.answered()
        self.ledger.published(sent)

    async def drain(self, topic: str, channel: str) -> None:
        """Finish whatever comes until nothing is owed, and see to it that this is kept."""
        ledger = self.ledger
        holder = Holder(channel)
        async with await self.nsqd.connect() as client:
            await client.sub(topic, channel, rdy=500)
            while ledger.owed[channel]:
                message = await client.message()
                self.finish(client, holder, message, ledger.delivered(holder, message, time.time()))
            for _ in range(2):
                holder.asking()
                await client.caught_up()
                holder.answered()
        ledger.closed(holder)

    # ---- the life

    async def run(self, end: signal.Signals) -> None:
        """Have all clients at work, and end the process at some moment."""
        # Now and then longer and with less to do: consumers catch up, and what they finished is deleted.
        quiet = self.rng.random() < 0.1
        work = [self.produce(20 if quiet else 400) for _ in range(3)]
        work += [self.consume(channel) for channel in CHANNELS for _ in range(2)]
        self.rng.shuffle(work)
        tasks = [asyncio.create_task(each) for each in work]
        done, _ = await asyncio.wait(
            tasks,
            timeout=self.rng.uniform(0.02, 1.5 if quiet else 0.25),
            return_when=asyncio.FIRST_EXCEPTION,
        )
        if end is signal.SIGKILL:
            self.nsqd.kill()
        else:
            assert await asyncio.to_thread(self.nsqd.stop, end) == 0
        for task in tasks:
            await task
        assert not done, "a client ended before nsqd did"
        assert not [line for line in self.nsqd.lines if " ERROR: " in line]
        if end is signal.SIGKILL:
            self.ledger.killed()
        else:
            self.ledger.stopped()


def some_flags(rng: random.Random) -> list[str]:
    return [
        f"--max-bytes-per-file={rng.choice(FILE_SIZES)}",
        f"--sync-every={rng.choice((1, 100, 2500))}",
        f"--sync-timeout={rng.choice(('10ms', '2s'))}",
        f"--mem-queue-size={rng.choice((0, 10, 10000))}",
    ]


def share(series: int) -> int:
    """How many of the rounds are this series'."""
    return ROUNDS // SERIES + (series < ROUNDS % SERIES)


@pytest.mark.timeout(60 + 3 * ROUNDS)
@pytest.mark.parametrize("series", range(SERIES))
async def test_nothing_that_was_answered_is_lost_in_a_crash(tmp_path: Path, series: int) -> None:
    rng = random.Random(f"{SEED} {series}")
    ledger = Ledger(ALL_CHANNELS)
    nsqd = Nsqd(tmp_path / "data")
    with nsqd.start():
        async with await nsqd.connect() as client, await nsqd.connect() as other:
            await client.sub(TOPIC, CHANNELS[0])
            await other.sub(TOPIC, CHANNELS[1])
            await other.caught_up()
    number, flags = 0, ["none"]
    try:
        for number in range(1, share(series) + 1):
            flags = some_flags(rng)
            with nsqd.start(*flags):
                end = signal.SIGTERM if rng.random() < 0.15 else signal.SIGKILL
                await Life(nsqd, ledger, rng, number).run(end)
        await everything_comes(nsqd, ledger, rng)
    except BaseException as error:
        error.add_note(f"NSQUARK_CRASH_SEED={SEED}, series {series}, round {number}: {' '.join(flags)}")
        error.add_note("\n".join(nsqd.lines[-20:]))
        raise


async def everything_comes(nsqd: Nsqd, ledger: Ledger, rng: random.Random) -> None:
    """What is still owed comes, and after another end nothing does."""
    with nsqd.start():
        life = Life(nsqd, ledger, rng, 0)
        while any(ledger.owed.values()):
            await asyncio.gather(
                *(life.drain(topic, channel) for topic, names in ALL_CHANNELS.items() for channel in names)
            )
    ledger.killed()
    with nsqd.start():
        life = Life(nsqd, ledger, rng, -1)
        async with await nsqd.connect() as client:
            for topic in ALL_CHANNELS:
                body = life.body()
                sent = ledger.publishing(topic, [body])
                await client.pub(topic, body)
                ledger.published(sent)
        for topic, names in ALL_CHANNELS.items():
            for channel in names:
                await life.drain(topic, channel)
