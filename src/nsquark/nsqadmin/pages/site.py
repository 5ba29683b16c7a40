"""What all pages share: cluster and history, templates, headers, and what is said when nothing works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from jinja2.runtime import Context, Macro
from markupsafe import Markup
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from nsquark.version import VERSION

from ..api.answers import comes_from_elsewhere
from ..cluster import Actions, Cluster, Inspection, NodeNotFound
from ..history import History, Sampler
from ..upstream import Failure, UpstreamError
from . import snapshot
from .parts import cells
from .parts import format as shown
from .parts.graphite import OFF, TIMEFRAMES, Graph, Graphite, timeframe_of
from .parts.links import Links, is_web
from .parts.rows import Rows
from .snapshot import Snapshot

FORM_TIMEOUT = 60.0
MAX_FORM = 2 << 20  # a message of 1 MiB, percent-encoded, and a little
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a browser would not say where a form comes from.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Row = TypeVar("Row")
Notify = Callable[[Request, str, str, str, str], None]


class PageError(Exception):
    """A page that says what is wrong with the request."""

    def __init__(self, status: int, title: str, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.title = title
        self.text = text
        self.advice = advice


class Site:
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
    ) -> None:
        self.cluster = cluster
        self.actions = Actions(cluster)
        self.inspection = Inspection(cluster.upstream)
        self.history = History()
        self.sampler: Sampler[Snapshot] = Sampler(
            lambda: snapshot.take(cluster), snapshot.read, self.history, interval
        )
        self.link = Links(base_path)
        self.is_admin = is_admin
        self.notify = notify
        self._user = user
        self._rows: tuple[Snapshot, list[Any]] | None = None
        self._graphite = graphite
        self._headers = _headers(graphite)
        self._loaded: dict[str, Template] = {}
        self._templates = _environment(self.link, interval, dashboards or {})

    def render(
        self, request: Request, template: str, values: Mapping[str, Any], status: int = 200
    ) -> HTMLResponse:
        """A page. `section` among the values says which entry of the navigation it belongs to."""
        text = self._template(template).render(
            {
                "section": "",
                "failures": [],
                "admin": self.is_admin(request),
                "user": self._user(request),
                "has_lookupds": bool(self.cluster.nsqlookupds),
                "lookupd_count": len(self.cluster.nsqlookupds),
                **values,
            }
        )
        # Half a surrogate pair can be in JSON, and so in what a client says of itself; it cannot be in UTF-8.
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status, headers=self._headers)

    def _template(self, name: str) -> Template:
        template = self._loaded.get(name)
        if template is None:
            template = self._loaded[name] = self._templates.get_template(name)
            # Every page copies them. A ChainMap, as which Jinja2 has them, takes much longer to copy.
            template.globals = dict(template.globals)
        return template

    async def rows_of(
        self, snapshot: Snapshot, make: Callable[[Snapshot, History], Awaitable[list[Row]]]
    ) -> list[Row]:
        """The rows of all topics, made once for a snapshot: every reader of the list sorts the same ones."""
        if self._rows is None or self._rows[0] is not snapshot:
            self._rows = snapshot, await make(snapshot, self.history)
        rows: list[Row] = self._rows[1]
        return rows

    def graphs(
        self, request: Request, of: Callable[[Graphite, str], list[Graph]]
    ) -> dict[str, object] | None:
        """What a page shows of Graphite, in the timeframe that its reader chose; None where there is none."""
        if self._graphite is None:
            return None
        timeframe = timeframe_of(request.query_params.get("t", ""))
        pictures = of(self._graphite, timeframe) if timeframe != OFF else []
        return {"timeframe": timeframe, "timeframes": (*TIMEFRAMES, OFF), "pictures": pictures}

    def error(
        self, request: Request, error: PageError, failures: list[Failure] | None = None
    ) -> HTMLResponse:
        values = {
            "title": error.title,
            "text": error.text,
            "advice": error.advice,
            "failures": failures or [],
        }
        return self.render(request, "error.html", values, error.status)

    def page(
        self, handler: Callable[[Site, Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint that a handler is: what it raises becomes a page."""

        async def endpoint(request: Request) -> Response:
            try:
                if request.method not in ("GET", "HEAD"):
                    self._may_change(request)
                self.sampler.look()
                return await handler(self, request)
            except PageError as error:
                return self.error(request, error)
            except NodeNotFound as error:
                return self.error(
                    request,
                    PageError(404, "No such node", f"{error}.", "It may have been stopped, or have moved."),
                )
            except UpstreamError as error:
                return self._upstream_error(request, error)

        return endpoint

    def _may_change(self, request: Request) -> None:
        if not self.is_admin(request):
            raise PageError(
                403,
                "You may only look",
                "Only the users that --admin-user names may change the cluster, and you are none of them.",
            )
        if comes_from_elsewhere(request):
            raise PageError(
                403,
                "Not from this page",
                "The request did not come from a page of this nsqadmin, so it was not done.",
                "Behind a proxy, let it pass on Host, or set X-Forwarded-Host. Scripts use /api.",
            )

    def _upstream_error(self, request: Request, error: UpstreamError) -> HTMLResponse:
        if error.not_found:
            return self.error(
                request,
                PageError(
                    404,
                    "No such topic",
                    "No daemon that was asked knows this topic.",
                    "The first message that is published to a topic creates it.",
                ),
            )
        flag = "--lookupd-http-address" if error.kind == "nsqlookupd" else "--nsqd-http-address"
        return self.error(
            request,
            PageError(
                502,
                "The cluster does not answer",
                f"Not one {error.kind} could be asked.",
                f"Is it running, and are the addresses of {flag} its HTTP addresses? "
                "This page tries again by itself.",
            ),
            error.failures,
        )


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form. Raises PageError if it is too large or no form."""
    data = bytearray()
    try:
        async with asyncio.timeout(FORM_TIMEOUT):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MAX_FORM:
                    raise PageError(413, "Too large", f"A form may have {shown.size(MAX_FORM)} at most.")
    except (ClientDisconnect, TimeoutError):
        raise PageError(400, "Not understood", "The request ended in the middle of its form.") from None
    try:
        fields = parse_qsl(
            data.decode("ascii"), keep_blank_values=True, max_num_fields=50, errors="surrogateescape"
        )
    except ValueError:
        raise PageError(400, "Not understood", "The request holds no form.") from None
    return dict(fields)


def _headers(graphite: Graphite | None) -> dict[str, str]:
    """The headers of every page. Pictures may also come from Graphite, where the browser loads them there."""
    if graphite is None or not graphite.origin:
        return HEADERS
    policy = f"{HEADERS['Content-Security-Policy']}; img-src 'self' {graphite.origin}"
    return {**HEADERS, "Content-Security-Policy": policy}


class _Context(Context):
    """Calls what a template calls, and asks of macros alone whether they want the context besides.

    A page of one topic has a hundred calls. Jinja2 takes longer to look at a function than most of them do.
    """

    def call(self, called: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if type(called) is Macro:
            return Context.call(self, called, *args, **named)
        named.pop("_block_vars", None)
        named.pop("_loop_vars", None)
        return called(*args, **named)


class _Environment(Environment):
    context_class = _Context


def _environment(link: Links, interval: float, dashboards: Mapping[str, str]) -> Environment:
    environment = _Environment(
        loader=PackageLoader("nsquark.nsqadmin.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,  # or it would look at every file for every page
    )
    for name in (
        "count", "short", "rate", "duration", "duration_ns", "size", "moment", "ago", "percentile",
        "body_text",
    ):  # fmt: skip
        environment.filters[name] = getattr(shown, name)
    environment.filters["is_web"] = is_web
    environment.globals.update(
        link=link,
        rows=Rows(link),
        static=Markup(cells.safe(link("/static"))),
        navigation=[
            (name, Markup(cells.safe(link.home() if name == "Topics" else link(f"/{name.lower()}"))))
            for name in ("Topics", "Nodes", "Pipelines", "Lookup", "Counter")
        ],
        cells=cells,
        version=VERSION,
        refresh_seconds=interval,
        # --graphite-url may hold a login, which is nsqadmin's and not the reader's.
        dashboards={
            name: url for name, url in dashboards.items() if is_web(url) and "@" not in urlsplit(url).netloc
        },
    )
    return environment
