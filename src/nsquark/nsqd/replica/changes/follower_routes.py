"""The routes by which followers copy and follow this node."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Protocol, cast

from nsquark.http import HttpError, Request, Response, Router, Sent, v1_json

from ..automaton.group import BadGroup
from .access import ReplicaAccess
from .frames import is_copied
from .manifest import crc_before, list_files, read_piece
from .recorder import Recorder
from .stream import FollowerStream, Leader

PIECE = 4 << 20  # bytes of a file that one answer brings
UPGRADED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: nsquark-replica\r\nConnection: Upgrade\r\n"
    b"X-Nsquark-Sequence: %d\r\n\r\n"
)
MOST_FOLLOWERS = 8
_NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_LAST_OFFSET = (1 << 63) - 1 - PIECE


class GroupLeader(Leader, Protocol):
    """The primary of a replica group."""

    def admit(self, incarnation: str, term: int) -> bool:
        """Whether a follower that asks for the stream of `term` gets it. Raises BadGroup for no member."""


class ReplicaApi:
    def __init__(
        self,
        recorder: Recorder,
        directory: Path,
        access: ReplicaAccess,
        node: str,
        leader: GroupLeader | None = None,
    ) -> None:
        """`leader` is the primary of a replica group, which decides what nsqds may follow."""
        self._recorder = recorder
        self._directory = directory
        self._access = access
        self._node = node
        self._leader = leader

    def add_to(self, table: Router) -> None:
        # With --http-auth, too, it is `ReplicaAccess` that decides.
        if self._leader is None:
            table.add("GET", "/replica", self.tell, access="known")
        table.add("GET", "/replica/manifest", self.manifest, access="anybody")
        table.add("GET", "/replica/file", self.file, access="anybody", logged=False)
        table.add("GET", "/replica/stream", self.stream, access="anybody")

    def tell(self, _request: Request) -> Response:
        recorder = self._recorder
        followers = [
            {
                "address": each.peer,
                "written": each.written,
                "synced": each.synced,
                "lag": recorder.sequence - each.written,
            }
            for each in recorder.followers
            if isinstance(each, FollowerStream)
        ]
        return v1_json(
            {
                "state": "primary",
                "node": self._node,
                "term": recorder.term,
                "sequence": recorder.sequence,
                "backlog_bytes": recorder.backlog_bytes,
                "followers": followers,
            }
        )

    async def manifest(self, request: Request) -> Response:
        """All files and their lengths, which are at least those at `sequence`."""
        self._access.check(request)
        recorder = self._recorder
        recorder.want()
        recorder.flush()
        sequence = recorder.sequence
        files = await asyncio.to_thread(list_files, self._directory)
        return v1_json(
            {
                "node": self._node,
                "term": recorder.term,
                "stream": recorder.stream,
                "sequence": sequence,
                "files": files,
            }
        )

    async def file(self, request: Request) -> Response:
        """A piece of a file from an offset on; 409 if the bytes before it are not those of the follower."""
        self._access.check(request)
        self._recorder.want()
        name = request.query.get("path", "")
        if not is_copied(name):
            raise HttpError(400, "INVALID_PATH")
        offset, size = _number(request, "from"), min(_number(request, "size"), PIECE)
        if offset > _LAST_OFFSET:
            raise HttpError(400, "INVALID_ARG_FROM")
        path = self._directory / name
        try:
            if "crc" in request.query:
                if await asyncio.to_thread(crc_before, path, offset) != _number(request, "crc"):
                    raise HttpError(409, "DIFFERS")
            data = await asyncio.to_thread(read_piece, path, offset, size)
        except OSError as error:
            if error.errno not in _NO_SUCH_FILE:
                raise
            raise HttpError(404, "NO_SUCH_FILE") from None
        return Response(200, data, (("Content-Type", "application/octet-stream"),))

    def stream(self, request: Request) -> Response:
        """Everything behind a sequence, for ever; 409 if the backlog does not reach back to it."""
        self._access.check(request)
        recorder = self._recorder
        if request.http_connection is None or request.query.get("stream") != recorder.stream:
            raise HttpError(409, "ANOTHER_STREAM")
        if len(recorder.followers) >= MOST_FOLLOWERS:
            raise HttpError(409, "TOO_MANY_FOLLOWERS")
        sequence = _number(request, "from")
        frames = recorder.frames_after(sequence)
        if frames is None:
            raise HttpError(409, "TOO_FAR_BEHIND")
        incarnation = request.query.get("incarnation", "")
        if self._leader is not None:
            try:
                admitted = self._leader.admit(incarnation, _number(request, "term"))
            except BadGroup:
                raise HttpError(400, "INVALID_ARG_INCARNATION") from None
            if not admitted:
                raise HttpError(503, "NOT_PRIMARY")
        connection = request.http_connection
        peer = connection.peer
        transport = connection.detach()
        if transport is not None:
            unsent = sum(frame.size for frame in frames)
            follower = FollowerStream(recorder, peer, sequence, unsent, incarnation, self._leader)
            transport.set_protocol(cast(asyncio.BaseProtocol, follower))
            transport.write(UPGRADED % recorder.sequence)
            follower.start(transport, frames)
        return Sent(101)


def _number(request: Request, name: str) -> int:
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return int(text)
