"""The requests to one host for one URL, each with its turns.

Where hosts share limits (``--per-ip``, ``--per-domain``), a request takes the turns of its groups
first and the host's last: domain, address, host. Whoever waits with something in its hands holds
only what comes earlier in this order, so that no two wait for each other; and not for long: then
what was taken goes back. So the turn of a host is never kept from others by a group, and the
permits of a group not for long by a slow host.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from common.model.ids import HostKey
from worker.groups import Group, Groups
from worker.turns import Turns

if TYPE_CHECKING:
    from worker.dns import Route
    from worker.pacer import Pacer

HOLD_S: Final = 0.5
"""How long the first turn that was taken may wait for those that are missing."""


class Visit:
    """The requests to one host for one URL; a turn that is open at the end is ended."""

    def __init__(self, pacer: Pacer, host: HostKey, delay_s: float) -> None:
        self._pacer = pacer
        self._host = host
        self._delay_s = delay_s
        self._open: Turns | None = None
        self.wait_s = 0.0
        """After :meth:`next` said no: when to come again."""
        self.route: Route | None = None
        """Which address the next request goes to, where addresses are limited."""

    def __enter__(self) -> Self:
        """Begin; nothing is taken yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End what is open: a request that was dropped has ended with its connection."""
        self.ended()

    async def next(self, *, before: float) -> bool:
        """Take the turn for the next request; False = it does not come in time."""
        self.ended()
        wait_s = await self._start(before)
        self.wait_s = wait_s or 0.0
        return wait_s is None

    def ended(self, *, pause_s: float = 0.0) -> None:
        """The response has ended; repeating it is harmless."""
        if self._open is not None:
            turns, self._open = self._open, None
            turns.ended(pause_s=pause_s)

    def unused(self) -> None:
        """The request was not sent after all."""
        if self._open is not None:
            turns, self._open = self._open, None
            turns.unused()

    async def _start(self, before: float) -> float | None:
        """Take the host's turn; else return the seconds after which to come again."""
        turns = self._pacer.host(self._host)
        wait_s = await turns.start(self._delay_s, before=before)
        if wait_s is None:
            self._open = turns
        return wait_s


class GroupedVisit(Visit):
    """A visit to a host that shares limits with others."""

    def __init__(self, pacer: Pacer, host: HostKey, delay_s: float, groups: Groups) -> None:
        super().__init__(pacer, host, delay_s)
        self._groups = groups
        self._taken: list[Turns] = []
        """Of groups; nothing waits with the host's turn in its hands."""
        self._held_from = 0.0
        """When the first of them was taken."""
        self.route = groups.route(host)

    def ended(self, *, pause_s: float = 0.0) -> None:
        """The response has ended; repeating it is harmless."""
        super().ended(pause_s=pause_s)
        self._give_back()

    def unused(self) -> None:
        """The request was not sent after all."""
        super().unused()
        self._give_back()

    def _give_back(self) -> None:
        taken, self._taken = self._taken, []
        for turns in taken:
            turns.unused()

    async def _start(self, before: float) -> float | None:
        # Half of the time is for the turns: a name that cannot be looked up has to fail in the end.
        look_up_s = max(0.0, before - time.monotonic()) / 2
        groups = await self._groups.of(self._host, self.route, within_s=look_up_s)
        while True:
            wait_s = self._pacer.rest_s(self._host)  # nothing is held meanwhile
            if wait_s <= 0:
                told_s = await self._take_groups(groups, before)
                if told_s is not None:
                    self._give_back()
                    return told_s
                until = self._hold_until(before)
                came_s = await super()._start(until)
                if came_s is None and time.monotonic() <= until:
                    return None
                self.unused()  # also where the process slept in between
                wait_s = came_s or 0.0
            if time.monotonic() + wait_s > before:
                return wait_s
            await asyncio.sleep(wait_s)

    async def _take_groups(self, groups: Sequence[Group], before: float) -> float | None:
        """Take the turns of all groups; else return the seconds after which to come again."""
        for group in groups:
            told_s = self._groups.refusal_s(group, waiting=self._pacer.waiting(group))
            if told_s is not None:
                return told_s  # before anything is held
        for group in groups:
            turns = self._pacer.group(group)
            told_s = await self._groups.start(turns, before=self._hold_until(before))
            if told_s is not None:
                return told_s
            if not self._taken:
                self._held_from = time.monotonic()
            self._taken.append(turns)
        return None

    def _hold_until(self, before: float) -> float:
        """Return how long to wait for the next turn, given what is held already."""
        return min(before, self._held_from + HOLD_S) if self._taken else before
