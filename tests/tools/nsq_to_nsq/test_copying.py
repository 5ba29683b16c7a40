"""nsq_to_nsq between scripted and real nsqds: when messages are finished, and when they are requeued."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.client.scripted import CERTIFICATE, KEY, Peer, ScriptedNsqd, frame, message_frame
from tests.daemon import Nsqd, Nsqlookupd, until
from tests.tools.forward.program import Program


def start(source: str, *destinations: str, flags: tuple[str, ...] = ()) -> Program:
    return Program(
        "nsq_to_nsq",
        "--topic=t",
        f"--nsqd-tcp-address={source}",
        *(f"--destination-nsqd-tcp-address={each}" for each in destinations),
        *flags,
    )


async def stats(nsqd: Nsqd) -> dict[str, Any]:
    """Topics by name, each with its channels by name."""
    status, answer = await nsqd.http("GET", "/stats?format=json")
    assert status == 200
    topics = {topic["topic_name"]: topic for topic in json.loads(answer)["topics"]}
    for topic in topics.values():
        topic["channels"] = {channel["channel_name"]: channel for channel in topic["channels"]}
    return topics


async def stored(nsqd: Nsqd, topic: str) -> int:
    # Without a channel, the topic holds them; `message_count` begins anew when nsqd does.
    return int((await stats(nsqd)).get(topic, {"depth": 0})["depth"])


async def bodies(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    """The bodies of a topic, once there are so many, from a channel that is made now."""
    await until(lambda: _at_least(nsqd, topic, count))
    count = await stored(nsqd, topic)
    async with await nsqd.connect() as client:
        await client.sub(topic, "look", rdy=2500)
        found = []
        for _ in range(count):
            message = await client.message()
            client.fin(message)
            found.append(message.body)
        await client.caught_up()
    return found


async def _at_least(nsqd: Nsqd, topic: str, count: int) -> bool:
    return await stored(nsqd, topic) >= count


async def is_drained(nsqd: Nsqd, channel: str = "nsq_to_nsq") -> bool:
    found = (await stats(nsqd))["t"]["channels"][channel]
    return found["depth"] + found["in_flight_count"] + found["deferred_count"] == 0


async def publish(nsqd: Nsqd, *published: bytes, topic: str = "t") -> None:
    """To a topic that has the channel of nsq_to_nsq."""
    await nsqd.post(f"/topic/create?topic={topic}")
    await nsqd.post(f"/channel/create?topic={topic}&channel=nsq_to_nsq")
    async with await nsqd.connect() as client:
        await client.mpub(topic, published)


# ---- scripted nsqds


async def test_messages_are_finished_only_after_the_destination_has_answered() -> None:
    async with ScriptedNsqd() as source, ScriptedNsqd() as destination:
        held: list[Peer] = []
        destination.handlers["MPUB"] = held.append
        with start(source.address, destination.address):
            peer = await source.peer()
            await peer.until("RDY 200")
            assert peer.identify["user_agent"].startswith("nsq_to_nsq/1.3.0 nsquark/")
            peer.send(b"".join(message_frame(b"%016x" % number) for number in range(3)))
            await until(lambda: held)
            await asyncio.sleep(0.2)  # long enough for a FIN that comes too early
            assert not [command for command in peer.commands if command.startswith(("FIN", "REQ"))]
            assert held[0].commands == ["IDENTIFY", "MPUB t"]
            assert held[0].identify["user_agent"].startswith("nsq_to_nsq/1.3.0 nsquark/")
            held[0].respond()
            await peer.expect(*(f"FIN {number:016x}" for number in range(3)))


async def test_a_destination_that_is_not_there_requeues_and_backs_off() -> None:
    async with ScriptedNsqd() as source:
        with start(source.address, "127.0.0.1:1") as program:
            peer = await source.peer()
            await peer.until("RDY 200")
            peer.push(1, attempts=1)
            peer.push(2, attempts=3)
            # RDY 0 goes before the REQs; the delay is 90 seconds for each attempt. Where the two messages
            # arrive in two reads, two attempts to connect are under way at once, and either may fail first.
            await peer.expect("RDY 0")
            assert {await peer.next(), await peer.next()} == {f"REQ {1:016x} 90000", f"REQ {2:016x} 270000"}
            assert await asyncio.to_thread(program.stop) == 0
            assert program.lines[-1].endswith(" 0 messages forwarded, 2 requeued")


async def test_one_message_that_is_refused_is_found_among_others_and_holds_up_none() -> None:
    async with ScriptedNsqd() as source, ScriptedNsqd() as destination:

        def refuse_bad(peer: Peer) -> None:
            if b"bad" in peer.bodies[-1]:
                peer.fail(b"E_BAD_MESSAGE it does not say why")
                peer.writer.close()
            else:
                peer.respond()

        destination.handlers["MPUB"] = destination.handlers["PUB"] = refuse_bad
        with start(source.address, destination.address) as program:
            peer = await source.peer()
            await peer.until("RDY 200")
            for number in range(20):
                peer.push(number, b"bad" if number == 7 else b"good")
            answers = {await peer.next() for _ in range(20)}
            fins = {f"FIN {number:016x}" for number in range(20) if number != 7}
            assert answers == fins | {f"REQ {7:016x} 90000"}
            assert await asyncio.to_thread(program.stop) == 0
            assert program.lines[-1].endswith(" 19 messages forwarded, 1 requeued")


@pytest.mark.parametrize(
    "said",
    [b"garbage that is no frame", frame(0, b"OK") * 3, frame(7, b"?")],
    ids=["no frame", "three answers to one question", "an unknown frame"],
)
async def test_answers_that_are_none_of_nsqds_requeue(said: bytes) -> None:
    async with ScriptedNsqd() as source, ScriptedNsqd() as destination:
        destination.handlers["MPUB"] = lambda peer: peer.send(said)
        with start(source.address, destination.address) as program:
            peer = await source.peer()
            await peer.until("RDY 200")
            peer.send(message_frame(b"%016x" % 1) + message_frame(b"%016x" % 2))
            await peer.expect("RDY 0", f"REQ {1:016x} 90000", f"REQ {2:016x} 90000")
            assert await asyncio.to_thread(program.stop) == 0


@pytest.mark.parametrize("ending", ["hangs up", "refuses"])
async def test_an_outcome_that_is_no_ok_requeues(ending: str) -> None:
    async with ScriptedNsqd() as source, ScriptedNsqd() as destination:

        def end(peer: Peer) -> None:
            if ending == "refuses":
                peer.fail(b"E_PUB_FAILED PUB failed disk full")
            peer.writer.close()

        destination.handlers["PUB"] = end
        with start(source.address, destination.address) as program:
            peer = await source.peer()
            await peer.until("RDY 200")
            peer.push(1, b"a secret")
            await peer.expect("RDY 0", f"REQ {1:016x} 90000")
            assert await asyncio.to_thread(program.stop) == 0
            assert not any("secret" in line for line in program.lines)


async def test_a_second_signal_gives_back_what_the_destination_has_not_answered() -> None:
    async with ScriptedNsqd() as source, ScriptedNsqd() as destination:
        held: list[Peer] = []
        destination.handlers["PUB"] = held.append
        with start(source.address, destination.address) as program:
            peer = await source.peer()
            await peer.until("RDY 200")
            peer.push(1)
            await until(lambda: held)
            program.send(signal.SIGINT)
            await peer.until("CLS")
            assert program.process.poll() is None  # it waits for the destination
            program.send(signal.SIGINT)
            await peer.expect(f"REQ {1:016x} 0")
            began = time.monotonic()
            assert await asyncio.to_thread(program.ended) == 0
            assert time.monotonic() - began < 20
            assert program.lines[-1].endswith(" 0 messages forwarded, 0 requeued")


async def test_a_destination_that_stops_reading_loses_nothing() -> None:
    async with ScriptedNsqd() as source, ScriptedNsqd() as destination:
        large = b"x" * (1 << 20)

        async def stall(peer: Peer) -> None:
            await peer.closed.wait()

        destination.handlers["PUB"] = stall
        with start(source.address, destination.address, flags=("--producer-opt=write_timeout,200ms",)):
            peer = await source.peer()
            await peer.until("RDY 200")
            for number in range(30):
                peer.push(number, large)
            requeued = {(await peer.next()).split(" ")[1] for _ in range(31)} - {"0"}
            assert requeued == {f"{number:016x}" for number in range(30)}
            assert not any(command.startswith("FIN") for command in peer.commands)


# ---- real nsqds


async def test_two_destinations_in_round_robin_get_six_of_twelve_each(tmp_path: Path) -> None:
    with (
        Nsqd(tmp_path / "a").start() as source,
        Nsqd(tmp_path / "b").start() as one,
        Nsqd(tmp_path / "c").start() as other,
    ):
        await publish(source, *(b"%d" % number for number in range(12)))
        with start(source.tcp_address, one.tcp_address, other.tcp_address, flags=("--mode=round-robin",)):
            await until(lambda: is_drained(source))
        found = await bodies(one, "t", 6), await bodies(other, "t", 6)
        assert [len(each) for each in found] == [6, 6]
        assert sorted(found[0] + found[1], key=int) == [b"%d" % number for number in range(12)]


async def test_a_message_too_large_for_the_destination_holds_up_no_other(tmp_path: Path) -> None:
    with (
        Nsqd(tmp_path / "a").start() as source,
        Nsqd(tmp_path / "b", "--max-msg-size=1000", "--max-body-size=5000").start() as destination,
    ):
        small = [b"%03d" % number * 100 for number in range(100)]  # more than one MPUB takes
        await publish(source, *small[:50], b"x" * 1001, *small[50:], b"y" * 200_000)
        with start(source.tcp_address, destination.tcp_address) as program:
            found = await bodies(destination, "t", len(small))
            await until(lambda: _deferred(source, 2))
            assert program.stop() == 0
        assert sorted(found) == sorted(small)
        assert not any("backing off" in line for line in program.lines)
        assert program.lines[-1].endswith(f" {len(small)} messages forwarded, 2 requeued")


async def _deferred(nsqd: Nsqd, count: int) -> bool:
    return bool((await stats(nsqd))["t"]["channels"]["nsq_to_nsq"]["deferred_count"] == count)


@pytest.mark.parametrize("mode", ["hostpool", "epsilon-greedy"])
async def test_what_a_dead_destination_could_not_be_sent_goes_to_another(tmp_path: Path, mode: str) -> None:
    with Nsqd(tmp_path / "a").start() as source, Nsqd(tmp_path / "b").start() as alive:
        published = [b"%d" % number for number in range(50)]
        await publish(source, *published)
        with start(
            source.tcp_address, "127.0.0.1:1", alive.tcp_address, flags=(f"--mode={mode}",)
        ) as program:
            await until(lambda: is_drained(source))
            assert program.stop() == 0
        assert sorted(await bodies(alive, "t", 50)) == sorted(published)
        assert program.lines[-1].endswith(" 50 messages forwarded, 0 requeued")


async def test_the_json_flags_answer_every_message(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "a").start() as source, Nsqd(tmp_path / "b").start() as destination:
        await publish(
            source,
            b'{"kind": "x", "n": 9007199254740993, "more": 1}',
            b'{"kind": "y", "n": 2}',
            b'{"n": 3}',
            b"a secret that is no JSON",
            b"[1]",
        )
        flags = ("--require-json-field=kind", "--require-json-value=x")
        flags += ("--whitelist-json-field=n", "--whitelist-json-field=kind")
        with start(source.tcp_address, destination.tcp_address, flags=flags) as program:
            assert await bodies(destination, "t", 1) == [b'{"kind":"x","n":9007199254740993}']
            await until(lambda: _deferred(source, 1))  # the one without the field whose value is required
            assert program.stop() == 0
        assert (await stats(source))["t"]["channels"]["nsq_to_nsq"]["depth"] == 0
        assert program.lines[-1].endswith(" 1 messages forwarded, 1 requeued, 3 left out")
        assert not any("secret" in line for line in program.lines)
        assert any("ERROR: missing field to check required value" in line for line in program.lines)


async def test_several_topics_go_to_their_names_or_to_one(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "a").start() as source, Nsqd(tmp_path / "b").start() as destination:
        await publish(source, b"one")
        await publish(source, b"two", topic="u")
        with start(source.tcp_address, destination.tcp_address, flags=("--topic=u",)):
            assert await bodies(destination, "t", 1) == [b"one"]
            assert await bodies(destination, "u", 1) == [b"two"]
        await publish(source, b"three")
        await publish(source, b"four", topic="u")
        flags = ("--topic=u", "--destination-topic=v")
        with start(source.tcp_address, destination.tcp_address, flags=flags):
            assert sorted(await bodies(destination, "v", 2)) == [b"four", b"three"]


async def test_nsqds_are_found_through_nsqlookupd_also_when_it_comes_later(tmp_path: Path) -> None:
    with Nsqlookupd().start() as lookupd:
        lookupd.kill()
        with Nsqd(tmp_path / "b").start() as destination:
            flags = ("--consumer-opt=lookupd_poll_interval,50ms",)
            with Program(
                "nsq_to_nsq",
                "--topic=t",
                f"--lookupd-http-address={lookupd.http_address}",
                f"--destination-nsqd-tcp-address={destination.tcp_address}",
                *flags,
            ) as program:
                await asyncio.to_thread(program.wait_for_line, "nsqlookupd")
                lookupd.restart()
                source = Nsqd(
                    tmp_path / "a",
                    f"--lookupd-tcp-address={lookupd.tcp_address}",
                    "--broadcast-address=127.0.0.1",
                )
                with source.start():
                    await publish(source, b"found")
                    assert await bodies(destination, "t", 1) == [b"found"]
                    assert program.stop() == 0


async def test_tls_and_compression_are_options_of_both_ends(tmp_path: Path) -> None:
    tls = (
        f"--tls-cert={CERTIFICATE}",
        f"--tls-key={KEY}",
        "--tls-required=true",
        "--https-address=127.0.0.1:0",
    )
    with Nsqd(tmp_path / "a", *tls).start() as source, Nsqd(tmp_path / "b", *tls).start() as destination:
        options = ("tls_v1,true", f"tls_root_ca_file,{CERTIFICATE}")
        flags = [f"--{kind}-opt={option}" for kind in ("consumer", "producer") for option in options]
        flags += ["--consumer-opt=snappy", "--producer-opt=deflate"]
        published = [b"%d" % number * 50 for number in range(100)]
        await _publish_over_tls(source, published)
        with start(source.tcp_address, destination.tcp_address, flags=tuple(flags)) as program:
            await asyncio.to_thread(program.wait_for_line, "connected to t/nsq_to_nsq")
            found = await _consume_over_tls(destination, len(published))
            assert program.stop() == 0
        assert Counter(found) == Counter(published)
        # Without the option, the source refuses it, and that ends it.
        with start(source.tcp_address, destination.tcp_address) as program:
            assert await asyncio.to_thread(program.ended) == 1


def _tls_config() -> Any:
    from nsquark.client import Config

    return Config.from_options(["tls_v1", f"tls_root_ca_file,{CERTIFICATE}", "max_in_flight,100"])


async def _publish_over_tls(nsqd: Nsqd, published: list[bytes]) -> None:
    from nsquark.client import Producer

    async with Producer(nsqd.tcp_address, config=_tls_config()) as producer:
        await producer.publish_many("t", published)


async def _consume_over_tls(nsqd: Nsqd, count: int) -> list[bytes]:
    from nsquark.client import Consumer

    found = []
    async with Consumer("t", "look", nsqd=nsqd.tcp_address, config=_tls_config()) as consumer:
        async for message in consumer:
            found.append(message.body)
            message.finish()
            if len(found) == count:
                break
    return found


# ---- killed and restarted


async def test_killed_and_restarted_again_and_again_it_loses_nothing(tmp_path: Path) -> None:
    kills, each = 4, 15_000
    ledger = [b"%08d" % number for number in range(kills * each)]
    with (
        Nsqd(tmp_path / "a", "--msg-timeout=1s").start() as source,
        Nsqd(tmp_path / "b").start() as destination,
    ):
        # Every program gets its own messages, so that the number of kills does not depend on its speed.
        for first in range(0, len(ledger), each):
            await publish(source, *ledger[first : first + each])
            before = await stored(destination, "t")
            with start(source.tcp_address, destination.tcp_address, flags=("--status-every=0",)) as program:
                await until(lambda start=before: _progress(source, destination, start + 1_000))
                program.kill()
        with start(source.tcp_address, destination.tcp_address, flags=("--status-every=0",)) as program:
            await until(lambda: is_drained(source))
            assert program.stop() == 0
        found = Counter(await bodies(destination, "t", len(ledger)))
        assert found.keys() == set(ledger)
        # What was in flight when it was killed comes again: at most max-in-flight each time.
        assert sum(found.values()) - len(ledger) <= 200 * kills


async def _progress(source: Nsqd, destination: Nsqd, wanted: int) -> bool:
    return await stored(destination, "t") >= wanted or await is_drained(source)


async def test_a_source_that_is_killed_and_restarted_loses_nothing(tmp_path: Path) -> None:
    count = 30_000
    with Nsqd(tmp_path / "a").start() as source, Nsqd(tmp_path / "b").start() as destination:
        ledger = {b"%08d" % number for number in range(count)}
        await publish(source, *sorted(ledger))
        with start(source.tcp_address, destination.tcp_address, flags=("--status-every=0",)) as program:
            await until(lambda: _progress(source, destination, 5_000))
            source.kill()
            source.restart()
            await until(lambda: is_drained(source))
            assert program.stop() == 0
        found = Counter(await bodies(destination, "t", count))
        assert found.keys() == ledger


async def test_a_destination_that_is_killed_and_restarted_loses_nothing(tmp_path: Path) -> None:
    count = 40_000
    with Nsqd(tmp_path / "a").start() as source, Nsqd(tmp_path / "b").start() as destination:
        ledger = {b"%08d" % number for number in range(count)}
        await publish(source, *sorted(ledger))
        flags = (
            "--status-every=0",
            "--consumer-opt=default_requeue_delay,100ms",
            "--consumer-opt=backoff_multiplier,50ms",
        )
        with start(source.tcp_address, destination.tcp_address, flags=flags) as program:
            for wanted in (5_000, 15_000, 25_000):
                await until(lambda wanted=wanted: _progress(source, destination, wanted))
                destination.kill()
                destination.restart()
            await until(lambda: is_drained(source))
            assert program.stop() == 0
        found = Counter(await bodies(destination, "t", count))
        assert found.keys() == ledger


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_stops_within_a_second_and_says_what_it_has_done(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Nsqd(tmp_path / "a").start() as source, Nsqd(tmp_path / "b").start() as destination:
        await publish(source, *(b"%d" % each for each in range(20_000)))
        with start(source.tcp_address, destination.tcp_address) as program:
            await until(lambda: _at_least(destination, "t", 1000))
            began = time.monotonic()
            assert program.stop(number) == 0
            assert time.monotonic() - began < 20  # one second, not on a machine that has something else to do
        forwarded = await stored(destination, "t")
        assert program.lines[-1].endswith(f" {forwarded} messages forwarded, 0 requeued")
        channel = (await stats(source))["t"]["channels"]["nsq_to_nsq"]
        assert channel["depth"] == 20_000 - forwarded
        assert channel["in_flight_count"] == 0
