"""Which path leads where: a resource for each, with a handler for each method.

A path is text, with names in braces at its end: `/topics/{topic}/{channel}`. A name stands for one part of
the path, which is not empty; `{asset:path}` stands for all that is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]

_REST = ":path"


class Resource:
    """What a path leads to. HEAD is GET, whose body the connection leaves out."""

    def __init__(self, path: str, handlers: Mapping[str, Handler]) -> None:
        self.path = path
        self.handlers = dict(handlers)
        if "GET" in handlers:
            self.handlers["HEAD"] = handlers["GET"]
        self.allow = ", ".join(sorted((*handlers, "OPTIONS")))


@dataclass(frozen=True, slots=True)
class _Pattern:
    prefix: str
    names: tuple[str, ...]
    rest: bool  # whether the last name stands for all that is left
    resource: Resource

    def match(self, path: str) -> dict[str, str] | None:
        if not path.startswith(self.prefix):
            return None
        parts = path[len(self.prefix) :].split("/", len(self.names) - 1 if self.rest else -1)
        if len(parts) != len(self.names) or (not self.rest and "" in parts):
            return None
        return dict(zip(self.names, parts, strict=True))


class Routes:
    """The resources of nsqadmin. Of two with the same path, the first counts."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._fixed: dict[str, Resource] = {}
        self._patterns: list[_Pattern] = []
        for resource in resources:
            prefix, brace, _ = resource.path.partition("{")
            if not brace:
                self._fixed.setdefault(prefix, resource)
                continue
            names = [part.strip("{}") for part in resource.path[len(prefix) :].split("/")]
            rest = names[-1].endswith(_REST)
            names[-1] = names[-1].removesuffix(_REST)
            self._patterns.append(_Pattern(prefix, tuple(names), rest, resource))

    def find(self, path: str) -> tuple[Resource, dict[str, str]] | None:
        """The resource of a decoded path and what its names stand for; None where there is none."""
        resource = self._fixed.get(path)
        if resource is not None:
            return resource, {}
        for pattern in self._patterns:
            names = pattern.match(path)
            if names is not None:
                return pattern.resource, names
        return None
