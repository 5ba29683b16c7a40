"""Writes the lock files: what is installed beside this interpreter, and the parts of it that running needs.

`make lock` calls this in a fresh virtual environment that has `nsquark[dev]` in the newest versions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NOT_LOCKED = {"nsquark", "pip"}

# The file, what its first line says, and the extras of nsquark that it is for (None: all that is installed).
LOCKS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "requirements.lock": ("What nsquark runs on, and what compiles it.", ("admin",)),
    "requirements-spark.lock": ("The same, and Spark.", ("admin", "spark")),
    "requirements-dev.lock": ("What developing nsquark needs.", None),
}


def closure(requirements: Collection[str]) -> set[str]:
    """The canonical names of everything that these requirements install, as the installed packages say."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(each) for each in requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in found:
                found.add((name, extra))
                todo += _wanted_by(name, extra)
    return {name for name, _ in found}


def _wanted_by(name: str, extra: str) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def build_requirements() -> list[str]:
    """What builds nsquark; and `wheel`, which older pips need to build PySpark from its sdist."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return [*tomllib.load(file)["build-system"]["requires"], "wheel"]


def lock_lines(extras: Collection[str] | None) -> list[str]:
    """A line `name==version` for each package, by name."""
    installed = {canonicalize_name(each.name): f"{each.name}=={each.version}" for each in distributions()}
    names = set(installed)
    if extras is not None:
        names = closure([f"nsquark[{','.join(extras)}]", *build_requirements()])
    lines = (installed[name] for name in names - NOT_LOCKED)
    return sorted(lines, key=lambda line: line.partition("==")[0].lower())


def main() -> None:
    for file, (said, extras) in LOCKS.items():
        head = f"# {said} Written by `make lock` from pyproject.toml, not by hand."
        (ROOT / file).write_text("\n".join([head, *lock_lines(extras), ""]))


if __name__ == "__main__":
    main()
