"""The load figures a worker publishes in its node key."""

from __future__ import annotations

import math
import time
from collections import Counter, deque

import psutil

from worker.page import Settlement

LATENCIES = 512
"""Fetches the 95th percentile is taken over."""


class LoadMeter:
    """Counts what the worker does and measures what it costs."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the mark
        self._elapsed_ms: deque[int] = deque(maxlen=LATENCIES)
        self.outcomes: Counter[str] = Counter()
        self._last = (time.monotonic(), 0)

    def count(self, settlement: Settlement) -> None:
        """Take a settled claim into the figures."""
        if settlement.outcome is not None:
            self.outcomes[settlement.outcome.value] += 1
        if settlement.elapsed_ms:
            self._elapsed_ms.append(settlement.elapsed_ms)

    def figures(self, *, in_flight: int, backlog: int) -> dict[str, float]:
        """Return the figures since the last call.

        ``cpu`` is the share of one core, ``memory_mb`` the resident set, ``pages_per_second``
        counts every finished URL.
        """
        now, done = time.monotonic(), self.outcomes.total()
        since, before = self._last
        self._last = (now, done)
        return {
            "cpu": round(self._process.cpu_percent() / 100, 3),
            "memory_mb": round(self._process.memory_info().rss / 2**20, 1),
            "in_flight": float(in_flight),
            "backlog": float(backlog),
            "latency_p95_ms": float(self._p95()),
            "pages_per_second": round((done - before) / max(now - since, 0.001), 2),
        }

    def _p95(self) -> int:
        if not self._elapsed_ms:
            return 0
        ordered = sorted(self._elapsed_ms)
        return ordered[math.ceil(0.95 * len(ordered)) - 1]
