"""How a worker process fares: measured all the time, over all its sessions.

Turns measurements into what the cluster is told: load figures, whether the worker is fit for new
tasks and why not, and its weight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from common.frontier import FrontierClient
from common.model.errors import CrawlerError
from common.runtime.vitals import Sample, Vitals, machine_memory_bytes
from worker.condition import Condition, Limits, Signs
from worker.load import LoadMeter, Work
from worker.weight import Pressure, Weight

TICK_S: Final = 1.0
PROBE_S: Final = 3.0
"""How long Redis may take to answer a ping. Its connections may all be busy with long scripts."""
MEMORY_SHARE: Final = 0.8
"""Of the machine's memory: the limit where none is set."""
LAG_PER_TTL: Final = 0.25
"""Lag of the event loop, as a part of the lease's time to live, from which the lease is at risk."""
SHORTEST_LAG_S: Final = 1.0
BACKLOG_PER_PLACE: Final = 4
FETCH_S: Final = 30.0
"""What a fetch may take where no job says."""

log = structlog.get_logger()


class Health:
    """Measures one process; :meth:`run` it beside the work."""

    def __init__(
        self,
        client: FrontierClient,
        *,
        places: int,
        lease_ttl_s: float,
        memory_limit_bytes: int | None,
    ) -> None:
        limit = memory_limit_bytes or int(MEMORY_SHARE * machine_memory_bytes())
        lag_limit_s = max(SHORTEST_LAG_S, LAG_PER_TTL * lease_ttl_s)
        self._client = client
        self._places = places
        self._limits = Limits(memory_bytes=limit, loop_lag_s=lag_limit_s)
        self._vitals = Vitals()
        self._condition = Condition(self._limits)
        self._weight = Weight()
        self._answered_at_s = time.monotonic()
        self._is_away = False
        self._redis_says = ""
        self.meter = LoadMeter()
        nothing = self.meter.sample(in_flight=0, backlog=0)
        self.load = self._vitals.sample().figures() | nothing.figures()
        """Figures of the last second."""
        self.look: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Tells pages in flight and pages that wait to be committed."""
        self.etcd_late_s: Callable[[], float] = lambda: 0.0
        """Tells by how much etcd is late."""
        self.slowest_fetch_s: Callable[[], float] = lambda: FETCH_S
        self.on_change: Callable[[], None] = lambda: None
        """Called when fitness, reasons or weight have changed."""

    @property
    def weight(self) -> float:
        """The share of tasks that suits this worker; see :mod:`worker.weight`."""
        return self._weight.published

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the worker takes nothing new; none when it is fit."""
        return self._condition.reasons

    @property
    def is_fit(self) -> bool:
        """Whether the worker takes new tasks."""
        return self._condition.is_fit

    @property
    def is_slow(self) -> bool:
        """Whether it is degraded for nothing but too much work: it is the last resort then."""
        return self._condition.is_slow

    @property
    def is_stalled(self) -> bool:
        """Whether it can do no work at all, so that its tasks are better off elsewhere."""
        return self._condition.is_stalled

    async def run(self) -> None:
        """Measure until cancelled."""
        watching = asyncio.create_task(self._vitals.watch_loop())
        probing = asyncio.create_task(self._probe())
        try:
            judged_at_s = time.monotonic()
            while True:
                await asyncio.sleep(TICK_S)
                now_s = time.monotonic()
                self._judge(now_s, passed_s=now_s - judged_at_s)
                judged_at_s = now_s
                for helper in (watching, probing):
                    if helper.done():
                        helper.result()
        finally:
            watching.cancel()
            probing.cancel()

    async def _probe(self) -> None:
        """Keep knowing when Redis last answered and let scripts write."""
        while True:
            try:
                async with asyncio.timeout(PROBE_S):
                    await self._client.probe()
            except TimeoutError:
                self._is_away, self._redis_says = True, ""
            except CrawlerError as error:
                self._is_away, self._redis_says = True, str(error)
            else:
                self._answered_at_s, self._is_away = time.monotonic(), False
            await asyncio.sleep(TICK_S)

    def _judge(self, now_s: float, *, passed_s: float) -> None:
        before = (self.reasons, self.weight, self.is_stalled)
        in_flight, backlog = self.look()
        vitals = self._vitals.sample()
        work = self.meter.sample(in_flight=in_flight, backlog=backlog)
        self.load = vitals.figures() | work.figures()
        away_s = now_s - self._answered_at_s if self._is_away else 0.0
        signs = Signs(
            memory_bytes=vitals.memory_bytes,
            cpu_wait=vitals.cpu_wait,
            loop_lag_s=vitals.loop_lag_s,
            redis_away_s=away_s,
            redis_says=self._redis_says,
            etcd_late_s=self.etcd_late_s(),
        )
        self._condition.take(signs, passed_s=passed_s)
        self._weight = self._weight.after(self._pressure(vitals, work), passed_s)
        if before[0] != self.reasons:
            if self.is_fit:
                log.info("worker.fit")
            else:
                log.warning("worker.degraded", reasons="; ".join(self.reasons))
        if before != (self.reasons, self.weight, self.is_stalled):
            self.on_change()

    def _pressure(self, vitals: Sample, work: Work) -> Pressure:
        return Pressure(
            cpu=min(1.0, vitals.cpu) + 2 * vitals.cpu_wait,
            memory=vitals.memory_bytes / self._limits.memory_bytes,
            loop=vitals.loop_lag_s / self._limits.loop_lag_s,
            latency=work.latency_p95_ms / 1000 / (self.slowest_fetch_s() or FETCH_S),
            backlog=work.backlog / (BACKLOG_PER_PLACE * self._places),
        )
