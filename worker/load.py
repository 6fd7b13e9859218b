"""The load figures a worker publishes in its node key."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from typing import NamedTuple

from worker.settlement import Settlement
from worker.stages import Stages

LATENCIES = 512
"""Fetches the 95th percentile is taken over."""


class Work(NamedTuple):
    """What the worker did and has before it."""

    in_flight: int
    """Pages being fetched or parsed."""
    backlog: int
    """Pages that wait to be committed."""
    latency_p95_ms: int
    pages_per_second: float
    """Counts every finished URL."""

    def figures(self) -> dict[str, float]:
        """Return the figures by their published names."""
        return {name: float(value) for name, value in self._asdict().items()}


class LoadMeter:
    """Counts what the worker does."""

    def __init__(self) -> None:
        self._elapsed_ms: deque[int] = deque(maxlen=LATENCIES)
        self.outcomes: Counter[str] = Counter()
        self.stages = Stages()
        self._last = (time.monotonic(), 0)

    def count(self, settlement: Settlement) -> None:
        """Take a settled claim into the figures."""
        if settlement.outcome is not None:
            self.outcomes[settlement.outcome.value] += 1
        if settlement.elapsed_ms:
            self._elapsed_ms.append(settlement.elapsed_ms)

    def sample(self, *, in_flight: int, backlog: int) -> Work:
        """Return the figures since the last call."""
        now, done = time.monotonic(), self.outcomes.total()
        since, before = self._last
        self._last = (now, done)
        rate = (done - before) / max(now - since, 0.001)
        return Work(in_flight, backlog, self._p95(), round(rate, 2))

    def _p95(self) -> int:
        if not self._elapsed_ms:
            return 0
        ordered = sorted(self._elapsed_ms)
        return ordered[math.ceil(0.95 * len(ordered)) - 1]
