"""How many pages one process works on at once, over all its tasks."""

from __future__ import annotations

import asyncio


class Capacity:
    """A counted number of places, reserved before URLs are claimed for them."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._free = places
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def in_use(self) -> int:
        """Places taken."""
        return self.places - self._free

    async def reserve(self, most: int) -> int:
        """Wait for a free place, and take up to ``most``; return how many were taken."""
        while self._free == 0:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        taken = min(most, self._free)
        self._free -= taken
        return taken

    def give_back(self, places: int) -> None:
        """Free places, and wake whoever waits."""
        self._free += places
        while self._waiters and places > 0:
            waiter = self._waiters.pop(0)
            places -= 1
            if not waiter.done():
                waiter.set_result(None)
