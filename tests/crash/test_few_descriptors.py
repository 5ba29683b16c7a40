"""More topics than descriptors, tiny segments and a disk that refuses now and then, until a SIGKILL.

Files are closed and opened again between two writes, while opening, writing, syncing or renaming fails, and
while topics are deleted. Nothing that was answered may be lost, and nothing that is finished may come again.
"""

from __future__ import annotations

import errno
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reliability.disk.wire import Wire
from reliability.shim import Fault, NoCompiler, Shim
from tests.daemon import Nsqd, pub, until

TOPICS = 150
LIVES = 6
LOAD = 0.5  # seconds of each life
# nsqd with few descriptors. Journals are compacted all the time.
START = """
import resource, sys
import nsquark.log.journal.journal as journal
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
journal.COMPACT_FROM, journal.COMPACT_GROWTH = 300, 1
from nsquark.nsqd.__main__ import main
sys.exit(main())
"""
ERRORS = {
    "open": (errno.EMFILE, errno.ENFILE, errno.EIO),
    "write": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO, errno.ENOSPC),
    "truncate": (errno.EIO,),
    "rename": (errno.EIO,),
    "unlink": (errno.EIO,),
}
FILES = ("topics/*/[0-9]*", "topics/*/journal.*", "topics/*", "nsqd.dat*", "*")


@dataclass
class Messages:
    """What was answered OK and is owed, and what is finished for certain, by topic."""

    owed: dict[str, set[bytes]] = field(default_factory=dict)
    finished: dict[str, set[bytes]] = field(default_factory=dict)
    number: int = 0

    def body(self, chance: random.Random) -> bytes:
        self.number += 1
        return b"%d|" % self.number + bytes(chance.choice((5, 50, 400)))

    def forget(self, topic: str) -> None:
        """The topic is deleted, or may be."""
        self.owed.pop(topic, None)
        self.finished.pop(topic, None)


def refuse_something(shim: Shim, chance: random.Random) -> None:
    faults = []
    for _ in range(chance.choice((1, 1, 2))):
        call = chance.choice(list(ERRORS))
        faults.append(
            Fault(
                call,
                chance.choice(FILES),
                chance.choice(ERRORS[call]),
                skip=chance.choice((0, 0, 3)),
                times=chance.choice((1, 3, -1)),
            )
        )
    shim.refuse(*faults)


def publish(wire: Wire, messages: Messages, chance: random.Random) -> Wire:
    """Publish to some topics at once; returns the connection for what comes next."""
    batch = [
        (f"t{chance.randrange(TOPICS)}", messages.body(chance)) for _ in range(chance.choice((1, 4, 20)))
    ]
    wire.send(b"".join(pub(topic, body) for topic, body in batch))
    for topic, body in batch:
        answer = wire.frame()
        assert answer is not None, "a publish has no answer"
        if answer[0] == 1:  # the connection ends with it
            wire.close()
            return Wire(wire.port)
        messages.owed.setdefault(topic, set()).add(body)
    return wire


def finish(wire: Wire, ids: list[bytes]) -> None:
    """FIN these, and return when the journal has them."""
    wire.send(b"".join(b"FIN %b\n" % each for each in ids))
    for _ in range(2):  # the second answer comes in a later turn than the FINs
        wire.send(b"TOUCH ................\n")
        while (frame := wire.frame()) is not None and frame[0] != 1:
            pass
        assert frame is not None
        assert frame[1].startswith(b"E_TOUCH_FAILED"), frame


def check(port: int, topic: str, messages: Messages, chance: random.Random) -> None:
    """What is owed is delivered, what is finished is not, and most of it is finished now."""
    wire = Wire(port)
    assert wire.ask(f"SUB {topic} c\n".encode()) == "OK"
    wire.send(b"RDY 2500\n")
    missing = set(messages.owed.get(topic, ()))
    finished = messages.finished.setdefault(topic, set())
    delivered = []
    while missing:
        message = wire.message(20.0)
        assert message is not None, f"lost of {topic}: {sorted(missing)[:3]}"
        assert message[1] not in finished, f"finished, and came again: {message[1][:20]!r}"
        missing.discard(message[1])
        delivered.append(message)
    done = [each for each in delivered if chance.random() < 0.8]
    finish(wire, [message_id for message_id, _ in done])
    finished.update(body for _, body in done)
    messages.owed.get(topic, set()).difference_update(finished)
    wire.close()


async def delete(nsqd: Nsqd, topic: str, messages: Messages) -> None:
    status, _ = await nsqd.http("POST", f"/topic/delete?topic={topic}")
    if status != 404:
        messages.forget(topic)


async def healthy(nsqd: Nsqd) -> bool:
    return (await nsqd.http("GET", "/ping"))[0] == 200


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_while_files_are_closed_and_opened_again(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = tmp_path / "data"
    data.mkdir()
    messages = Messages()
    for life in range(LIVES):
        try:
            shim = Shim(data, fsync_us=chance.choice((0, 2000)), record=False)
        except NoCompiler as error:
            pytest.skip(str(error))
        shim.refuse()
        nsqd = Nsqd(
            data,
            f"--max-bytes-per-file={chance.choice((300, 1000, 5000))}",
            f"--sync-every={chance.choice((1, 5, 2500))}",
            f"--sync-timeout={chance.choice((20, 200, 2000))}ms",
            "--mem-queue-size=10",
        )
        nsqd.program = shim.command([sys.executable, "-c", START])
        with nsqd.start():
            for topic in chance.sample(sorted(messages.owed), min(10, len(messages.owed))):
                check(nsqd.tcp_port, topic, messages, chance)
            wire = Wire(nsqd.tcp_port)
            end = time.monotonic() + LOAD
            while time.monotonic() < end:
                if chance.random() < 0.1:
                    refuse_something(shim, chance)
                elif chance.random() < 0.1:
                    shim.refuse()
                if chance.random() < 0.05:
                    await delete(nsqd, f"t{chance.randrange(TOPICS)}", messages)
                wire = publish(wire, messages, chance)
            if life % 2:  # it recovers by itself
                shim.refuse()
                await until(lambda nsqd=nsqd: healthy(nsqd), within=30)
            wire.close()
            assert not [line for line in nsqd.lines if "Traceback" in line]
    assert messages.number > 20 * LIVES
