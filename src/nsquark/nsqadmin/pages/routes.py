"""Which page is where. Paths are relative to the base path, under which the server mounts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..cluster import Cluster
from ..routing import Resource
from .forms import acting, seeking
from .parts.graphite import Graphite
from .site import HEADERS, Notify, Site
from .views import detail, lists, messages, pipelines, search

STATIC = Path(__file__).with_name("static")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# A new version has new files under the same names: a browser asks whether its copy still holds.
_STATIC_HEADERS = {**HEADERS, "Cache-Control": "no-cache"}


class Pages:
    """The HTML side of nsqadmin.

    `is_admin` says whether a request may change things, `user` whose it is (for the foot). `notify`
    is told of every change that at least one daemon did: the request, the action, topic, channel and node.
    `dashboards` are links to other programs' charts, by name. The graphs of `graphite` are shown. `static`
    serves assets from another directory.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        base_path: str = "/",
        is_admin: Callable[[Request], bool] = lambda request: True,
        user: Callable[[Request], str] = lambda request: "",
        notify: Notify = lambda request, action, topic, channel, node: None,
        interval: float = 5.0,
        dashboards: Mapping[str, str] | None = None,
        graphite: Graphite | None = None,
        static: Path | None = None,
    ) -> None:
        self.site = Site(
            cluster,
            base_path=base_path,
            is_admin=is_admin,
            user=user,
            notify=notify,
            interval=interval,
            dashboards=dashboards,
            graphite=graphite,
        )
        static = static or STATIC
        self._assets = {
            path.relative_to(static).as_posix(): path
            for path in static.rglob("*")
            if path.is_file() and path.suffix in _TYPES
        }

    def routes(self) -> list[Resource]:
        page = self.site.page
        read = {
            "/": lists.streams,
            "/topics": lists.streams,
            "/topics/{topic}": detail.topic,
            "/topics/{topic}/{channel}": detail.channel,
            "/nodes": lists.nodes,
            "/nodes/{node}": detail.node,
            "/counter": lists.counter,
            "/lookup": lists.lookup,
            "/pipelines": pipelines.show,
            "/search": search.search,
            "/history": lists.history,
            "/peek": messages.peek,
            "/dead": messages.dead_letters,
            "/seek": seeking.show,
            "/act": acting.ask,
        }
        change = {"/act": acting.act, "/seek": seeking.move}
        table = [
            Resource(
                path,
                {"GET": page(handler), **({"POST": page(change[path])} if path in change else {})},
            )
            for path, handler in read.items()
        ]
        return [*table, Resource("/static/{asset:path}", {"GET": self._static})]

    async def _static(self, request: Request) -> Response:
        path = self._assets.get(request.path_params["asset"])
        try:
            found = path.stat() if path is not None else None
        except OSError:  # of a directory for development, where files go
            found = None
        if path is None or found is None:
            return PlainTextResponse("NOT_FOUND", 404)
        tag = f'W/"{found.st_mtime_ns:x}-{found.st_size:x}"'
        headers = {**_STATIC_HEADERS, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(path.read_bytes(), headers=headers, media_type=_TYPES[path.suffix])

    async def stop(self) -> None:
        """Stop asking the cluster."""
        await self.site.sampler.stop()
