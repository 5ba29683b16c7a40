"""The archive that the members share, when no member runs any more: each object is what its name tells."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from pathlib import Path

FOLDER = "store"
SEGMENT = 64 << 10  # bytes of a file, so that a short run has many


def faults(store: Path, data_path: Path) -> list[str]:
    """What is wrong with the objects, or with those that the records of a member name."""
    found = []
    objects = list(store.rglob("*.log"))
    of_one_file: dict[tuple[Path, str, str], list[str]] = defaultdict(list)
    for path in objects:
        first, _, rest = path.name.split("-")
        crc, _, term = rest.removesuffix(".log").partition(".")
        of_one_file[path.parent, first, term].append(path.name)
        data = path.read_bytes()
        if zlib.crc32(data) != int(crc, 16):
            found.append(f"{path} has {len(data)} bytes of CRC {zlib.crc32(data):08x}")
    for names in of_one_file.values():
        if len(names) > 1:
            found.append(f"a segment was archived as {' and as '.join(sorted(names))}")
    there = {str(path.relative_to(store)): path for path in objects}
    for record in sorted(data_path.rglob("*.archived")):
        told = json.loads(record.read_bytes())
        path = there.get(told["key"])
        if path is None or path.stat().st_size != told["stop"] - told["start"]:
            found.append(f"{record} names {told['key']}, which is not there whole")
    return found


def fetched(data_path: Path) -> int:
    """How many segments a member has fetched since its last start, and still has."""
    return len(list((data_path / "archive.fetched").glob("*.log")))
