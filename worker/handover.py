"""How a task that is to move to another worker ends: without its hosts waiting for a slow page.

Its lock is given back once nothing is in flight, and until then nobody else claims in the shard.
Were nothing claimed any more from the wish on, every host of the shard would wait for the slowest
page under way, up to the job's timeout. So where such a page is under way the task goes on, but not
with its host, and stops claiming when what is in flight soon ends. It does not go on for ever: only
while a page is under way that was when the move was wished, and for some seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Final, NamedTuple

from common.model.ids import HostKey

SLOW_S: Final = 3.0
"""Age from which on a page is not waited for with nothing else going on."""
PATIENCE_S: Final = 5.0
"""How long slow pages that began after the wish may put off the end."""


class Page(NamedTuple):
    """A claim being worked on or written."""

    host: HostKey
    working: asyncio.Task[None]
    since: float
    """Monotonic seconds."""


class Handover:
    """Whether one task is to move, and when it claims no more for it."""

    def __init__(self) -> None:
        """Begin with a task that is to stay."""
        self._wished_at: float | None = None
        self._is_over = False
        self.is_ending = False
        """Nothing is to be sent that was not sent yet."""
        self.slow_hosts: set[HostKey] = set()
        """Not to be claimed: they would put off the end once more."""

    @property
    def is_wished(self) -> bool:
        """The task is to move."""
        return self._wished_at is not None

    def wish(self) -> None:
        """The task is to move."""
        if self._wished_at is None:
            self._wished_at = time.monotonic()

    def withdraw(self) -> None:
        """The task is to stay, unless it has claimed its last."""
        if not self._is_over:
            self._wished_at = None
            self.is_ending = False
            self.slow_hosts.clear()

    async def is_over(self, pages: Collection[Page]) -> bool:
        """Wait until every page has ended, or give up because one of them is slow.

        Args:
            pages: what is in flight; grows no more meanwhile.
        """
        under_way = [page for page in pages if not page.working.done()]
        limit_s = self._limit_s(under_way)
        if limit_s is None or limit_s > 0:
            self.is_ending = True
            if under_way:
                await asyncio.wait([page.working for page in under_way], timeout=limit_s)
            self.is_ending = self.is_wished and all(page.working.done() for page in under_way)
        now = time.monotonic()
        self.slow_hosts |= {
            page.host
            for page in under_way
            if now - page.since >= SLOW_S and not page.working.done()
        }
        self._is_over = self.is_ending
        return self._is_over

    def _limit_s(self, under_way: Collection[Page]) -> float | None:
        """Return how long to wait for these pages; None = until the last has ended."""
        now = time.monotonic()
        wished_at = now if self._wished_at is None else self._wished_at
        oldest = min((page.since for page in under_way), default=now)
        if oldest < wished_at or now < wished_at + PATIENCE_S:
            return oldest + SLOW_S - now
        return None
