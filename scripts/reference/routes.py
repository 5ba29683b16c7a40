"""The page of all HTTP routes: nsqd's from its OpenAPI description, nsqlookupd's from its router."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from nsquark.nsqd.http.routes import OPENAPI

HEAD = """\
# HTTP routes

Made from nsqd's OpenAPI description when this site is built. nsqd serves it at `/openapi.yaml`, and the tests
hold it against a running daemon. [nsqd's HTTP API](../http-api.md) says what a description cannot.
[nsqlookupd](../nsqlookupd.md) and [nsqadmin](../nsqadmin.md) have pages of their own.
"""
METHODS = ("get", "post", "put", "delete")


def description() -> dict[str, Any]:
    loaded = yaml.safe_load(OPENAPI.read_text())
    assert isinstance(loaded, dict)
    return loaded


def page() -> str:
    described = description()
    parts = [HEAD, "\n## nsqd\n"]
    for tag in described["tags"]:
        routes = [route for route in _routes(described) if tag["name"] in route[2]["tags"]]
        parts.append(f"\n### {tag['name'].capitalize()}\n\n{_resolved(described, tag)['description']}\n\n")
        if tag["name"] == "old names":
            parts.append(_old_names(described))
        for method, path, operation in routes:
            parts.append(_route(described, method, path, operation))
    parts.append(_nsqlookupd())
    return "".join(parts)


def _routes(described: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each route once, under today's name: the old names share the operation of the new one."""
    seen: set[int] = set()
    for path, methods in described["paths"].items():
        for method in METHODS:
            operation = methods.get(method)
            if operation is not None and id(operation) not in seen:
                seen.add(id(operation))
                yield method.upper(), path, operation


def _old_names(described: Mapping[str, Any]) -> str:
    first: dict[int, str] = {}
    lines = []
    for path, methods in described["paths"].items():
        for method in METHODS:
            if method in methods and (today := first.setdefault(id(methods[method]), path)) != path:
                lines.append(f"| `{method.upper()} {path}` | `{today}` |\n")
    return "| route | today's name |\n|---|---|\n" + "".join(lines)


def _route(described: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"#### `{method} {path}`\n\n{operation['summary']}.".replace("..", ".")]
    if "description" in operation:
        parts.append(f" {operation['description'].strip()}")
    parts.append("\n\n")
    parameters = [_resolved(described, each) for each in operation.get("parameters", ())]
    if parameters:
        parts.append("| parameter | |\n|---|---|\n")
        for each in parameters:
            needed = ", required" if each.get("required") else ""
            parts.append(
                f"| `{each['name']}` ({_kind(described, each.get('schema', {}))}{needed}) | {_cell(each)} |\n"
            )
        parts.append("\n")
    parts.append("| answer | |\n|---|---|\n")
    for status, response in operation["responses"].items():
        parts.append(f"| {status} | {_cell(_resolved(described, response))} |\n")
    return "".join([*parts, "\n"])


def _kind(described: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    schema = _resolved(described, schema)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "string")
    return "or ".join(kind) if isinstance(kind, list) else str(kind)


def _resolved(described: Mapping[str, Any], thing: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in thing:
        found: Any = described
        for step in thing["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        thing = found
    return thing


def _cell(thing: Mapping[str, Any]) -> str:
    return " ".join(thing.get("description", "").split()).replace("|", "\\|")


def nsqlookupd_routes() -> list[str]:
    from nsquark.nsqlookupd.directory import Directory
    from nsquark.nsqlookupd.http_api import router
    from nsquark.nsqlookupd.options import parse

    table = router(Directory(parse([]), 0, 0))
    return [f"{method} {path}" for method, path in table.listed()]


def _nsqlookupd() -> str:
    rows = "".join(f"| `{route}` |\n" for route in nsqlookupd_routes())
    return (
        f"\n## nsqlookupd\n\nAs of NSQ 1.3, see [nsqlookupd](../nsqlookupd.md).\n\n| route |\n|---|\n{rows}"
    )
