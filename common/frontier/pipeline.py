"""Script calls to one server that share round trips.

A round trip costs a process more than the call in it, and the server a sync of its log. So a call
that comes while another is under way waits for it, a fiftieth of a second at most, and goes in the
next round trip with all that came meanwhile. Where little is called nothing waits; where much is,
by many tasks of a process, each round trip carries more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from common.frontier.scripts import Call
from common.model.errors import FrontierUnavailable

LINGER_S: Final = 0.02
"""How long a call waits for the round trip under way before it goes beside it."""
ENOUGH: Final = 256
"""Keys and arguments that go beside it at once: they are worth a round trip of their own."""
FULL: Final = 2048
"""Keys and arguments a round trip carries, about."""
_CLOSED: Final = "the connection was closed"

Answer = list[Any] | Exception
"""To calls that came together: a reply each, or why there are none."""
Take = Callable[[], list[Sequence[Call]]]
Send = Callable[[Take], Awaitable[list[Answer]]]


class _Waiting(NamedTuple):
    calls: Sequence[Call]
    size: int
    answered: asyncio.Future[list[Any]]


class Pipeline:
    """The calls of one process to one server."""

    def __init__(self, send: Send, *, most: int) -> None:
        """Prepare.

        Args:
            send: makes one round trip: takes what is to go with it once it can be sent, so that
                nothing goes that was cancelled before; returns an answer to each group of calls.
            most: round trips under way at one time.
        """
        self._send = send
        self._most = most
        self._waiting: deque[_Waiting] = deque()
        self._size = 0
        """Of all that waits."""
        self._trips: set[asyncio.Task[None]] = set()
        self._to_take = 0
        """Trips that have not taken anything yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls in one round trip, maybe with others; a reply each.

        One that is cancelled before it was sent never will be.

        Raises:
            FrontierUnavailable: no answer.
            Exception: what stands in place of the answer.
        """
        if self._is_closed:
            raise FrontierUnavailable(_CLOSED)
        loop = asyncio.get_running_loop()
        size = sum(len(one.keys) + len(one.args) for one in calls)
        answered: asyncio.Future[list[Any]] = loop.create_future()
        self._waiting.append(_Waiting(calls, size, answered))
        self._size += size
        if not self._trips or self._size >= max(ENOUGH, self._to_take * FULL):
            self._begin()
        elif self._timer is None:
            self._timer = loop.call_later(LINGER_S, self._begin)
        return await answered

    async def close(self) -> None:
        """End what is under way; calls fail, also later ones."""
        self._is_closed = True
        self._fail(self._take(all_of_it=True), FrontierUnavailable(_CLOSED))
        trips = list(self._trips)
        for trip in trips:
            trip.cancel()
        await asyncio.gather(*trips, return_exceptions=True)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and len(self._trips) < self._most:
            # Its first step is in the next turn of the loop: what is called in this one goes along.
            self._to_take += 1
            trip = asyncio.create_task(self._trip())
            self._trips.add(trip)
            trip.add_done_callback(self._ended)

    def _ended(self, trip: asyncio.Task[None]) -> None:
        self._trips.discard(trip)
        self._begin()

    async def _trip(self) -> None:
        group: list[_Waiting] = []
        has_taken = False

        def take() -> list[Sequence[Call]]:
            nonlocal has_taken
            has_taken = True
            self._to_take -= 1
            group.extend(self._take())
            return [one.calls for one in group]

        try:
            answers = await self._send(take)
            for one, answer in zip(group, answers, strict=True):
                if one.answered.done():
                    continue  # cancelled
                if isinstance(answer, Exception):
                    one.answered.set_exception(answer)
                else:
                    one.answered.set_result(answer)
        except asyncio.CancelledError:
            self._fail(group, FrontierUnavailable(_CLOSED))
            raise
        except Exception as error:  # noqa: BLE001 - goes to those who called
            self._fail(group if has_taken else self._take(), error)
        finally:
            if not has_taken:
                self._to_take -= 1

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
