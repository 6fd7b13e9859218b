"""Whether a worker is fit to take new tasks, and the reasons where it is not.

Something over its limit degrades the worker at once; it is fit again only when everything has been
well below its limit for a while. A service that is away degrades it too, and after some time it is
*stalled*: it can do no work at all, so its tasks are better off with a worker that can.
"""

from __future__ import annotations

from math import exp
from typing import Final, NamedTuple

CALM_S: Final = 3.0
"""How long a sign must be well below its limit before it counts no more."""
WELL_BELOW: Final = 0.8
SLOWNESS: Final = frozenset({"cpu_wait", "loop_lag_s"})
"""Troubles that are nothing but too much work."""
STALLED_S: Final = 10.0
"""How long Redis must be away until the worker counts as stalled."""
CPU_WAIT_S: Final = 10.0
"""Time constant over which waiting for a core is averaged."""


class Limits(NamedTuple):
    """From where on a worker takes nothing new."""

    memory_bytes: int
    loop_lag_s: float
    cpu_wait: float = 0.95
    redis_away_s: float = 1.5
    etcd_late_s: float = 1.0


class Signs(NamedTuple):
    """What was measured last."""

    memory_bytes: int = 0
    cpu_wait: float = 0.0
    loop_lag_s: float = 0.0
    redis_away_s: float = 0.0
    """Since when Redis has not answered, or let nobody write."""
    redis_says: str = ""
    """Why, as far as it said."""
    etcd_late_s: float = 0.0
    """How long etcd took to answer, or by how much a renewal of the lease is overdue."""


class Condition:
    """Follows the signs of one worker."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._troubles: dict[str, str] = {}
        """Sign to the sentence said of it when it began."""
        self._calm_s: dict[str, float] = {}
        self._cpu_wait = 0.0
        self._redis_away_s = 0.0

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the worker takes nothing new; none when it is fit."""
        return tuple(self._troubles.values())

    @property
    def is_fit(self) -> bool:
        """Whether it takes new tasks."""
        return not self._troubles

    @property
    def is_slow(self) -> bool:
        """Whether it is degraded for nothing but too much work."""
        return bool(self._troubles) and self._troubles.keys() <= SLOWNESS

    @property
    def is_stalled(self) -> bool:
        """Whether it cannot even work on what it has."""
        return self._redis_away_s > STALLED_S

    def take(self, signs: Signs, *, passed_s: float) -> None:
        """Judge anew.

        Args:
            signs: measured now.
            passed_s: since the last time.
        """
        self._redis_away_s = signs.redis_away_s
        weight = 1 - exp(-passed_s / CPU_WAIT_S)
        self._cpu_wait += (signs.cpu_wait - self._cpu_wait) * weight
        smoothed = signs._replace(cpu_wait=self._cpu_wait)
        for name, limit in self._limits._asdict().items():
            reading = getattr(smoothed, name)
            if reading > limit:
                said = signs.redis_says if name == "redis_away_s" else ""
                if said:
                    self._troubles[name] = said
                else:
                    self._troubles.setdefault(name, _sentence(name, reading, limit))
                self._calm_s[name] = 0.0
            elif name in self._troubles and reading <= WELL_BELOW * limit:
                self._calm_s[name] += passed_s
                if self._calm_s[name] > CALM_S:
                    del self._troubles[name]
            else:
                self._calm_s[name] = 0.0


def _sentence(name: str, reading: float, limit: float) -> str:
    match name:
        case "memory_bytes":
            return f"memory: {reading / 1e6:.0f} MB are in use, the limit is {limit / 1e6:.0f} MB"
        case "cpu_wait":
            return f"cpu: {reading:.0%} of the time it waits for a core, the limit is {limit:.0%}"
        case "loop_lag_s":
            return f"event loop: late by {reading:.1f} s, the limit is {limit:g} s"
        case "redis_away_s":
            return "Redis does not answer"
        case _:
            return f"etcd is slow: it took {reading:.1f} s, the limit is {limit:g} s"
