"""A target of fuzzing, and what all targets share."""

from __future__ import annotations

import hashlib
import importlib
import logging
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

CORPUS = Path(__file__).parent / "corpus"


class Wrong(AssertionError):
    """An oracle does not hold: the input has found a fault."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """`run` feeds one input and returns what was understood of it; both kernels must return the same.

    `run` raises Wrong where an oracle does not hold, and whatever the code under test raises where no error
    of that kind is documented.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    modules: tuple[str, ...]  # the code under test, whose coverage is reported
    words: tuple[bytes, ...] = ()  # that mutations insert
    repair: Callable[[bytes], bytes] | None = None  # makes lengths and checksums right again
    max_length: int = 4096


# In the order in which they run. A module is imported when its target is asked for: some need pyspark.
NAMES = (
    "commands",
    "protocol",
    "lookup",
    "identify",
    "frames",
    "http_requests",
    "http_answers",
    "http_routes",
    "streams",
    "kernel",
    "segments",
    "journals",
    "metadata",
    "stages",
    "diskqueues",
    "options",
    "columns",
    "replica_stream",
    "etcd_answers",
    "tls_records",
)


def load(name: str) -> Target:
    """The target of this name. Raises ImportError where a library is missing that it needs."""
    return cast(Target, importlib.import_module(f"reliability.fuzz.targets.{name}").TARGET)


def silence() -> None:
    """For a process that does nothing but fuzz: what is wrong with each input need not be told."""
    logger = logging.getLogger("nsquark")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


def corpus_of(name: str) -> list[bytes]:
    """The inputs that the repository keeps for a target, in the order of their names."""
    folder = CORPUS / name
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def digest(seen: object) -> str:
    """A short form of what a target has returned, to be compared between processes."""
    return hashlib.blake2b(repr(seen).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()


def require_same(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise Wrong(f"{what}:\n  {expected!r}\n  {found!r}")


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def pieces_of(data: bytes) -> list[bytes]:
    """The data in pieces of uneven lengths, the same for the same data."""
    chance = random.Random(zlib.crc32(data))
    pieces, at = [], 0
    while at < len(data):
        size = chance.choice((1, 2, 3, 5, 17, 60, 300))
        pieces.append(data[at : at + size])
        at += size
    return pieces


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder for one input, in memory where the system has such."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        yield Path(path)
