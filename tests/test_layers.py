"""Who may import whom, kept honest by walking the imports of src/nsquark.

A unit is a package, a room of nsqd, or a top-level module of nsquark. Within a unit everybody may import
everybody.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "nsquark"

NSQD_ROOMS = {
    f"nsqd.{room}" for room in ("core", "protocol", "http", "storage", "staged", "cluster", "stats")
}
BELOW_NSQD = {"durable", "wire", "log", "http", "kernel", "net", "names", "gotext", "errors", "version"}
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"version", "client", "sync"},
    "version": set(),
    "errors": set(),
    "gotext": set(),
    "names": {"errors"},
    "durable": set(),
    "cli": {"gotext", "errors"},
    "kernel": {"errors"},
    "wire": {"kernel", "names", "errors"},
    "log": {"kernel", "durable", "errors"},
    "net": {"wire", "kernel", "cli", "gotext", "errors"},
    "http": {"net", "gotext", "errors", "version"},
    "debug": {"http", "gotext", "errors"},
    # The edge of nsqd, which puts its rooms together.
    "nsqd": BELOW_NSQD | NSQD_ROOMS | {"cli"},
    "nsqd.core": {
        "wire",
        "log",
        "kernel",
        "names",
        "errors",
        "nsqd",
        "nsqd.stats",
        "nsqd.storage",
        "nsqd.protocol",
    },
    "nsqd.stats": {"http", "kernel", "gotext", "version", "nsqd", "nsqd.core", "nsqd.protocol"},
    "nsqd.storage": {
        "durable",
        "cli",
        "log",
        "kernel",
        "names",
        "gotext",
        "errors",
        "version",
        "nsqd.core",
        "nsqd.stats",
        "nsqd.staged",
    },
    "nsqd.staged": {
        "durable",
        "names",
        "log",
        "wire",
        "kernel",
        "errors",
        "nsqd",
        "nsqd.core",
        "nsqd.storage",
    },
    "nsqd.cluster": {
        "wire",
        "http",
        "net",
        "names",
        "errors",
        "version",
        "nsqd",
        "nsqd.core",
        "nsqd.protocol",
    },
    "nsqd.protocol": BELOW_NSQD - {"log"} | {"nsqd", "nsqd.core", "nsqd.cluster"},
    "nsqd.http": BELOW_NSQD
    | {"cli", "debug", "nsqd", "nsqd.core", "nsqd.protocol", "nsqd.staged", "nsqd.stats"},
    "nsqlookupd": {"wire", "http", "debug", "names", "net", "cli", "gotext", "errors", "version"},
    "client": {"wire", "http", "names", "net", "gotext", "errors", "version"},
    "sync": {"client", "errors"},
    "testing": set(),
    "nsqadmin": {"http", "names", "gotext", "errors", "version"},
    "tools": {"client", "http", "names", "errors", "version"},
    "spark": {"durable", "client", "wire", "http", "kernel", "net", "names", "errors", "version"},
    "demo": {"client", "cli", "errors"},
    # A program that is all edge: its flags decide what it does.
    "pipeline": {"durable", "spark", "cli", "gotext", "names", "errors", "version"},
}

# Modules from outside that have one home: pyspark is heavy, and one place picks the event loop.
PYSPARK_HOMES = {"spark", "pipeline"}
UVLOOP_HOME = "cli"

# wire is sans-IO: no sockets, tasks or clocks.
NOT_IN_WIRE = {"asyncio", "select", "selectors", "socket", "socketserver", "ssl", "threading", "time"}


def imported_by(source: str, path: Path) -> Iterator[tuple[int, str]]:
    """The line and full dotted name of each thing that the file at `path` (relative to ROOT) imports."""
    # In a/b.py and in a/__init__.py alike, one dot is the package nsquark.a.
    package = ["nsquark", *path.parent.parts]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                for alias in names:
                    yield node.lineno, ".".join([*base, *([module] if module else []), alias.name])
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def as_python(cython: str) -> str:
    """The imports of a .pyx, each on its line, as Python; what they take from a module is left out: `_`."""
    lines = []
    for line in cython.splitlines():
        if found := re.match(r"\s*from\s+([\w.]+)\s+c?import\b", line):
            lines.append(f"from {found[1]} import _")
        elif found := re.match(r"\s*c?import\s+([\w.]+)", line):
            lines.append(f"import {found[1]}")
        else:
            lines.append("")
    return "\n".join(lines)


def unit_of(parts: Sequence[str]) -> str:
    """The room that a module of ours is in: its path below nsquark, with or without the names it defines."""
    room = ".".join(parts[:2])
    return room if room in MAY_IMPORT and len(parts) > 1 else parts[0]


def violations(source: str, path: Path) -> list[str]:
    """What the file at `path` (relative to ROOT) imports against the rules."""
    unit = unit_of([*path.parts[:-1], path.stem])
    if unit not in MAY_IMPORT:
        return [f"{path}: {unit!r} has no row in MAY_IMPORT"]
    allowed = MAY_IMPORT[unit] | {unit}
    found = []
    for line, name in imported_by(as_python(source) if path.suffix == ".pyx" else source, path):
        top, _, rest = name.partition(".")
        if top == "nsquark":
            # The bare package counts as a unit that nobody may import: say which module is meant.
            wrong = (unit_of(rest.split(".")) or "nsquark") not in allowed
        elif top == "pyspark":
            wrong = unit not in PYSPARK_HOMES
        elif top == "uvloop":
            wrong = unit != UVLOOP_HOME
        else:
            wrong = unit == "wire" and top in NOT_IN_WIRE
        if wrong:
            found.append(f"{path}:{line}: {unit} must not import {name}")
    return found


def test_every_import_goes_the_allowed_way() -> None:
    files = [path for suffix in ("py", "pyi", "pyx") for path in sorted(ROOT.rglob(f"*.{suffix}"))]
    assert {"errors.py", "fast.pyx", "fast.pyi"} <= {path.name for path in files}
    found = [v for path in files for v in violations(path.read_text(), path.relative_to(ROOT))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("wire/parser.py", "import nsquark.log"),
        ("wire/parser.py", "from nsquark.log.segment import Segment"),
        ("wire/parser.py", "from nsquark import log"),
        ("wire/parser.py", "from .. import log"),
        ("wire/parser.py", "from ..log import segment"),
        ("wire/__init__.py", "from ..log import segment"),
        ("wire/parser.py", "def late():\n    from nsquark.nsqd import topic"),
        ("wire/parser.py", "if TYPE_CHECKING:\n    from nsquark.nsqd.core.topic import Topic"),
        ("wire/parser.py", "import importlib\nimportlib.import_module('nsquark.nsqd')"),
        ("wire/parser.py", "import asyncio"),
        ("wire/parser.py", "from time import monotonic"),
        ("log/segment.py", "from nsquark.names import check"),
        ("log/segment.py", "from nsquark.wire import frames"),
        ("kernel/pure.py", "from nsquark.names import check"),
        ("kernel/fast.pyx", "cimport cython\nfrom nsquark.names cimport check"),
        ("kernel/fast.pyx", "from ..names import (\n    check,\n)"),
        ("kernel/fast.pyi", "from nsquark.wire import frames"),
        ("nsqd/core/topic.py", "from nsquark.client import Producer"),
        ("nsqd/core/topic.py", "from nsquark.cli import flags"),
        ("nsqd/core/topic.py", "from nsquark.nsqd.http.routes import router"),
        ("nsqd/core/topic.py", "from nsquark.http import Request"),
        ("nsqd/stats/metrics.py", "from nsquark.nsqd.staged.staging import Staging"),
        ("nsqd/core/topic.py", "import uvloop"),
        ("nsqd/core/topic.py", "import nsquark"),
        ("nsqd/core/topic.py", "from nsquark import *"),
        ("nsqadmin/server.py", "import pyspark.sql"),
        ("errors.py", "from nsquark.names import check"),
        ("gotext.py", "from . import errors"),
        ("__init__.py", "from nsquark import nsqd"),
        ("utils/misc.py", ""),
    ],
)
def test_a_bad_import_is_found(path: str, source: str) -> None:
    assert len(violations(source, Path(path))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("wire/parser.py", "import struct\nfrom nsquark import kernel, names\nfrom .frames import pack"),
        (
            "wire/__init__.py",
            "from .frames import pack\nfrom . import parser\nfrom ..errors import ProtocolError",
        ),
        ("log/segment.py", "import nsquark.kernel\nfrom ..errors import LogCorrupt"),
        ("kernel/fast.pyx", "cdef extern from 'crc32c.h':\n    pass\nfrom libc.string cimport memcpy"),
        (
            "nsqd/core/topic.py",
            "import asyncio\nfrom nsquark.log import TopicLog\nfrom nsquark.nsqd.core.channel import Channel",
        ),
        ("nsqd/__main__.py", "from nsquark.cli import flags, logs, process\nfrom .options import Options"),
        ("cli/process.py", "import uvloop"),
        ("nsqd/options.py", "from nsquark.cli.flags import Flag"),
        ("spark/data_source.py", "from pyspark.sql.datasource import DataSource"),
    ],
)
def test_a_good_import_passes(path: str, source: str) -> None:
    assert violations(source, Path(path)) == []
