"""What a process costs and how it fares: cpu, memory, and whether its event loop keeps time.

The loop's lag matters most: whoever holds a lease must renew it in time, and a loop that is late by
a second may be late by ten. It shows whatever the cause: a blocking call, too little cpu, a process
that was stopped.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final, NamedTuple

import psutil

_BEAT_S: Final = 0.2
_SCHEDSTAT: Final = Path("/proc/self/schedstat")
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


class Sample(NamedTuple):
    """Figures of the time between two samples."""

    cpu: float
    """Share of one core."""
    cpu_wait: float
    """Share of the time the main thread wanted a core and had none; 0 where it is not known."""
    memory_bytes: int
    """Resident."""
    loop_lag_s: float
    """How late the event loop was at worst."""

    def figures(self) -> dict[str, float]:
        """Return the figures by the names all nodes publish them under."""
        return {
            "cpu": round(self.cpu, 3),
            "cpu_wait": round(self.cpu_wait, 3),
            "memory_bytes": float(self.memory_bytes),
            "loop_lag_s": round(self.loop_lag_s, 3),
        }


class Vitals:
    """Measures this process; :meth:`watch_loop` must run for the lag to be known."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the mark
        self._lag_s = 0.0
        self._waited_ns = _waited_ns()
        self._sampled_at_s = time.monotonic()

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        while True:
            due_at_s = time.monotonic() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            self._lag_s = max(self._lag_s, time.monotonic() - due_at_s)

    def sample(self) -> Sample:
        """Return the figures since the last call."""
        now_s, waited_ns = time.monotonic(), _waited_ns()
        passed_s = max(now_s - self._sampled_at_s, 0.001)
        cpu_wait = (waited_ns - self._waited_ns) / 1e9 / passed_s
        lag_s, self._lag_s = self._lag_s, 0.0
        self._sampled_at_s, self._waited_ns = now_s, waited_ns
        with self._process.oneshot():
            return Sample(
                cpu=self._process.cpu_percent() / 100,
                cpu_wait=min(1.0, max(0.0, cpu_wait)),
                memory_bytes=self._process.memory_info().rss,
                loop_lag_s=lag_s,
            )


def machine_memory_bytes() -> int:
    """Return the memory there is for this process: the machine's, or its container's."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such limit, or "max"
        return total


def _waited_ns() -> int:
    """Return for how long the main thread has waited for a core so far."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):  # not Linux, or a kernel without it
        return 0
