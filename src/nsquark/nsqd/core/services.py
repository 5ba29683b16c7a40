"""What the core needs of the process around it: the broker provides it, and tests provide their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from nsquark.log import Store
from nsquark.nsqd.options import Options
from nsquark.nsqd.stats.health import WRITE, Thing
from nsquark.nsqd.storage.disk_reads import DiskReads
from nsquark.nsqd.storage.node import Node
from nsquark.nsqd.storage.syncer import Syncer

from .commit_gate import CommitGate
from .timers import Timers
from .turn import Turn

if TYPE_CHECKING:
    from .dead_letters import DeadLetters
    from .topic import Topic


class Services(Protocol):
    """The broker as its topics see it."""

    options: Options
    node: Node
    turn: Turn
    timers: Timers  # by the monotonic clock
    due_timers: Timers  # by the clock that counts from the epoch
    syncer: Syncer
    reads: DiskReads
    dead_letters: DeadLetters
    segment_store: Store | None  # where segments are that only the archive has
    gate: CommitGate | None  # where other members of a replica group must have what is published
    loop: asyncio.AbstractEventLoop
    topics: dict[str, Topic]
    problems: dict[Thing, str]
    """What is wrong with the process: the same dictionary all the time."""

    def healthy(self, what: Thing = WRITE) -> None: ...
    def unhealthy(self, reason: str, what: Thing = WRITE) -> None: ...
    def changed(self, ephemeral: bool) -> None: ...
    def announce(self, topic: str, channel: str = "") -> None: ...
    def trim_files(self, topic: Topic) -> None: ...
    def topic(self, name: str) -> Topic: ...
    def delete_topic(self, name: str) -> None: ...
