"""The page of all tables: docs/reference/permissions.md."""

from __future__ import annotations

import tempfile
from pathlib import Path

from . import nsqadmin, nsqd_http, nsqd_tcp, nsqlookupd, replicas
from .table import Table
from .world import World, running

HEAD = """\
# Permissions

Every command and every route of all daemons, tried as clients with and without certificate, secret and
permission. `python -m reliability.permissions --markdown` has written this page, and a test compares it with
what daemons do. The routes come out of the daemons' own tables, so that a new one cannot be forgotten. A
cell is `yes` or the refusal; a refused request to nsqd has changed nothing. [TLS, compression,
authentication](../security.md) explains the flags.
"""


async def tables(world: World) -> list[Table]:
    """Try everything. Raises NotTried."""
    return [
        await nsqd_tcp.table(world),
        await nsqd_http.table(world),
        await replicas.table(world),
        await nsqlookupd.commands(world),
        await nsqlookupd.routes(world),
        await nsqadmin.table(world),
    ]


async def tried() -> list[Table]:
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as world:
            return await tables(world)


def markdown(result: list[Table]) -> str:
    return "\n".join([HEAD, *(table.markdown() for table in result)])
