"""Which unit may import which, and that no unit calls one above it, kept honest by walking src/nsquark.

A unit is a package, a room of nsqd, or a top-level module of nsquark. Within a unit every module may import
every other.

A call goes upward if it names a method that only units above the caller define: units that may import the
caller, directly or through others, and that the caller may not import. It would know such an object by duck
type alone. A unit that declares what it calls, as a `Protocol` or a base class, defines the name itself.
"""

import ast
import asyncio
import concurrent.futures
import datetime
import io
import logging
import pathlib
import queue
import re
import select
import socket
import ssl
import struct
import subprocess
import threading
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import CoroutineType, GeneratorType

import pytest

ROOT = Path(__file__).parents[1] / "src" / "nsquark"

NSQD_ROOMS = {
    f"nsqd.{room}"
    for room in (
        "core",
        "protocol",
        "http",
        "storage",
        "staged",
        "importing",
        "cluster",
        "stats",
        "replica",
        "archive",
    )
}
BELOW_NSQD = {"changes", "durable", "wire", "log", "http", "kernel", "net", "names", "gotext", "errors"} | {
    "version"
}
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"version", "client", "sync"},
    "version": set(),
    "errors": set(),
    "gotext": set(),
    "names": {"errors"},
    "changes": set(),
    "durable": {"changes"},
    "cli": {"gotext", "errors", "version"},
    "kernel": {"errors"},
    "wire": {"kernel", "names", "errors"},
    "log": {"changes", "kernel", "durable", "errors"},
    "diskqueue": {"durable", "names", "errors"},
    "net": {"wire", "kernel", "cli", "gotext", "errors"},
    "http": {"kernel", "net", "gotext", "errors", "version"},
    "debug": {"http", "gotext", "errors"},
    "otel": {"client", "version"},
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
    "nsqd.stats": {
        "http",
        "debug",
        "net",
        "kernel",
        "gotext",
        "version",
        "nsqd",
        "nsqd.archive",
        "nsqd.core",
        "nsqd.protocol",
    },
    "nsqd.importing": {
        "cli",
        "nsqd",
        "diskqueue",
        "durable",
        "log",
        "names",
        "errors",
        "nsqd.core",
        "nsqd.storage",
    },
    "nsqd.storage": {
        "changes",
        "diskqueue",
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
        "changes",
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
    "nsqd.replica": BELOW_NSQD | {"nsqd", "nsqd.core", "nsqd.stats", "nsqd.storage", "nsqd.protocol", "cli"},
    # pyarrow is imported there, inside of functions: a node without an archive does without it.
    "nsqd.archive": {
        "changes",
        "durable",
        "log",
        "kernel",
        "names",
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
    # The automaton of a replica group and its etcd: no log, no broker.
    "nsqd.protocol": BELOW_NSQD - {"log"} | {"nsqd", "nsqd.core", "nsqd.cluster"},
    "nsqd.http": BELOW_NSQD
    | {"cli", "debug", "nsqd", "nsqd.core", "nsqd.protocol", "nsqd.staged", "nsqd.stats", "nsqd.storage"},
    # Looks at nsqd's files from outside, so it knows their formats and nothing of what serves them.
    "data_path": {"diskqueue", "durable", "log", "kernel", "names", "errors", "nsqd.storage", "nsqd.staged"},
    "nsqlookupd": {"kernel", "wire", "http", "debug", "names", "net", "cli", "gotext", "errors", "version"},
    "client": {"wire", "http", "names", "net", "gotext", "errors", "version"},
    "sync": {"client", "errors"},
    "testing": set(),
    "nsqadmin": {"http", "net", "cli", "names", "gotext", "errors", "version"},
    "tools": {
        "durable",
        "cli",
        "client",
        "http",
        "wire",
        "kernel",
        "net",
        "names",
        "gotext",
        "errors",
        "version",
        "data_path",
    },
    # `nsquark up` is the servers in one process; everything else of `nsquark` is a client.
    "tools.people.commands.up": {
        "nsqd",
        "nsqd.importing",
        "nsqd.protocol",
        "nsqd.storage",
        "nsqlookupd",
        "nsqadmin",
        "tools",
        "net",
        "cli",
    },
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
    """The imports of a .pyx or .pxd, each on its line, as Python. What they take is left out: `_`."""
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
    rooms = (".".join(parts[:depth]) for depth in (4, 3, 2))
    return next((room for room in rooms if room in MAY_IMPORT), parts[0])


def violations(source: str, path: Path) -> list[str]:
    """What the file at `path` (relative to ROOT) imports against the rules."""
    unit = unit_of([*path.parts[:-1], path.stem])
    if unit not in MAY_IMPORT:
        return [f"{path}: {unit!r} has no row in MAY_IMPORT"]
    allowed = MAY_IMPORT[unit] | {unit}
    found = []
    for line, name in imported_by(as_python(source) if path.suffix in (".pyx", ".pxd") else source, path):
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
    files = [path for suffix in ("py", "pyi", "pyx", "pxd") for path in sorted(ROOT.rglob(f"*.{suffix}"))]
    assert {"errors.py", "fast.pyx", "fast.pyi"} <= {path.name for path in files}
    found = [v for path in files for v in violations(path.read_text(), path.relative_to(ROOT))]
    assert not found, "\n".join(found)


def test_a_unit_imports_its_own_modules_by_dots_and_others_by_name() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if relative.parts == ("__init__.py",):
            continue
        unit = unit_of([*relative.parts[:-1], path.stem])
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (
                node.level or (node.module or "").startswith("nsquark")
            ):
                continue
            package = ["nsquark", *relative.parts[:-1]]
            base = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:
                name = (
                    [*base, *(node.module or "").split("."), alias.name]
                    if node.module
                    else [*base, alias.name]
                )
                if (unit_of(name[1:]) == unit) != bool(node.level):
                    found.append(f"{relative}:{node.lineno}: {ast.unparse(node)}")
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
        ("tools/people/commands/stat.py", "from nsquark.nsqd.server import Server"),
        ("tools/people/commands/up.py", "from nsquark.nsqd.core.topic import Topic"),
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
        (
            "tools/people/commands/up.py",
            "from nsquark.nsqd.server import Server\nfrom ..options import Command",
        ),
        ("spark/data_source.py", "from pyspark.sql.datasource import DataSource"),
    ],
)
def test_a_good_import_passes(path: str, source: str) -> None:
    assert violations(source, Path(path)) == []


# ---- calls

# Names that objects from outside have: a call of one of these says nothing about our units.
OUTSIDE = [
    asyncio.AbstractEventLoop, asyncio.BufferedProtocol, asyncio.DatagramTransport, asyncio.Event,
    asyncio.Handle, asyncio.Protocol, asyncio.Queue, asyncio.Semaphore, asyncio.StreamReader,
    asyncio.StreamWriter, asyncio.Task, asyncio.TimerHandle, asyncio.Transport,
    asyncio.subprocess.Process, BaseException, bytearray, bytes, concurrent.futures.Executor,
    concurrent.futures.Future, CoroutineType, datetime.datetime, deque, dict, float, frozenset,
    GeneratorType, HTTPConnection, HTTPResponse, int, io.BufferedWriter, io.BytesIO, io.TextIOWrapper,
    list, logging.Handler, logging.Logger, logging.LogRecord, memoryview, OrderedDict, pathlib.Path,
    queue.Queue, re.Match, re.Pattern, set, socket.socket, ssl.SSLContext, str, struct.Struct,
    subprocess.Popen, threading.Event, threading.Thread, tuple, type(select.poll()),
    type(zlib.compressobj()),
]  # fmt: skip
OUTSIDE_NAMES = {name for kind in OUTSIDE for name in dir(kind)} | {
    "slice",  # of pyarrow
}


def defined_by(source: str) -> set[str]:
    """The names of functions, methods and attributes that a module defines."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def called_by(source: str) -> Iterator[tuple[int, str]]:
    """The line and name of each method that a module calls on something that it has not imported."""
    tree = ast.parse(source)
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name in imported:
                pass
            case ast.Call(func=ast.Attribute(attr=name)):
                yield node.lineno, name


def above(unit: str) -> set[str]:
    """The units that may import this one, directly or through others."""
    found = {unit}
    while more := {other for other, below in MAY_IMPORT.items() if below & found} - found:
        found |= more
    return found - {unit}


def upward_calls(source: str, path: Path, defined: Mapping[str, set[str]]) -> list[str]:
    """The calls of the file at `path` (relative to ROOT) that go upward.

    `defined` has the units that define each name.
    """
    unit = unit_of([*path.parts[:-1], path.stem])
    higher, allowed = above(unit), MAY_IMPORT[unit] | {unit}
    found = []
    for line, name in called_by(source):
        units = defined.get(name, set())
        if name in OUTSIDE_NAMES or name.startswith("_") or units & allowed or not units & higher:
            continue
        found.append(f"{path}:{line}: {unit} calls {name}, which only {sorted(units)} define")
    return found


def test_no_call_goes_upward() -> None:
    sources = {path.relative_to(ROOT): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    defined: dict[str, set[str]] = defaultdict(set)
    for path, source in sources.items():
        for name in defined_by(source):
            defined[name].add(unit_of([*path.parts[:-1], path.stem]))
    found = [call for path, source in sources.items() for call in upward_calls(source, path, defined)]
    assert not found, "\n".join(found)


DEFINED = {"wake_everybody": {"nsqd.core"}, "publish": {"nsqd.core", "client"}, "say": {"wire", "nsqd.core"}}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("log/segment.py", "def f(self):\n    self.owner.wake_everybody()"),
        ("kernel/pure.py", "thing.topic.wake_everybody(1)"),
        ("wire/parser.py", "owner().publish()"),
    ],
)
def test_an_upward_call_is_found(path: str, source: str) -> None:
    assert len(upward_calls(source, Path(path), DEFINED)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("nsqd/http/routes.py", "topic.wake_everybody()"),  # downward
        ("debug/routes.py", "topic.unheard_of()"),
        ("client/message.py", "thing.wake_everybody()"),  # nsqd is not above the client
        ("wire/parser.py", "thing.say()"),  # its own word too
        ("log/segment.py", "import asyncio\nasyncio.wake_everybody()"),
    ],
)
def test_other_calls_pass(path: str, source: str) -> None:
    assert upward_calls(source, Path(path), DEFINED) == []


def test_a_unit_is_below_those_that_import_it() -> None:
    assert {"wire", "log", "nsqd.core", "spark", "pipeline"} <= above("kernel")
    assert "kernel" not in above("wire")
    assert "nsqd.core" not in above("client")
