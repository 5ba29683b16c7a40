"""The `nsq_to_nsq` command."""

from __future__ import annotations

import sys

from nsquark.cli import process
from nsquark.client.addresses import as_addresses
from nsquark.client.config import Config, Reconnect
from nsquark.errors import UsageError

from ..command.options import client_config, consumer_config
from ..command.running import Tool, ToolError
from ..forward.running import Forwarding
from ..forward.timing import StatusLines
from .copying import Copying
from .destination import Destination
from .json_filter import JsonFilter
from .options import FLAGS, PROGRAM, Options, check

# The consumer backs off while a destination is away. The destination is dialled more often than that, so that
# a message which tries again finds it connected.
_PRODUCER = Config(reconnect=Reconnect(first=0.5, cap=5.0))


async def run(options: Options) -> None:
    """Copy until a signal comes. Raises ToolError."""
    process.collect_seldom()
    forwarding = Forwarding(options.topic, options.channel, options, consumer_config(PROGRAM, options))
    config = client_config(PROGRAM, options.producer_opt, _PRODUCER)
    try:
        addresses = as_addresses(options.destination_nsqd_tcp_address)
    except UsageError as error:
        raise ToolError(str(error)) from None
    copying = Copying(
        [Destination(address, config) for address in addresses],
        options.mode,
        options.destination_topic,
        JsonFilter(options.require_json_field, options.require_json_value, options.whitelist_json_field),
        StatusLines(options.status_every, addresses),
    )
    try:
        await forwarding.run(copying.copy, copying.counts)
    finally:
        await copying.close()


def main() -> int:
    return Tool(PROGRAM, FLAGS, check, run).main()


if __name__ == "__main__":
    sys.exit(main())
