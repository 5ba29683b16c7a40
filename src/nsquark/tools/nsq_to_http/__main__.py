"""The `nsq_to_http` command."""

from __future__ import annotations

import logging
import sys

from nsquark.cli import process
from nsquark.http.client.pool import ClientPool
from nsquark.version import NSQ_VERSION

from ..command.options import consumer_config
from ..command.running import Tool
from ..forward.running import Forwarding
from ..forward.target_choice import MODES
from ..forward.timing import StatusLines
from .options import ALL, FLAGS, PROGRAM, Options, check, parse_headers
from .sending import Sending
from .target import GetTarget, PostTarget, Target, make_headers

logger = logging.getLogger("nsquark.tools.nsq_to_http")  # not __name__: under `python -m` that is "__main__"


async def run(options: Options) -> None:
    """Send until a signal comes. Raises ToolError."""
    process.collect_seldom()
    if options.mode not in MODES and options.mode != ALL:
        logger.warning(
            "--mode=%s is none of %s: every address gets every message, as with all",
            options.mode,
            ", ".join([*MODES, ALL]),
        )
    content_type = options.content_type if options.post else ""
    headers = make_headers(f"{PROGRAM} v{NSQ_VERSION}", content_type, parse_headers(options.header))
    targets: list[Target] = [PostTarget(address, headers) for address in options.post]
    targets += [GetTarget(address, headers) for address in options.get]
    forwarding = Forwarding([options.topic], options.channel, options, consumer_config(PROGRAM, options))
    pool = ClientPool(
        connect_timeout=options.http_client_connect_timeout,
        timeout=options.http_client_request_timeout,
        keep=options.n + len(targets),
    )
    sending = Sending(
        targets,
        options.mode,
        pool,
        timeout=options.http_client_request_timeout,
        sample=options.sample,
        concurrency=options.n,
        status=StatusLines(options.status_every, [target.address for target in targets]),
    )
    try:
        await forwarding.run(sending.send_all, sending.counts)
    finally:
        pool.close()


def main() -> int:
    return Tool(PROGRAM, FLAGS, check, run).main()


if __name__ == "__main__":
    sys.exit(main())
