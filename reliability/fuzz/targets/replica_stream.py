"""The bytes between a primary and its copy: frames and what they do to a directory, answers, the manifest.

The first byte chooses which of them follows, and whether the frames may be older than the directory.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from nsquark.nsqd.replica.changes import frames
from nsquark.nsqd.replica.changes.frames import (
    BadFrame,
    Frame,
    FrameParser,
    Operation,
    pack_answer,
    pack_frame,
)
from nsquark.nsqd.replica.changes.manifest import parse_manifest
from nsquark.nsqd.replica.copy.warm_copy import CopyDiffers, WarmCopy, sync
from reliability.fuzz.target import Target, Wrong, bytewise, folder, pieces_of, require_same

from .segments import _batches

_LOG, _JOURNAL = "topics/t/00000000000000000000.log", "topics/t/00000000000000000001.journal"
_FILES = {
    _LOG: _batches(0, [[b"one"], [b"two"]]),
    _JOURNAL: b"journal",
    "staged/app/1/0.a": b"stage",
    "nsqd.dat": b"{}",
}
_OUTSIDE = "outside"


def _parse(pieces: list[bytes]) -> tuple[list[Frame], bool]:
    """The frames, and whether they end with bytes that are none."""
    parser = FrameParser()
    found: list[Frame] = []
    try:
        for piece in pieces:
            for frame in parser.feed(piece):
                operations = [
                    Operation(each.letter, each.path, each.offset, bytes(each.data))
                    for each in frame.operations
                ]
                found.append(Frame(frame.term, frame.sequence, operations))
    except BadFrame:
        return found, True
    return found, False


def _answers(pieces: list[bytes]) -> object:
    buffer, last = bytearray(), None
    try:
        for piece in pieces:
            buffer += piece
            last = frames.parse_answers(buffer) or last
    except BadFrame:
        return "no answer"
    return last, bytes(buffer)


def _apply(found: list[Frame], lenient: bool) -> object:
    """What the directory is after these frames. Nothing but the files of a node may be made in it."""
    with folder() as parent:
        directory = parent / "copy"
        for path, data in _FILES.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)
        (parent / _OUTSIDE).write_bytes(b"outside")
        copy, result = WarmCopy(directory), ""
        try:
            for frame in found:
                copy.apply(frame, lenient)
        except (CopyDiffers, OSError) as error:
            result = type(error).__name__
        finally:
            copy.close()
        sync(copy.start_sync())
        if {each.name for each in parent.iterdir()} != {"copy", _OUTSIDE}:
            raise Wrong("something lies beside the directory")
        require_same("a file beside the directory", b"outside", (parent / _OUTSIDE).read_bytes())
        return result, sorted(_listed(directory))


def _listed(directory: Path) -> list[tuple[str, bytes]]:
    told = []
    for path in directory.rglob("*"):
        name = path.relative_to(directory).as_posix()
        if path.is_file():
            if not frames.is_copied(name.removesuffix(".tmp")):
                raise Wrong(f"{name} was made, which no node has")
            told.append((name, path.read_bytes()[:1000]))
    return told


def run(data: bytes) -> object:
    choice, data = (data or b"\0")[0], data[1:]
    if choice % 4 == 2:
        require_same("answers byte by byte", _answers([data]), _answers(bytewise(data)))
        return _answers([data])
    if choice % 4 == 3:
        try:
            return parse_manifest(data)
        except BadFrame as error:
            return str(error)
    whole, bad = _parse(bytewise(data))
    for pieces in ([data], pieces_of(data)):
        found, verdict = _parse(pieces)
        require_same("the verdict", bad, verdict)
        # what comes together with bytes that are no frame is lost, and not acknowledged
        require_same("the frames", whole[: len(found)] if bad else whole, found)
    return whole, bad, _apply(whole, lenient=choice % 4 == 1)


def repair(data: bytes) -> bytes:
    """Give every frame that ends within the data the checksum of its bytes."""
    out, at = bytearray(data), 1
    while (at := out.find(frames.MAGIC, at)) >= 0 and at + frames.HEAD.size <= len(out):
        length = int.from_bytes(out[at + 8 : at + 12], "big")
        if frames.HEAD.size <= length <= len(out) - at:
            with contextlib.suppress(BadFrame):
                _, crc = frames.operations_of(bytes(out), at + frames.HEAD.size, at + length)
                out[at + 4 : at + 8] = crc.to_bytes(4, "big")
        at += 4
    return bytes(out)


def _frame(sequence: int, *operations: tuple[bytes, str, int, bytes]) -> bytes:
    return pack_frame(3, sequence, [Operation(*each) for each in operations])


def seeds() -> list[bytes]:
    size = len(_FILES[_LOG])
    more = _batches(2, [[b"three"]])
    turns = [
        _frame(8, (frames.BATCHES, _LOG, size, more), (frames.CREATE, "topics/u/x", 0, b"")),
        _frame(9),
        _frame(10, (frames.APPEND, _JOURNAL, 7, b"more"), (frames.CUT, _LOG, size, b"")),
        _frame(11, (frames.PUT, "nsqd.dat", 0, b"{1}"), (frames.DELETE, "topics/t", 0, b"")),
        _frame(12, (frames.RENAME, "staged/app", 0, b"staged/.deleted.1")),
    ]
    manifest = {"node": "n", "term": 3, "stream": "s", "sequence": 7, "files": {"nsqd.dat": 2, _LOG: size}}
    return [
        b"\0" + b"".join(turns),
        b"\1" + b"".join(turns[::-1]),
        b"\0" + turns[0],
        b"\1" + turns[2] + turns[4],
        b"\2" + pack_answer(3, 9, 8) + pack_answer(3, 10, 10) + b"NQA1",
        b"\3" + json.dumps(manifest).encode(),
    ]


TARGET = Target(
    name="replica_stream",
    run=run,
    seeds=seeds,
    modules=(
        "nsquark.nsqd.replica.changes.frames",
        "nsquark.nsqd.replica.changes.manifest",
        "nsquark.nsqd.replica.copy.warm_copy",
    ),
    words=(
        pack_frame(3, 8, []),
        pack_answer(3, 9, 8),
        _LOG.encode(),
        b"topics/",
        b"staged/",
        b"../",
        b"nsqd.dat",
        b".tmp",
        b"\0\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"Infinity",
        b"[[]]",
    ),
    repair=repair,
    max_length=1500,
)
