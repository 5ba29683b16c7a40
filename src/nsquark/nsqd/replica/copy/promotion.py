"""Taking the primary's place: a copy becomes an ordinary data directory of the next term."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from nsquark.cli.flags import StartError
from nsquark.durable import sync_path
from nsquark.nsqd.storage import node

from .warm_copy import STATE

logger = logging.getLogger(__name__)

IN_SYNC, CATCHING_UP = "in-sync", "catching-up"


def promote(directory: Path) -> None:
    """Raise the term of a copy, so that the next start begins files of its own. Raises StartError.

    An ordinary directory stays as it is.
    """
    mark = directory / STATE
    try:
        known = json.loads(mark.read_bytes())
        state = known["state"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartError(f"{mark} does not read - {error!r}") from None
    if state != IN_SYNC:
        raise StartError(
            f"{directory} is a copy that was not complete yet; start with --replica-of, or delete {mark.name}"
            " to serve what is there"
        )
    path = directory / node.FILE_NAME
    try:
        name, blocks, floor, term = node.parse(path.read_bytes())
        node.write_atomically(path, node.pack(name, blocks, floor, term + 1))
        mark.unlink()
        sync_path(directory)
    except (OSError, *node.UNREADABLE) as error:
        raise StartError(f"{directory} cannot be promoted - {error!r}") from None
    logger.info("REPLICA: promoted to the primary of term %d", term + 1)
