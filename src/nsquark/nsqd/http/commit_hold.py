"""In a replica group, a change over HTTP is answered when the other members have it.

Where they do not confirm it in time, the answer is 503 NOT_CONFIRMED: the change is made here, it may be lost
if another member takes over, and the client may repeat it.
"""

from __future__ import annotations

from inspect import isawaitable

from nsquark.http import HttpError, PendingResponse, Request, Response
from nsquark.http.server.router import Handler
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.commit_gate import CommitGate

from .arguments import not_stored

# Their receipts wait by themselves.
PUBLISHES = frozenset(("/pub", "/put", "/mpub", "/mput"))
# What they change is in no file.
IN_MEMORY = frozenset(("/channel/report", "/channel/lease"))


class CommitHold:
    """Wraps the handlers of the routes that change something."""

    def __init__(self, broker: Broker, gate: CommitGate) -> None:
        self._broker = broker
        self._gate = gate
        # A member that is gone is removed within the one, or this primary gives way within the other.
        self._patience = 2 * broker.options.replica_timeout + broker.options.replica_lease

    def __call__(self, method: str, path: str, handler: Handler) -> Handler:
        """The handler to use for a route."""
        if path in PUBLISHES or path in IN_MEMORY or path.startswith(("/replica", "/debug", "/config")):
            return handler
        # The routes before NSQ 1.0 change things with a GET, and /log/range commits on the way.
        if method == "GET" and path != "/log/range" and not path.endswith(("_topic", "_channel")):
            return handler

        async def held(request: Request) -> Response:
            if path == "/log/range" and "commit" not in request.query:
                return await _answer(handler, request)
            if path.startswith("/staged/") and self._gate.refusing:
                raise not_stored(self._gate.refusing)
            try:
                response = await _answer(handler, request)
            except HttpError as error:
                response = error.response
            self._broker.turn.run()  # which writes the journals
            if not await self._gate.wait(self._patience):
                raise HttpError(503, "NOT_CONFIRMED")
            return response

        return held


async def _answer(handler: Handler, request: Request) -> Response:
    answer = handler(request)
    if isinstance(answer, PendingResponse):
        raise TypeError(f"{request.path} answers later, and cannot be held")
    return await answer if isawaitable(answer) else answer
