"""What every route of nsqadmin shares: the options, the cluster, its admins, the notifications."""

from __future__ import annotations

from starlette.requests import Request

from .cluster import Actions, Cluster, Inspection
from .notifications import Notifications
from .options import Options, allowed_network, secret, tls_context
from .upstream import Upstream


class Admin:
    def __init__(self, options: Options) -> None:
        """Made within a running loop. Raises StartError."""
        self.options = options
        self.upstream = Upstream(
            connect_timeout=options.http_client_connect_timeout,
            timeout=options.http_client_request_timeout,
            tls=tls_context(options),
            secret=secret(options),
        )
        self.cluster = Cluster(self.upstream, options.lookupd_http_address, options.nsqd_http_address)
        self.actions = Actions(self.cluster)
        self.inspection = Inspection(self.upstream)
        self.notifications = Notifications(
            options.notification_http_endpoint,
            connect_timeout=options.http_client_connect_timeout,
            timeout=options.http_client_request_timeout,
        )
        self.config_network = allowed_network(options)
        # In front of every path; empty without a base path.
        self.prefix = options.base_path.rstrip("/")

    def is_admin(self, request: Request) -> bool:
        """Whether the user that the ACL header names may change things; all may if no admin is named."""
        admins = self.options.admin_user
        return not admins or request.headers.get(self.options.acl_http_header) in admins

    def user(self, request: Request) -> str:
        """The user that the ACL header names. The proxy in front of nsqadmin checks the name."""
        return request.headers.get(self.options.acl_http_header, "")

    def set_nsqlookupds(self, addresses: list[str]) -> None:
        self.options.lookupd_http_address = addresses
        self.cluster.nsqlookupds = list(addresses)

    async def close(self) -> None:
        await self.notifications.close()
        self.upstream.close()
