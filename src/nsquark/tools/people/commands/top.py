"""`nsquark top`: topics and channels, live, in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

import click

from nsquark.errors import NsquarkError

from ..cluster.figures import add_up
from ..cluster.nsqds import Cluster
from ..failures import Failure
from ..flags.options import SECONDS, TOPIC, Command, connecting
from ..flags.settings import Settings
from ..running import run
from ..top_view import TopView

_SLOWEST_OLDEST = 2.0  # seconds at least between two questions for the oldest messages


@click.command("top", cls=Command)
@click.argument("topic", type=TOPIC, required=False)
@click.option("--every", type=SECONDS, default=1.0, metavar="DURATION", help="Between two looks (1s).")
@connecting
def command(topic: str | None, every: float, settings: Settings) -> None:
    """Watch topics and channels, or those of a TOPIC: rates, depth, in flight, timeouts, the oldest message.

    \b
    in/s      messages published to a topic, or passed on to a channel, a second
    out/s     messages that a channel has finished, a second
    oldest    age of the oldest message that a channel has not finished
              (nsquark's nsqd only)

    Keys: arrows or j and k, page up and down; s sorts by name, depth or rate; q ends.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("top needs a terminal; `nsquark stat` prints the same once, with --json for scripts")
    top = Top(Cluster(settings), topic, max(every, 0.1))
    run(top.run(), lambda: "stopped")


class Top:
    def __init__(self, cluster: Cluster, topic: str | None, every: float) -> None:
        self._cluster = cluster
        self._topic = topic
        self._every = every
        self._view = TopView(topic)
        self._changed = asyncio.Event()
        self._ended = False
        # On the screen, not on stderr, which is the same terminal.
        cluster.trouble = self._view.trouble  # type: ignore[method-assign]

    async def run(self) -> None:
        """Until q. The first look happens before the screen is taken: what fails then is one line."""
        await self._look()
        from rich.live import Live

        from ..output import console

        loop = asyncio.get_running_loop()
        screen = console()
        with contextlib.suppress(ValueError):
            loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        with _keys(), Live(console=screen, screen=True, auto_refresh=False) as live:
            loop.add_reader(0, self._on_key)
            looking = asyncio.create_task(self._keep_looking())
            oldest = asyncio.create_task(self._keep_asking_for_oldest())
            try:
                while not self._ended:
                    self._changed.clear()
                    live.update(self._view.render(screen.size.width, screen.size.height), refresh=True)
                    await self._changed.wait()
            finally:
                loop.remove_reader(0)
                for task in (looking, oldest):
                    task.cancel()
                await asyncio.gather(looking, oldest, return_exceptions=True)

    async def _look(self) -> None:
        nsqds = await self._cluster.nsqds(self._topic)
        topics = add_up(await self._cluster.stats(nsqds, self._topic))
        if self._topic is not None and self._topic not in topics:
            raise Failure(f"there is no topic {self._topic!r}")
        self._view.take(topics, len(nsqds), asyncio.get_running_loop().time())

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._every
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due + self._every, loop.time())
            self._view.forget_troubles()
            try:
                await self._look()
            except NsquarkError as error:
                self._view.trouble(error)
            self._changed.set()

    async def _keep_asking_for_oldest(self) -> None:
        while True:
            await self._view.ask_for_oldest()
            self._changed.set()
            await asyncio.sleep(max(_SLOWEST_OLDEST, self._every))

    def _on_key(self) -> None:
        keys = os.read(0, 64)
        if not keys or b"q" in keys or b"\x03" in keys or b"\x04" in keys:
            self._ended = True
        else:
            self._view.key(keys)
        self._changed.set()


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Keys come one by one and are not shown. Ctrl-C is still a signal."""
    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
