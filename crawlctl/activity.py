"""How long a crawl was at work, told by looks from time to time at its counters.

Not counted is the time before its workers began (servers and processes start first) and the time
after its last page, in which the master makes sure that nothing is left.
"""

from __future__ import annotations

from collections.abc import Mapping

from common.model import counters

_WORK = ("in_flight", *counters.FINAL)
"""Counters that only workers move."""


class Activity:
    """The time at work within one start of a crawl; exact to the distance of two looks."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._last: list[int] = []
        self._began: float | None = None
        self._until = 0.0

    @property
    def seconds(self) -> float:
        """Return the time at work so far."""
        return 0.0 if self._began is None else self._until - self._began

    def look(self, counted: Mapping[str, int], now: float) -> None:
        """Take note of the counters at a moment (monotonic)."""
        work = [counted[name] for name in _WORK]
        has_moved = self._last_at is not None and work != self._last
        if self._began is None and has_moved:
            self._began = self._last_at
        if has_moved or any(counted[name] for name in counters.WAITING):
            self._until = now
        self._last_at, self._last = now, work
