"""How long each step of a page takes: one histogram a stage, always on since it is cheap.

A page is in one of the *page stages* at any moment between its claim and its commit; the *call
stages* are round trips that many pages share. Seconds spent in a stage within a second of the clock
are the mean number of pages (or calls) in it: that number says where a worker's places are spent.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple

BOUNDS_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds of the histograms' buckets; one more holds what took longer."""

PAGE_STAGES: Final = {
    "robots": "waiting for the host's robots.txt",
    "pace": "waiting for the host's turn",
    "connect": "getting a connection: from the pool, or name look-up, TCP and TLS",
    "first_byte": "from the request to the header of the answer",
    "body": "reading the body",
    "parse": "parsing the page",
    "plugins": "in the job's plugins (but for refusing links)",
    "links": "finding out which links to offer",
    "settle": "waiting until offered links and the record are written",
}
CALL_STAGES: Final = {
    "claim": "a claim of URLs in Redis",
    "offer": "offering the links of a batch to all shards concerned",
    "archive": "syncing responses to disk",
    "commit": "committing a batch in Redis",
}


class Histogram:
    """Durations of one stage."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def timed(self) -> _Timer:
        """Return a context whose duration is counted, however it ends."""
        return _Timer(self)


class _Timer:
    __slots__ = ("_histogram", "_started_at")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._started_at = 0.0

    def __enter__(self) -> None:
        self._started_at = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._histogram.add(time.monotonic() - self._started_at)


class StageTotal(NamedTuple):
    """A stage with what it has cost so far."""

    name: str
    meaning: str
    histogram: Histogram


class Stages:
    """The histograms of one worker process."""

    def __init__(self) -> None:
        self.robots = Histogram()
        self.pace = Histogram()
        self.connect = Histogram()
        self.first_byte = Histogram()
        self.body = Histogram()
        self.parse = Histogram()
        self.plugins = Histogram()
        self.links = Histogram()
        self.settle = Histogram()
        self.claim = Histogram()
        self.offer = Histogram()
        self.archive = Histogram()
        self.commit = Histogram()
        self._last_at = time.monotonic()
        self._last_s: dict[str, float] = {}

    def __iter__(self) -> Iterator[StageTotal]:
        """Yield every stage."""
        for name, meaning in (PAGE_STAGES | CALL_STAGES).items():
            yield StageTotal(name, meaning, getattr(self, name))

    def occupancy(self) -> dict[str, float]:
        """Return how many pages (or calls) were in each stage, on average since the last call."""
        now = time.monotonic()
        seconds, self._last_at = max(now - self._last_at, 1e-3), now
        before, self._last_s = self._last_s, {one.name: one.histogram.total_s for one in self}
        return {
            name: round((total - before.get(name, 0.0)) / seconds, 2)
            for name, total in self._last_s.items()
        }
