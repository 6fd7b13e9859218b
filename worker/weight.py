"""A worker's weight: its share of the tasks beside the other workers, from how loaded it is.

The worker computes it, since the history is its own and no new master has to learn it; the master
only compares weights. A worker that has room weighs 1. The weight falls within seconds when the
worker is overloaded and comes back over minutes, and what is published moves only by steps, so that
noise and a load that follows the tasks around never move tasks to and fro.
"""

from __future__ import annotations

from math import exp
from typing import Final, NamedTuple

LEAST: Final = 0.125
"""However loaded, a worker keeps a part: its load might not come from its tasks."""
EASY: Final = 0.7
"""Pressure up to which a worker counts as having room; 1 = at its limit."""
HARD: Final = 1.3
"""Pressure from which on the weight is the least."""
FALL_S: Final = 10.0
RISE_S: Final = 180.0
"""Time constants of the weight's way down and up."""
STEP: Final = 1.25
"""Ratio to the published weight below which a change is not published."""


class Pressure(NamedTuple):
    """How near a worker is to its limits, by what limits it; 1 = there."""

    cpu: float
    """Of the event loop's core; waiting for a core counts twice, as others have it."""
    memory: float
    loop: float
    """Lag of the event loop."""
    latency: float
    """95th percentile of fetches, as a share of what they may take: many that time out."""
    backlog: float
    """Pages fetched that wait to be committed."""

    @property
    def worst(self) -> float:
        """The one that limits the worker."""
        return max(self)


class Weight(NamedTuple):
    """A worker's weight at a moment."""

    exact: float = 1.0
    published: float = 1.0

    def after(self, pressure: Pressure, passed_s: float) -> Weight:
        """Return the weight some time later, under this pressure since."""
        aim = target(pressure.worst)
        constant_s = FALL_S if aim < self.exact else RISE_S
        exact = aim + (self.exact - aim) * exp(-passed_s / constant_s)
        return Weight(exact, _published(self.published, exact))


def target(pressure: float) -> float:
    """Return the weight that would suit a worker which stays under this pressure."""
    over = (pressure - EASY) / (HARD - EASY)
    return 1.0 - (1.0 - LEAST) * min(1.0, max(0.0, over))


def _published(before: float, exact: float) -> float:
    is_recovered = exact > 1 - (1 - 1 / STEP) / 4
    if is_recovered:
        return 1.0
    if before / STEP < exact < before * STEP:
        return before
    return round(exact, 3)
