"""How many pages one process works on at once, and how its jobs share these places.

A place that becomes free goes to the waiting job that holds the fewest places for its weight, so
that jobs which all have work come to hold places in the ratio of their weights. A job that has
nothing to claim leaves its part to the others; nothing is taken away from a page under way, so a
new job gets its part as pages end.

A page that may end the process is worked on *alone*: its place is the only one in use meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple

from worker.heavy import HeavyPages

_STEEPEST: Final = 10
"""Priorities further from 0 than this weigh no more and no less."""


def weight(priority: int) -> float:
    """Return what a job's priority weighs: each step doubles its part of the places."""
    return 2.0 ** max(-_STEEPEST, min(_STEEPEST, priority))


class _Waiter(NamedTuple):
    most: int
    granted: asyncio.Future[int]


class Capacity:
    """A counted number of places, reserved before URLs are claimed for them."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.heavy = HeavyPages()
        self._free = places
        self._waiting: dict[Share, None] = {}
        """The shares with waiters; of equals the one that has waited longest comes first."""
        self._loners: deque[asyncio.Future[None]] = deque()
        """Pages that wait, each with a place, until nobody else works."""
        self._is_alone = False

    @property
    def in_use(self) -> int:
        """Places taken."""
        return self.places - self._free

    def share(self, *, weight: float) -> Share:
        """Return the part of a job, which weighs that much against the others'."""
        return Share(self, weight)

    def take(self, share: Share, most: int) -> int:
        """Take up to ``most`` of the free places, but leave what waits its part; may be 0."""
        rivals = sum(other.weight for other in self._waiting if other is not share)
        part = int(self._free * share.weight / (share.weight + rivals))
        taken = min(most, self._free, max(1, part))
        self._free -= taken
        return taken

    def wait(self, share: Share) -> None:
        """Remember that the share has somebody waiting, and serve whoever can be."""
        self._waiting[share] = None
        self._serve()

    def free(self, places: int) -> None:
        """Take places back, and serve who waits for them."""
        self._free += places
        self._serve()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait, with a place of one's own, until no other is in use, and keep it so.

        No place is given to anybody meanwhile; those that wait here take their turns.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loners.append(turn)
        self._serve()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._is_alone = False
            else:
                self._loners.remove(turn)
            self._serve()

    def _serve(self) -> None:
        if self._loners and not self._is_alone and self.in_use <= len(self._loners):
            self._is_alone = True
            self._loners.popleft().set_result(None)
        if self._is_alone or self._loners:
            return
        while self._free and self._waiting:
            share = min(self._waiting, key=lambda one: one.in_use / one.weight)
            del self._waiting[share]
            share.serve()
            if share.has_waiters:
                self._waiting[share] = None


class Share:
    """The places of one job: taken out of the capacity by its weight."""

    def __init__(self, capacity: Capacity, weight: float) -> None:
        self.weight = weight
        self.heavy = capacity.heavy
        """Those of all jobs."""
        self.in_use = 0
        """Places taken."""
        self._capacity = capacity
        self._waiters: deque[_Waiter] = deque()

    @property
    def has_waiters(self) -> bool:
        """Tell whether somebody waits for a place."""
        return any(not waiter.granted.done() for waiter in self._waiters)

    async def reserve(self, most: int) -> int:
        """Wait for a place, and take up to ``most``; return how many were taken."""
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append(_Waiter(most, granted))
        self._capacity.wait(self)
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(granted.result())
            raise

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the page that has a place is the only one in the process."""
        return self._capacity.alone()

    def serve(self) -> None:
        """Give the one who has waited longest what can be had; called when a place is free."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.granted.done():
                taken = self._capacity.take(self, waiter.most)
                self.in_use += taken
                waiter.granted.set_result(taken)
                return

    def give_back(self, places: int) -> None:
        """Free places, and wake whoever waits for them."""
        self.in_use -= places
        self._capacity.free(places)
