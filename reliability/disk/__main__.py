"""`python -m reliability.disk`: a disk that refuses calls on some files, and files that are damaged.

Prints a table: what was refused or damaged, what nsqd said, and what was kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .damage import KINDS, Original, try_damage
from .refusals import Trial, every_refusal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability.disk", description=__doc__)
    parser.add_argument("--only", default="", help="refusals and damages with this in their name")
    parser.add_argument(
        "--flips", type=int, default=20, help="bits to flip in each kind of file (default 20)"
    )
    parser.add_argument("--seed", type=int, default=1, help="chooses the bits (default 1)")
    given = parser.parse_args(arguments)
    faults = 0
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="nsquark-disk-", dir=memory) as folder:
        _print(("refused", "calls", "answers", "/ping", "delivered", "recovered in", "afterwards"))
        for number, refusal in enumerate(every_refusal()):
            if given.only in str(refusal):
                outcome = Trial(refusal, Path(folder) / str(number)).run()
                faults += len(outcome.faults)
                _print(outcome.row)
        damages = [kind for kind in KINDS if given.only in kind]
        if damages:
            original = Original(Path(folder) / "original")
            _print(("damaged", "times", "starts", "told", "lost", "afterwards"))
        for kind in damages:
            damaged = try_damage(kind, original, Path(folder), given.flips, given.seed)
            faults += len(damaged.faults)
            _print(damaged.row)
    print(f"{faults} faults")
    return 1 if faults else 0


def _print(row: Sequence[str]) -> None:
    print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
