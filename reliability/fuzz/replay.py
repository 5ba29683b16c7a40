"""Replays inputs through a target with the kernel of this process, without atheris.

`python -m reliability.fuzz.replay` prints a line of JSON for each target: how many inputs, a digest of what
was understood of each, and the first fault. Two processes, one for each kernel, must print the same.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from nsquark import kernel

from .mutator import mutations
from .target import NAMES, Target, corpus_of, digest, load, silence

HANGS = 60.0  # seconds for one input, on a machine that has something else to do
SLOW = 10.0  # processor seconds for one input of a few kilobytes


def inputs_of(target: Target, folders: Iterable[Path]) -> list[bytes]:
    """The seeds, the corpus of the repository, and the files of other folders."""
    found = [*target.seeds(), *corpus_of(target.name)]
    for folder in folders:
        found += [path.read_bytes() for path in sorted((folder / target.name).glob("*")) if path.is_file()]
    return list(dict.fromkeys(found))


def replay(target: Target, inputs: Iterable[bytes]) -> Iterator[tuple[bytes, str]]:
    """(input, digest) of each. Raises what the target raises, with the input in a note."""
    for data in inputs:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        began = time.process_time()
        try:
            seen = digest(target.run(data))
        except Exception as error:
            error.add_note(f"input of {target.name}: {data!r}")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
        took = time.process_time() - began
        if took > SLOW:
            raise AssertionError(f"{took:.1f} s for an input of {target.name}: {data!r}")
        yield data, seen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzz.replay")
    parser.add_argument("targets", nargs="*", default=list(NAMES))
    parser.add_argument("--mutations", type=int, default=0, help="inputs to make for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, action="append", default=[], help="more inputs, by target")
    given = parser.parse_args()
    failed = False
    for name in given.targets:
        target = load(name)
        inputs = inputs_of(target, given.folder)
        made = mutations(target, inputs, given.seed, given.mutations)
        line: dict[str, object] = {"target": name, "kernel": kernel.KERNEL}
        seen: list[str] = []
        began = time.process_time()
        try:
            for _, each in replay(target, chain(inputs, made)):
                seen.append(each)
        except Exception:
            line["fault"] = traceback.format_exc()
            failed = True
        line |= {"inputs": len(seen), "seconds": round(time.process_time() - began, 3), "seen": seen}
        print(json.dumps(line), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    silence()
    main()
