"""An archive of a Python environment for executors: nsquark, its dependencies, and a link to the interpreter.

    bin/python3                         a link to the interpreter, which the executors' machines must have
    pyvenv.cfg                          makes Python take the folder for an environment, wherever it lies
    lib/python3.11/site-packages/…      nsquark with its compiled modules, pyarrow and the others

PySpark itself is left out: Spark gives its own to the Python processes that it starts.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nsquark.cli.flags import StartError

from .files import TAR_MODES, archive_kind, own_files, replacing

_LEFT_OUT: Final = {"pyspark", "py4j"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[([^]]*)\])?([^;]*)(?:;(.*))?", re.DOTALL)
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w.-]+)["']""")


def write_environment(path: Path, also: Sequence[str] = ()) -> list[str]:
    """Write the archive; the names of the distributions in it. `also` names more that are to be in it.

    Raises StartError.
    """
    distributions = _find_distributions(also)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = f"lib/{python}/site-packages"
    with (
        replacing(path) as partial,
        tarfile.open(partial, **TAR_MODES[archive_kind("output", path.name)]) as archive,
    ):
        _add_interpreter(archive, python)
        added: set[str] = set()
        for name, distribution in distributions.items():
            for relative, source in _files(name, distribution):
                if relative not in added:
                    added.add(relative)
                    archive.add(source, f"{packages}/{relative}", recursive=False, filter=_owned_by_nobody)
    return sorted(distributions)


def _add_interpreter(archive: tarfile.TarFile, python: str) -> None:
    interpreter = os.path.realpath(sys.executable)
    for name in ("python", "python3", python):
        link = tarfile.TarInfo(f"bin/{name}")
        link.type, link.linkname, link.mode = tarfile.SYMTYPE, interpreter, 0o777
        archive.addfile(link)
    text = f"home = {os.path.dirname(interpreter)}\ninclude-system-site-packages = false\n".encode()
    entry = tarfile.TarInfo("pyvenv.cfg")
    entry.size = len(text)
    archive.addfile(entry, io.BytesIO(text))


def _owned_by_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _find_distributions(also: Sequence[str]) -> dict[str, importlib.metadata.Distribution]:
    """nsquark, the distributions that `also` names, and all that they require, as far as it is installed."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = [("nsquark", {"spark"}, True), *((name, set[str](), True) for name in also)]
    while wanted:
        name, extras, must_be = wanted.pop()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if must_be:
                raise StartError(f"--with: {name!r} is not installed here") from None
            continue  # its marker says that this platform, or this Python, does not need it
        key = _canonical(name)
        if key not in found and key not in _LEFT_OUT:
            found[key] = distribution
            wanted += [(each, more, False) for each, more in _requirements(distribution, extras)]
    return found


def _requirements(
    distribution: importlib.metadata.Distribution, extras: set[str]
) -> Iterator[tuple[str, set[str]]]:
    """The names of the distributions that one requires, each with the extras that are required of it."""
    for text in distribution.requires or ():
        parsed = _REQUIREMENT.fullmatch(text)
        if parsed is None:
            continue
        name, inner, _, marker = parsed.groups()
        extra = _EXTRA.search(marker or "")
        if extra is None or extra[1] in extras:
            yield name, {each.strip() for each in (inner or "").split(",") if each.strip()}


def _files(name: str, distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a distribution: their paths within site-packages, and where they are."""
    if name == "nsquark":
        yield from own_files()
        return
    if distribution.files is None:
        raise StartError(f"{name} was not installed by pip, so its files are not known")
    for file in distribution.files:
        source = Path(str(distribution.locate_file(file)))
        # Scripts lie outside, and name this environment in their first line.
        if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
            yield str(file), source


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
