"""Script calls to one server that share round trips.

A round trip costs a process more than the call in it, and the server a sync of its log. So one is
under way at a time: calls that come meanwhile wait, and go together in the next. Where little is
called nothing waits; where much is, by many tasks of a process, each round trip carries more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from common.frontier.scripts import Call
from common.model.errors import FrontierUnavailable

FULL: Final = 2048
"""Keys and arguments a round trip carries, about; where more wait, another one begins beside it."""
_CLOSED: Final = "the connection was closed"

Answer = list[Any] | Exception
"""To calls that came together: a reply each, or why there are none."""
Send = Callable[[list[Sequence[Call]]], Awaitable[list[Answer]]]


class _Waiting(NamedTuple):
    calls: Sequence[Call]
    size: int
    answered: asyncio.Future[list[Any]]


class Pipeline:
    """The calls of one process to one server."""

    def __init__(self, send: Send) -> None:
        """Prepare.

        Args:
            send: sends calls in one round trip; returns an answer to each group, or raises
                ``FrontierUnavailable`` where there is none to any.
        """
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self._size = 0
        """Of all that waits."""
        self._trips: set[asyncio.Task[None]] = set()

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls in one round trip, maybe with others; a reply each.

        One that is cancelled before it was sent never will be.

        Raises:
            FrontierUnavailable: no answer, also where it was one to calls sent before these.
            Exception: what stands in place of the answer.
        """
        size = sum(len(one.keys) + len(one.args) for one in calls)
        answered: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(calls, size, answered))
        self._size += size
        if not self._trips or self._size >= FULL:
            self._begin()
        return await answered

    async def close(self) -> None:
        """End what is under way; calls fail."""
        self._fail(self._take(all_of_it=True), FrontierUnavailable(_CLOSED))
        trips = list(self._trips)
        for trip in trips:
            trip.cancel()
        await asyncio.gather(*trips, return_exceptions=True)

    def _begin(self) -> None:
        # Its first step is in the next turn of the loop: what is called in this one goes with it.
        trip = asyncio.create_task(self._trip())
        self._trips.add(trip)
        trip.add_done_callback(self._ended)

    def _ended(self, trip: asyncio.Task[None]) -> None:
        self._trips.discard(trip)
        if self._waiting and not self._trips:
            self._begin()

    async def _trip(self) -> None:
        group = self._take()
        if not group:
            return
        try:
            answers = await self._send([one.calls for one in group])
        except asyncio.CancelledError:
            self._fail(group, FrontierUnavailable(_CLOSED))
            raise
        except FrontierUnavailable as error:
            # Those who wait would be told the same, later.
            self._fail(group + self._take(all_of_it=True), error)
            return
        except Exception as error:  # noqa: BLE001 - goes to those who called
            self._fail(group, error)
            return
        for one, answer in zip(group, answers, strict=True):
            if one.answered.done():
                continue  # cancelled
            if isinstance(answer, Exception):
                one.answered.set_exception(answer)
            else:
                one.answered.set_result(answer)

    def _take(self, *, all_of_it: bool = False) -> list[_Waiting]:
        """Take what waits, as much as one round trip carries, without what was cancelled."""
        taken: list[_Waiting] = []
        size = 0
        while self._waiting and (all_of_it or not taken or size + self._waiting[0].size <= FULL):
            one = self._waiting.popleft()
            self._size -= one.size
            if not one.answered.done():
                taken.append(one)
                size += one.size
        return taken

    def _fail(self, group: Sequence[_Waiting], error: Exception) -> None:
        for one in group:
            if not one.answered.done():
                one.answered.set_exception(error)
