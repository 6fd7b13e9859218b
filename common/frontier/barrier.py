"""One wait for all who ask together: each is served by a wait that began after it asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Barrier:
    """Runs one wait at a time; who comes meanwhile shares the next one."""

    def __init__(self, wait: Callable[[], Awaitable[str]]) -> None:
        self._wait = wait
        self._running: asyncio.Task[str] | None = None
        self._next: asyncio.Task[str] | None = None

    async def passed(self) -> str:
        """Return what a wait returned, or raise what it raised, that begins from now on."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            # Whoever asked may be gone when it fails.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _after(self, former: asyncio.Task[str] | None) -> str:
        if former is not None:
            await asyncio.wait([former])
        self._running, self._next = self._next, None
        return await self._wait()

    async def close(self) -> None:
        """End what is under way."""
        tasks = [one for one in (self._running, self._next) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
