"""Which lines of the code under test the inputs of a target reach, and the fewest inputs that reach them all.

    python -m reliability.fuzz.coverage [TARGET …] [--folder DIR] [--keep]

Runs with the kernel in plain Python, and traces only the modules that a target names. `--keep` makes the
repository's corpus of the smallest inputs, of those in the folder and in the corpus, that reach what all do.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from nsquark import kernel

from .replay import inputs_of
from .target import CORPUS, NAMES, Target, load, silence

LARGEST_KEPT = 2048  # bytes of an input in the repository's corpus
MOST_KEPT = 20_000  # bytes of a target's corpus there
Step = tuple[str, int, int]  # a file, and a line that follows another one


class Tracer:
    """Gathers the steps from line to line in some files."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
        self.steps: set[Step] = set()

    def run(self, target: Target, data: bytes) -> set[Step]:
        """The steps that an input takes."""
        self.steps = set()
        sys.settrace(self._call)
        try:
            target.run(data)
        finally:
            sys.settrace(None)
        return self.steps

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self._files:
            return None
        last = 0

        def line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            self.steps.add((name, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line


def lines_of(code: CodeType) -> Iterator[int]:
    """The lines of functions. Those of modules and classes run when they are imported."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield from {
                    line for _, _, line in constant.co_lines() if line and line > constant.co_firstlineno
                }
            yield from lines_of(constant)


def measure(target: Target, inputs: list[bytes]) -> tuple[int, int, list[bytes]]:
    """How many lines the inputs reach, of how many, and the inputs that are enough for all steps."""
    modules = [importlib.import_module(each) for each in target.modules]
    files = [str(each.__file__) for each in modules]
    total = {
        (each, line) for each in files for line in lines_of(compile(Path(each).read_text(), each, "exec"))
    }
    tracer, seen, enough = Tracer(files), set[Step](), []
    for data in sorted(inputs, key=len):
        steps = tracer.run(target, data)
        if not steps <= seen:
            seen |= steps
            enough.append(data)
    reached = {(name, line) for name, _, line in seen} & total
    return len(reached), len(total), enough


def keep(name: str, inputs: list[bytes]) -> None:
    """Make these the corpus of a target. Files with a name of words have found a fault once: they stay."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if re.fullmatch("[0-9a-f]{16}", path.name):
            path.unlink()
    have = {path.read_bytes() for path in folder.iterdir()}
    size = 0
    for data in inputs:
        size += len(data)
        if data not in have and len(data) <= LARGEST_KEPT and size <= MOST_KEPT:
            (folder / hashlib.blake2b(data, digest_size=8).hexdigest()).write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzz.coverage", description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(NAMES))
    parser.add_argument("--folder", type=Path, action="append", default=[], help="more inputs, by target")
    parser.add_argument("--keep", action="store_true", help="make the corpus of the inputs that are enough")
    given = parser.parse_args()
    if kernel.COMPILED:
        sys.exit("compiled modules cannot be traced: set NSQUARK_PURE=1")
    for name in given.targets:
        target = load(name)
        seeds = set(target.seeds())
        reached, total, enough = measure(target, inputs_of(target, given.folder))
        if given.keep:
            keep(name, [data for data in enough if data not in seeds])
        print(f"{name:<14} {reached:>5} of {total:>5} lines, {len(enough)} inputs", flush=True)


if __name__ == "__main__":
    silence()
    main()
