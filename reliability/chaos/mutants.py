"""nsqds with a fault on purpose, which prove that the checker sees it.

`python -m reliability.chaos.mutants NAME`: NAME is one of `MUTANTS`, and nsqd's flags follow. The modules
run uncompiled, so that their methods can be replaced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsquark.nsqd.core.answers import Receipt


def answer_early() -> None:
    """Publishes are answered when the primary itself has them, whichever other member may lead."""
    from nsquark.nsqd.replica.automaton.commit_rule import CommitRule

    def local(self: CommitRule) -> int:
        return self.local

    CommitRule.committed = local  # type: ignore[method-assign]


def deliver_early() -> None:
    """Channels and readers get what the primary itself has. Publishes are answered as they should be."""
    from nsquark.nsqd.core.topic import Topic

    wait_for_copies = Topic._wait_for_copies

    def show_at_once(self: Topic, receipts: list[Receipt]) -> None:
        wait_for_copies(self, receipts)
        self.copied = self.log.end
        self._show()

    Topic._wait_for_copies = show_at_once  # type: ignore[method-assign]


def do_not_fence() -> None:
    """A primary that has lost its right goes on."""
    from nsquark.nsqd.replica.automaton.automaton import Automaton

    def go_on(self: Automaton) -> None:
        if self.leading is not None:
            self.leading.fault = ""

    Automaton._fence_if_faulty = go_on  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "answer-early": answer_early,
    "deliver-early": deliver_early,
    "do-not-fence": do_not_fence,
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
