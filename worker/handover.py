"""How a task that is to move to another worker ends: without its hosts waiting for a slow page.

Its lock is given back once nothing is in flight, and until then nobody else claims in the shard.
Were nothing claimed any more from the wish on, every host of the shard would wait for the slowest
page under way, up to the job's timeout. So the task goes on while such a page is under way, and
stops claiming when what is in flight soon ends. Where slow pages never cease it stops all the same,
once the pages of the beginning have had their time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from math import inf
from typing import Final, NamedTuple

SLOW_S: Final = 1.0
"""Age from which on a page is not waited for with nothing else going on."""


class Page(NamedTuple):
    """A claim being worked on or written."""

    working: asyncio.Task[None]
    since: float
    """Monotonic seconds."""


class Handover:
    """Whether one task is to move, and when it claims no more for it."""

    def __init__(self, *, patience_s: float) -> None:
        """Begin with a task that is to stay.

        Args:
            patience_s: how long slow pages may put off the end.
        """
        self._patience_s = patience_s
        self._stop_at: float | None = None
        self.is_ending = False
        """Nothing is to be sent that was not sent yet."""

    @property
    def is_wished(self) -> bool:
        """The task is to move."""
        return self._stop_at is not None

    def wish(self) -> None:
        """The task is to move."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._patience_s

    async def is_over(self, pages: Collection[Page]) -> bool:
        """Wait until every page has ended, or give up because one of them is slow.

        Args:
            pages: what is in flight; grows no more meanwhile.
        """
        under_way = [page for page in pages if not page.working.done()]
        now = time.monotonic()
        limit_s = inf
        if self._stop_at is not None and now < self._stop_at:
            limit_s = SLOW_S - (now - min((page.since for page in under_way), default=now))
        self.is_ending = limit_s > 0
        if self.is_ending and under_way:
            working = [page.working for page in under_way]
            _, slow = await asyncio.wait(working, timeout=None if limit_s == inf else limit_s)
            self.is_ending = not slow
        return self.is_ending
