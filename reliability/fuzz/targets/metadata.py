"""The JSON files of a data directory: nsqd.dat, nsquark.dat, the states of staging and of an import."""

from __future__ import annotations

from pathlib import Path

from nsquark.errors import UnknownVersion
from nsquark.nsqd.importing import progress
from nsquark.nsqd.staged.application import parse_state
from nsquark.nsqd.storage import metadata
from nsquark.nsqd.storage.inspection import DataRefused, check_node_version
from nsquark.nsqd.storage.metadata import BadMetadata
from nsquark.nsqd.storage.node import Node
from reliability.fuzz.target import Target, Wrong, folder, require_same


def _topics(path: Path, data: bytes) -> object:
    file = path / metadata.FILE_NAME
    file.write_bytes(data)
    try:
        known = metadata.load(file)
    except BadMetadata as error:
        return str(error).replace(str(path), "")
    # What is written from it reads as the same.
    file.write_bytes(metadata.pack_known(known))
    require_same("written again", known, metadata.load(file))
    return known


def _node(path: Path, data: bytes) -> object:
    file = path / "nsquark.dat"
    file.write_bytes(data)
    try:
        check_node_version(path)
    except UnknownVersion as error:
        return str(error).replace(str(path), "")
    node = Node(path, 5)
    try:
        first, count = node.lease(1)
    except OverflowError:
        return "all ids are given away", bool(node.damage)
    if not 5 << 54 <= first < first + count <= 6 << 54:
        raise Wrong(f"ids {first:x} to {first + count:x}")
    again = Node(path, 5)
    if again.lease(1)[0] < first + count:
        raise Wrong("ids are given twice")
    require_same("the node", (node.uuid, node.floor), (again.uuid, again.floor))
    if not 0 <= node.floor < 1 << 63:
        raise Wrong(f"logs begin at {node.floor}")
    return bool(node.damage), node.floor  # ids and name of a node whose file does not read are new ones


def _state(data: bytes) -> object:
    try:
        return parse_state(data)
    except (ValueError, TypeError, KeyError):
        return "does not read"


def _import(path: Path, data: bytes) -> object:
    state = path / progress.FOLDER / progress.STATE
    state.parent.mkdir()
    state.write_bytes(data)
    try:
        return progress.load(path)
    except DataRefused as error:
        return str(error).replace(str(path), "")


def run(data: bytes) -> object:
    with folder() as path:
        return _topics(path, data), _node(path, data), _state(data), _import(path, data)


def seeds() -> list[bytes]:
    return [
        b'{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":false,"max_attempts":3}]}]}',
        b'{"topics":[{"name":"t","origin":7,"retention_bytes":5,"retention_time":6,"channels":null}]}',
        b'{"topics":[{"name":"#ephemeral"},{"name":"b d"},{"name":"u","channels":[{"name":"#ephemeral"}]}]}',
        b'{"node":"00ff","blocks":1000,"floor":5,"version":1}',
        b'{"node":"00ff","blocks":1e300,"floor":-5,"version":1}',
        b'{"node":1,"blocks":1073741823,"floor":Infinity,"version":2}',
        b'{"version":1,"last":3,"published":[[3,{"t":5}]],"publishing":null,"note":"n","prepared":4,"home":["a","b"]}',
        b'{"version":1,"last":3,"published":[],"publishing":{"batch":4,"stages":[]},"note":""}',
        b'{"version":1,"complete":false,"originals":{},"existing":{},"metadata":"nsqd.dat","done":[],"checkpoint":null}',
        b"",
        b"null",
    ]


TARGET = Target(
    name="metadata",
    run=run,
    seeds=seeds,
    modules=(
        "nsquark.nsqd.storage.metadata",
        "nsquark.nsqd.storage.node",
        "nsquark.nsqd.staged.application",
        "nsquark.nsqd.importing.progress",
    ),
    words=(
        b'"topics":',
        b'"name":"t"',
        b'"blocks":',
        b'"floor":',
        b"Infinity",
        b"NaN",
        b"-1",
        b"1e999",
        b"[" * 1500,
        b"null",
        b"{}",
        b'"origin":',
        b'"version":1',
        b"9" * 400,
        b"\\ud800",
        b"\xff",
    ),
    max_length=2000,
)
