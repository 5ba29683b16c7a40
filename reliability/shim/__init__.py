"""A library between nsqd and the C library: it records what nsqd does to its disk, and refuses on command.

`shim.c` is compiled on first use, into `build/reliability`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
BUILD = Path(__file__).resolve().parents[2] / "build" / "reliability"


class NoCompiler(Exception):
    """The shim cannot be compiled here."""


def compiled() -> Path:
    """The library, compiled if its source is new. Raises NoCompiler."""
    source = SOURCE.read_bytes()
    library = BUILD / f"shim-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not sys.platform.startswith("linux"):
        raise NoCompiler("needs Linux and a C compiler (cc)")
    BUILD.mkdir(parents=True, exist_ok=True)
    temporary = library.with_suffix(f".{os.getpid()}.so")  # another process may be at it, too
    command: list[str | Path] = [compiler, "-O2", "-shared", "-fPIC", "-o", temporary, SOURCE, "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompiler(f"shim.c does not compile: {done.stderr}")
    temporary.rename(library)
    return library


@dataclass(slots=True)
class Fault:
    """Calls that fail: those of this kind on files whose path (from the data directory on) matches.

    `call` is open, read, write, fsync, truncate, rename, unlink or mkdir. The first `skip` calls succeed, the
    next `times` fail; -1 is for ever.
    """

    call: str
    pattern: str
    error: int
    skip: int = 0
    times: int = -1

    def __str__(self) -> str:
        return f"{self.error} {self.call} {self.skip} {self.times} {self.pattern}"


class Shim:
    """The shim for one data directory; its own files lie beside that."""

    def __init__(self, root: Path, fsync_us: int | None = None, record: bool = True) -> None:
        """With `fsync_us` an fsync takes so long, and the real disk is left alone. Raises NoCompiler."""
        self.library = compiled()
        self.root = root
        self.trace = root.with_name(root.name + ".trace")
        self.hits = root.with_name(root.name + ".hits")
        self._faults = root.with_name(root.name + ".faults")
        self._fsync_us = fsync_us
        self._record = record

    @property
    def environment(self) -> dict[str, str]:
        """What nsqd's environment needs."""
        variables = {
            "LD_PRELOAD": str(self.library),
            "NSQUARK_SHIM_ROOT": str(self.root),
            "NSQUARK_SHIM_FAULTS": str(self._faults),
            "NSQUARK_SHIM_HITS": str(self.hits),
        }
        if self._record:
            variables["NSQUARK_SHIM_TRACE"] = str(self.trace)
        if self._fsync_us is not None:
            variables["NSQUARK_SHIM_FSYNC_US"] = str(self._fsync_us)
        return variables

    def command(self, program: Iterable[str] = ()) -> list[str]:
        """A command that runs nsqd, or another program, with the shim."""
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        return ["/usr/bin/env", *settings, *(program or (sys.executable, "-m", "nsquark.nsqd"))]

    def refuse(self, *faults: Fault) -> None:
        """From now on these calls fail, and no others. A call that is under way may not know of it yet."""
        temporary = self._faults.with_suffix(".faults-new")
        temporary.write_text("".join(f"{fault}\n" for fault in faults))
        temporary.rename(self._faults)

    def refused(self) -> int:
        """How many calls have failed so far."""
        return len(self.hits.read_text().splitlines()) if self.hits.exists() else 0
