"""Runs of REQ among FIN and TOUCH, of own, foreign, unknown and repeated ids: what is answered."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.daemon import Client, Message, Nsqd, mpub, until

MAX_REQ_MS = 200
TIMEOUTS = (
    b"0",
    b"0",
    b"00000",
    b"0000000000",
    b"00000000000",
    b"50",
    b"200",
    b"201",
    b"9999999999",
    b"9" * 17,
)
NOWHERE = [b"0000000000000000", b"fffffffffffffffe", b"ffffffffffffffff", b"ffffffffffffffff"]
LAST = b"eeeeeeeeeeeeeeee"  # of a burst, and in flight for nobody
LIVES = 3
ROUNDS = 3


@dataclass
class Known:
    """What is not finished: how often each body was delivered, and when it may come again."""

    attempts: dict[bytes, int] = field(default_factory=dict)
    due: dict[bytes, float] = field(default_factory=dict)
    number: int = 0

    def bodies(self, count: int) -> list[bytes]:
        bodies = [b"%d" % number for number in range(self.number, self.number + count)]
        self.number += count
        self.attempts.update(dict.fromkeys(bodies, 0))
        self.due.update(dict.fromkeys(bodies, 0.0))
        return bodies

    def delivered(self, message: Message, certain: bool) -> None:
        """`certain`: no crash has made the number of attempts forgotten."""
        assert message.body in self.attempts, f"{message} is finished, and came again"
        assert time.time() >= self.due[message.body] - 0.01, f"{message} is early"
        if certain:
            assert message.attempts == self.attempts[message.body] + 1
        self.attempts[message.body] = message.attempts


def burst(
    chance: random.Random, known: Known, own: dict[bytes, bytes], foreign: dict[bytes, bytes]
) -> tuple[bytes, list[bytes]]:
    """Commands, and the errors that they must be answered with. Takes from `own` what is answered."""
    lines: list[bytes] = []
    errors: list[bytes] = []
    mine, done = sorted(own), list[bytes]()
    for _ in range(chance.choice((3, 20))):
        kind = chance.choice((b"REQ", b"REQ", b"FIN", b"TOUCH"))
        pool = chance.choice(
            (mine, mine, mine, sorted(foreign), done, NOWHERE, mine + sorted(foreign) + done)
        )
        count, begin = chance.choice((1, 2, 10, 120)), chance.randrange(max(1, len(pool)))
        ids = pool[begin : begin + count]
        if chance.random() < 0.2:
            chance.shuffle(ids)
        ids += ids[: chance.choice((0, 0, 0, 5))]
        timeout = chance.choice(TIMEOUTS)
        for each in ids:
            lines.append(
                b"%b %b %b\n" % (kind, each, timeout) if kind == b"REQ" else b"%b %b\n" % (kind, each)
            )
            if each not in own:
                reason = b"client does not own message" if each in foreign else b"ID not in flight"
                errors.append(b"E_%b_FAILED %b %b failed %b" % (kind, kind, each, reason))
            elif kind == b"FIN":
                del known.attempts[own.pop(each)]
                done.append(each)
            elif kind == b"REQ":
                known.due[own.pop(each)] = time.time() + min(int(timeout), MAX_REQ_MS) / 1000
                done.append(each)
    lines.append(b"TOUCH %b\n" % LAST)
    errors.append(b"E_TOUCH_FAILED TOUCH %b failed ID not in flight" % LAST)
    return b"".join(lines), errors


async def send_in_pieces(client: Client, data: bytes, chance: random.Random) -> None:
    while data:
        size = chance.choice((len(data), 1000, 33))
        client.send(data[:size])
        await client.writer.drain()
        data = data[size:]


async def one_round(nsqd: Nsqd, known: Known, chance: random.Random, certain: bool) -> None:
    """Publish, take everything with two consumers, and have them answer it at random."""
    async with await nsqd.connect() as first, await nsqd.connect() as second:
        first.send(mpub("t", known.bodies(chance.choice((5, 100)))))
        await first.ok()
        own: dict[Client, dict[bytes, bytes]] = {first: {}, second: {}}
        wanted = len(known.attempts)
        for client, other in ((first, second), (second, first)):
            count = wanted // 2 if client is first else wanted - len(own[other])
            await client.sub("t", "c", rdy=count)
            for _ in range(count):
                message = await client.message()
                known.delivered(message, certain)
                own[client][message.id] = message.body
            client.rdy(0)
        for client, other in ((first, second), (second, first)):
            data, errors = burst(chance, known, own[client], own[other])
            await send_in_pieces(client, data, chance)
            assert [await client.error() for _ in errors] == errors
    # What they still had comes again at once, and what was requeued when it is due.


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_message_is_answered_or_comes_again(tmp_path: Path, seed: int) -> None:
    chance, known = random.Random(seed), Known()
    nsqd = Nsqd(
        tmp_path,
        f"--max-req-timeout={MAX_REQ_MS}ms",
        "--msg-timeout=15m",
        f"--max-bytes-per-file={chance.choice((2000, 100_000_000))}",
        f"--mem-queue-size={chance.choice((10, 10_000))}",
    )
    for _ in range(LIVES):
        with nsqd.start():
            await nsqd.post("/topic/create?topic=t")
            await nsqd.post("/channel/create?topic=t&channel=c")
            for number in range(ROUNDS):
                await one_round(nsqd, known, chance, certain=number > 0)
                await until(lambda: no_consumer(nsqd))
    assert known.number > len(known.attempts) > 0


async def no_consumer(nsqd: Nsqd) -> bool:
    _, stats = await nsqd.http("GET", "/stats?format=json&topic=t&channel=c")
    return b'"in_flight_count":0' in stats


@pytest.mark.parametrize("timeout", [b"-1", b"+5", b"0x10", b"x", b"1.5"])
async def test_a_timeout_that_is_no_number_ends_the_connection_behind_a_run(
    nsqd: Nsqd, timeout: bytes
) -> None:
    async with await nsqd.connect() as client, await nsqd.connect() as other:
        client.send(mpub("t", [b"%d" % number for number in range(4)]))
        await client.ok()
        await client.sub("t", "c", rdy=4)
        ids = [(await client.message()).id for _ in range(4)]
        client.rdy(0)
        reqs = [b"REQ %b 3600000\n" % each for each in ids[:2]]
        client.send(b"".join(reqs) + b"REQ %b %b\n" % (ids[2], timeout) + b"REQ %b 3600000\n" % ids[3])
        assert await client.error() == b"E_INVALID REQ could not parse timeout " + timeout
        await client.closed()
        await other.sub("t", "c", rdy=4)
        assert {(await other.message()).body for _ in range(2)} == {b"2", b"3"}
        _, stats = await nsqd.http("GET", "/stats?format=json&topic=t&channel=c")
        assert b'"deferred_count":2' in stats
