"""A million messages through each utility, which is killed with SIGKILL and started again on the way.

Every message is one of its kind and says what it must be, so that a message which is lost or changed is
found, and a message which comes twice is counted. A utility that is killed has messages in flight that it has
delivered and not finished; nsqd sends these again, so that up to --max-in-flight of them come twice for each
kill. to_nsq is started again with its input from where nsqd says that it had come to: what it stores is a
beginning of its input, and none may come twice.
"""

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from programs import TOOLS, Job, Place, ended, ours, place

from nsquark.client import Config, Consumer

SETTLED = 0.5  # seconds without a change after which nsqd has read all that a dead client had sent


def body(number: int) -> bytes:
    """The message of a number: the number, and a digest of it, of a length that differs."""
    text = b"%09d" % number
    return text + b" " + hashlib.blake2b(text).hexdigest()[: 20 + number % 80].encode()


class Ledger:
    """The messages that have arrived."""

    def __init__(self, count: int) -> None:
        self._times = bytearray(count)
        self.changed = 0

    def add(self, message: bytes) -> None:
        number = int(message[:9]) if message[:9].isdigit() else -1
        if not 0 <= number < len(self._times) or message != body(number):
            self.changed += 1
        elif self._times[number] < 255:
            self._times[number] += 1

    @property
    def lost(self) -> int:
        return self._times.count(0)

    @property
    def duplicates(self) -> int:
        return sum(self._times) + self.lost - len(self._times)


def main() -> int:
    options = parse()
    failed = False
    for tool in options.only:
        command = ours(tool)
        if command is None:
            print(f"{tool} is not there: left out", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="tools-million-") as folder:
            failed |= not forward(tool, command, Path(folder), options)
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument("--max-in-flight", type=int, default=200)
    parser.add_argument("--smoke", action="store_true", help="a moment of each: does it all still run?")
    options = parser.parse_args()
    if options.smoke:
        options.count, options.kills = 20_000, 2
    return options


def forward(tool: str, command: list[str], folder: Path, options: argparse.Namespace) -> bool:
    """Forward all messages, and tell what became of them. True if none is lost or changed."""
    count, kills = options.count, options.kills
    lines, kept = folder / "lines", folder / "kept"
    with lines.open("wb") as file:
        file.writelines(body(number) + b"\n" for number in range(count))
    output = folder / "output"
    output.mkdir()
    with place(Path(sys.executable).parent / "nsqd", [], output, kept) as here:
        job = Job(tool, "million", here, options.max_in_flight)
        job.prepare(lines)
        began = time.monotonic()
        killed = run(job, command, lines, count, kills)
        seconds = time.monotonic() - began
        ledger = Ledger(count)
        for message in arrived(job) if tool in ("to_nsq", "nsq_to_nsq") else ():
            ledger.add(message)
    # The HTTP server has written all that it was sent when it has ended.
    for message in kept_lines(tool, kept, output):
        ledger.add(message)
    allowed = 0 if tool == "to_nsq" else killed * options.max_in_flight
    good = not ledger.lost and not ledger.changed and ledger.duplicates <= allowed
    print(
        f"{tool}: {count:,} messages in {seconds:.1f} s, killed {killed} times: {ledger.lost} lost,"
        f" {ledger.changed} changed, {ledger.duplicates} twice"
        f" (at most {allowed} were in flight when it was killed){'' if good else ': FAILED'}",
        flush=True,
    )
    return good


def run(job: Job, command: list[str], lines: Path, count: int, kills: int) -> int:
    """Forward all; return how often the utility was killed in the middle."""
    killed = 0
    for number in range(1, kills + 2):
        wanted = count * number // (kills + 1)
        stdin = beginning(job, lines, count) if job.tool == "to_nsq" else None
        process = job.start(command, stdin)
        if stdin is not None:
            stdin.close()
        try:
            for _ in job.wait(process, count, wanted):
                pass
            if wanted < count:
                killed += process.poll() is None
                process.kill()
            elif job.tool != "to_nsq":
                process.terminate()
        except BaseException:
            process.kill()
            raise
        finally:
            ended(process)
    return killed


def beginning(job: Job, lines: Path, count: int) -> IO[bytes]:
    """The file of lines, after those that nsqd has stored."""
    stored, since = job.forwarded(count), time.monotonic()
    while time.monotonic() < since + SETTLED and stored:
        time.sleep(0.02)
        if (now := job.forwarded(count)) != stored:
            stored, since = now, time.monotonic()
    with lines.open("rb") as read:
        offset = sum(map(len, islice(read, stored)))
    file = lines.open("rb", buffering=0)  # the utility reads on from here, through the same descriptor
    file.seek(offset)
    return file


def arrived(job: Job) -> Iterable[bytes]:
    """The bodies of the topic at the destination."""
    return asyncio.run(consume(job.place, job.topic))


async def consume(here: Place, topic: str) -> list[bytes]:
    depth = here.stats(here.destination, topic)["depth"]
    bodies: list[bytes] = []
    config = Config(max_in_flight=2500)
    address = f"127.0.0.1:{here.destination.port}"
    async with Consumer(topic, "look", nsqd=address, config=config) as consumer:
        while len(bodies) < depth:
            for message in await consumer.take(2500):
                bodies.append(message.body)
                message.finish()
    return bodies


def kept_lines(tool: str, kept: Path, output: Path) -> Iterator[bytes]:
    """The bodies that the HTTP server was sent, or that were written into files."""
    files = {"nsq_to_http": [kept], "nsq_to_file": sorted(output.rglob("million.*.log"))}.get(tool, [])
    for path in files:
        with path.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")


if __name__ == "__main__":
    sys.exit(main())
