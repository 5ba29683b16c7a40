"""Whether the client of a connection is still there, for handlers that wait for something else."""

from __future__ import annotations

import asyncio


class Departure:
    """The departure of one client: it has closed its side, or the connection is lost."""

    __slots__ = ("_awaited", "happened")

    def __init__(self) -> None:
        self.happened = False
        self._awaited: asyncio.Future[None] | None = None

    def tell(self) -> None:
        self.happened = True
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    async def wait(self, seconds: float, news: asyncio.Future[None] | None = None) -> bool:
        """Wait for it, at most so long, or for `news`; returns whether the client has gone."""
        if not self.happened:
            self._awaited = news if news is not None else asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._awaited, seconds)
            except TimeoutError:
                pass
            finally:
                self._awaited = None
        return self.happened
