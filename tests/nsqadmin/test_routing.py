"""Which path leads where."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response

from nsquark.nsqadmin.routing import Resource, Routes


async def handler(_request: Request) -> Response:
    return Response()


PATHS = (
    "/",
    "/nodes",
    "/nodes/{node}",
    "/topics/{topic}",
    "/topics/{topic}/{channel}",
    "/static/{asset:path}",
)
ROUTES = Routes([Resource(path, {"GET": handler}) for path in PATHS])


@pytest.mark.parametrize(
    ("path", "resource", "names"),
    [
        ("/", "/", {}),
        ("/nodes", "/nodes", {}),
        ("/nodes/a:4151", "/nodes/{node}", {"node": "a:4151"}),
        ("/topics/t#ephemeral", "/topics/{topic}", {"topic": "t#ephemeral"}),
        ("/topics/t/c", "/topics/{topic}/{channel}", {"topic": "t", "channel": "c"}),
        ("/static/uplot/a.js", "/static/{asset:path}", {"asset": "uplot/a.js"}),
        ("/static/", "/static/{asset:path}", {"asset": ""}),
    ],
)
def test_a_path_leads_to_its_resource_with_its_names(path: str, resource: str, names: dict[str, str]) -> None:
    found = ROUTES.find(path)
    assert found is not None
    assert (found[0].path, found[1]) == (resource, names)


@pytest.mark.parametrize(
    "path",
    ["", "/topics", "/topics/", "/topics//", "/topics/t/", "/topics//c", "/topics/t/c/d", "/static", "/x"],
)
def test_other_paths_lead_nowhere(path: str) -> None:
    assert ROUTES.find(path) is None


def test_of_two_resources_with_one_path_the_first_counts() -> None:
    first, second = (Resource(path, {method: handler}) for path, method in (("/a", "GET"), ("/a", "POST")))
    found = Routes([first, second]).find("/a")
    assert found is not None
    assert found[0] is first


def test_head_is_get_and_is_not_told_of() -> None:
    assert Resource("/a", {"GET": handler}).handlers["HEAD"] is handler
    assert "HEAD" not in Resource("/a", {"PUT": handler}).handlers
    assert Resource("/a", {"POST": handler, "GET": handler}).allow == "GET, OPTIONS, POST"
