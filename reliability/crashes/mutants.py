"""nsqds with a fault on purpose, which prove that the checker sees it.

`python -m reliability.crashes.mutants NAME`: NAME is one of `MUTANTS`, and nsqd's flags follow. The modules
run uncompiled, so that their methods can be replaced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def answer_before_write() -> None:
    """Publishers get their OK at once. The log is written later: about always, a crash comes before."""
    from nsquark.nsqd.core.answers import settle_all
    from nsquark.nsqd.core.topic import Topic

    commit = Topic.commit

    def answer(self: Topic) -> None:
        if self.log.writer.count and not self.exiting:
            settle_all(self.pending.take_receipts())
            self._services.loop.call_later(0.5, commit, self)

    Topic.commit = answer  # type: ignore[method-assign]


def forget_journal_records() -> None:
    """Every third record of what was finished is missing in the journal."""
    from nsquark.log import JournalRecords

    finish = JournalRecords.finish
    calls = 0

    def forget(self: JournalRecords, number: int, start: int, end: int) -> None:
        nonlocal calls
        calls += 1
        if calls % 3:
            finish(self, number, start, end)

    JournalRecords.finish = forget  # type: ignore[method-assign]


def reuse_ids() -> None:
    """Each process begins with the first block of ids again."""
    from nsquark.nsqd.storage.node import STRETCH, Node

    begin = Node.__init__

    def begin_again(self: Node, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        self._next, self._until = 0, STRETCH

    Node.__init__ = begin_again  # type: ignore[method-assign, assignment]


def deliver_early() -> None:
    """Deferred messages are due in a tenth of their time."""
    from nsquark.nsqd.core.topic import Topic

    publish = Topic.publish

    def hurry(self: Topic, bodies: list[bytes], defer: float, receipt: object) -> None:
        publish(self, bodies, defer / 10, receipt)  # type: ignore[arg-type]

    Topic.publish = hurry  # type: ignore[method-assign, assignment]


def publish_batches_twice() -> None:
    """A staged batch is stored, and then stored again."""
    from nsquark.nsqd.staged.publication import Publication

    run = Publication.run

    async def run_twice(self: Publication) -> None:
        await run(self)
        for name, share in self.intent.shares.items():
            share.first_id = self._topics[name].log.reserve_ids(share.count)
            share.stored = type(share.stored)()
        await run(self)

    Publication.run = run_twice  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "answer-before-write": answer_before_write,
    "forget-journal-records": forget_journal_records,
    "reuse-ids": reuse_ids,
    "deliver-early": deliver_early,
    "publish-batches-twice": publish_batches_twice,
}


def become(name: str) -> None:
    """Put the fault into the modules of this process. Nothing of nsquark may be imported before."""
    os.environ["NSQUARK_PURE"] = "1"
    MUTANTS[name]()


def main() -> int:
    name = sys.argv.pop(1)
    become(name)
    from nsquark.nsqd import __main__ as nsqd

    return nsqd.main()


if __name__ == "__main__":
    sys.exit(main())
