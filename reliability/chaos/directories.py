"""Directories of members that are in sync, compared byte by byte."""

from __future__ import annotations

from pathlib import Path


def files(directory: Path) -> dict[str, Path]:
    """The files that are replicated, by name."""
    return {
        str(path.relative_to(directory)): path
        for top in ("topics", "staged")
        for path in sorted((directory / top).rglob("*"))
        if path.is_file() and path.suffix != ".tmp"  # what a kill left of a file that was not yet there
    }


def differences(one: Path, other: Path) -> list[str]:
    """What differs. Of files with one name, one has to begin with the other."""
    found = []
    ours, theirs = files(one), files(other)
    for name in sorted(ours.keys() ^ theirs.keys()):
        where, missing = (one, other) if name in ours else (other, one)
        found.append(f"{name} is in {where.name}, and not in {missing.name}")
    for name in sorted(ours.keys() & theirs.keys()):
        mine, yours = ours[name].read_bytes(), theirs[name].read_bytes()
        common = min(len(mine), len(yours))
        if mine[:common] != yours[:common]:
            at = next(each for each in range(common) if mine[each] != yours[each])
            found.append(f"{name} differs from byte {at} on in {one.name} and {other.name}")
    return found
