"""nsqadmin as a process sees it: the listener, and starting and stopping in order.

uvicorn speaks HTTP and runs the application. The event loop, signals, logging and the listening socket are
none of its business here.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import uvicorn
from uvicorn.server import ServerState

from nsquark.net.listeners import Listener, listen, port_of, serve, shown

from .admin import Admin
from .application import Application
from .connection import BoundedConnection, Unsent
from .options import Options
from .pages import Pages
from .pages.parts.graphite import Graphite, graphite_of

logger = logging.getLogger(__name__)

KEEP_ALIVE = 75  # seconds
GRACE = 1.0  # seconds that requests have to end when nsqadmin stops


class Server:
    def __init__(self, options: Options) -> None:
        """Bind the socket. Raises StartError."""
        self.options = options
        self._http = listen("nsqadmin", options.http_address)
        logger.info("HTTP: listening on %s", shown(self._http))
        self.http_port = port_of(self._http)
        self._state = ServerState()
        self._listener: Listener | None = None

    @property
    def connection_count(self) -> int:
        return len(self._state.connections)

    async def start(self) -> None:
        """Accept connections. Raises StartError."""
        self.admin = Admin(self.options)
        self.pages = Pages(
            self.admin.cluster,
            base_path=self.options.base_path,
            is_admin=self.admin.is_admin,
            user=self.admin.user,
            notify=self.admin.notifications.tell,
            dashboards={
                "Prometheus": self.options.prometheus_url,
                "Grafana": self.options.grafana_url,
                "Graphite": self.options.graphite_url,
            },
            graphite=_graphite(self.options, self.admin.prefix),
            static=Path(self.options.dev_static_dir) if self.options.dev_static_dir else None,
        )
        config = uvicorn.Config(
            Application(self.admin, self.pages.routes()),
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # the peer is the peer: /config is allowed by it
            server_header=False,
            date_header=False,  # which uvicorn's own server would set every second; `Application` sets it
            timeout_keep_alive=KEEP_ALIVE,
        )
        config.load()
        state, unsent = self._state, Unsent()
        self._listener = await serve(
            lambda: BoundedConnection(unsent, config=config, server_state=state, app_state={}), self._http
        )

    async def stop(self) -> None:
        """Stop accepting; requests under way have a second to end."""
        if self._listener is None:
            self._http.close()
            return
        self._listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()  # one without a request closes at once
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=GRACE)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # so that requests hear of it, and do not mind to be cancelled
        late = set(self._state.tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=GRACE)
        await self.pages.stop()
        await self.admin.close()


def _graphite(options: Options, prefix: str) -> Graphite | None:
    return graphite_of(
        options.graphite_url,
        f"{prefix}/render" if options.proxy_graphite else "",
        statsd_prefix=options.statsd_prefix,
        counter_format=options.statsd_counter_format,
        gauge_format=options.statsd_gauge_format,
        interval=options.statsd_interval,
    )
