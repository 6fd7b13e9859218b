"""One term: observe, plan, act, and say in one sentence what the cluster is like.

A cycle is cut short when a service does not answer; the master stays master meanwhile (its session
decides that), says so, and tries again with growing pauses. Only a refusal by term (``NotMaster``)
or the loss of the session ends a term from inside; and Redis being away for long, where another
candidate waits, who may reach it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import structlog

from common.coord import Coord, Mirror, Session, check_term
from common.frontier import FrontierClient
from common.model.errors import (
    CoordUnavailable,
    FrontierUnavailable,
    NotMaster,
    ServiceUnavailable,
    UnknownOutcome,
)
from common.model.ids import JobId, Term
from common.model.job import JobState
from coordinator.act import Actor
from coordinator.assign import without_worker
from coordinator.facts import Observation
from coordinator.metrics import Metrics
from coordinator.observe import NodeRoll, Observer
from coordinator.plan import JobAction, MarkDeparted, Publish, pace, plan

log = structlog.get_logger()

_LONGEST_WAIT_S = 1.0
_SHORTEST_WAIT_S = 0.02
"""Lets changes that come together be handled together."""
_FIRST_BACKOFF_S = 0.25
_LONGEST_BACKOFF_S = 5.0
_TTLS_WITHOUT_REDIS = 3
"""So many lease times without an answer of Redis, and the term ends if another candidate waits."""
_TASK_LOCKS = "tasks/"


class CycleReport(NamedTuple):
    """What a cycle found and did; logged only when the sentence changes."""

    sentence: str
    next_in_s: float


class _Backoff:
    """When to try a service again that did not answer."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._until_s = 0.0
        self._since_s: float | None = None

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    @property
    def lasts_s(self) -> float:
        """For how long the service has not answered."""
        return 0.0 if self._since_s is None else time.monotonic() - self._since_s

    def failed(self) -> None:
        self._since_s = self._since_s or time.monotonic()
        self._pause_s = min(_LONGEST_BACKOFF_S, max(_FIRST_BACKOFF_S, 2 * self._pause_s))
        self._until_s = time.monotonic() + self._pause_s

    def succeeded(self) -> None:
        self._pause_s, self._since_s = 0.0, None


class Reign:
    """The work of the elected master, for one term."""

    def __init__(
        self,
        coord: Coord,
        client: FrontierClient,
        session: Session,
        *,
        cluster: str,
        term: Term,
        nodes: Mirror,
        roll: NodeRoll,
        metrics: Metrics,
    ) -> None:
        self._coord = coord
        self._session = session
        self._metrics = metrics
        self._observer = Observer(coord, client, cluster=cluster, term=term, roll=roll)
        self._actor = Actor(coord, session, self._observer, term=term)
        keys = coord.keys
        self._jobs = Mirror(coord.etcd, keys.jobs)
        self._nodes = nodes
        self._locks = Mirror(coord.etcd, keys.lock(_TASK_LOCKS))
        self._election = Mirror(coord.etcd, keys.election)
        self._term = term
        self._changed = {self._jobs, self._nodes}
        self._redis = _Backoff()
        self._waiting: dict[JobId, str] = {}

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            NotMaster: somebody else is master.
            LeaseLost: the session is lost.
        """
        async with AsyncExitStack() as stack:
            # Watch before listing, so that no change falls between.
            for mirror in (self._election, self._jobs, self._locks):
                stack.push_async_callback(mirror.close)
                await self._insist(mirror.start)
            # Know everything before the first decision.
            await self._insist(lambda: self._observer.begin(self._jobs.items))
            self._observer.lock_roll.take(self._locks.items)
            said = ""
            while True:
                report = await self.cycle()
                if report.sentence != said:
                    said = report.sentence
                    log.info("master.cycle", report=said)
                await self._sleep(report.next_in_s)

    async def cycle(self) -> CycleReport:
        """Observe, plan and act once."""
        self._session.check()
        self._check_term()
        self._metrics.cycles.inc()
        done: list[str] = []
        wait_s = 0.0
        try:
            await self._refresh()
            await self._look()
            done = await self._act()
        except FrontierUnavailable as error:
            self._without_redis(error)
        except (CoordUnavailable, UnknownOutcome) as error:
            self._trouble("etcd", error)
            wait_s = _FIRST_BACKOFF_S
        self._observer.forget_looks()
        return CycleReport(self._sentence(done), max(wait_s, self._next_in_s()))

    def _check_term(self) -> None:
        """Notice that the election was broken by hand, also while there is nothing to write.

        The mirror began in this term, so whatever else it shows came later.
        """
        check_term(self._election.items.get(self._coord.keys.election), self._term)

    async def _refresh(self) -> None:
        observer = self._observer
        if self._jobs in self._changed:
            observer.take_jobs(self._jobs.items)
        if self._nodes in self._changed:
            observer.roll.take(self._nodes.items)
        self._changed.clear()
        observer.lock_roll.take(self._locks.items)
        await observer.roll.tell_vanished(self._coord)
        if not observer.is_assignment_known:
            await observer.refresh_assignment()

    async def _look(self) -> None:
        """Look at shards, unless Redis is away: then only etcd's half is planned and acted upon."""
        if self._redis.left_s:
            return
        try:
            await self._observer.look()
        except FrontierUnavailable as error:
            self._observer.forget_looks()
            self._without_redis(error)
        else:
            self._redis.succeeded()

    async def _act(self) -> list[str]:
        observation = self._observer.observation()
        self._tell_of_waiting(observation)
        actions = plan(observation)
        of_job: dict[JobId, list[JobAction]] = defaultdict(list)
        for action in actions:
            if not isinstance(action, Publish | MarkDeparted):
                of_job[action.job].append(action)
        now = time.monotonic()
        for entry in self._observer.entries.values():
            if entry.stats is not None:
                pause_s = pace(entry.view(), of_job[entry.id])
                entry.due_at_s = math.inf if pause_s is None else now + pause_s
                entry.remember_pass()
        return await self._actor.perform(actions)

    def _tell_of_waiting(self, observation: Observation) -> None:
        """Say which jobs nobody takes tasks of, once each time that changes."""
        waiting = without_worker(observation)
        self._metrics.waiting.set(len(waiting))
        for job, reason in waiting.items():
            if self._waiting.get(job) != reason:
                log.warning("job.without_worker", job=job, reason=reason)
        for job in self._waiting.keys() - waiting.keys():
            log.info("job.has_worker", job=job)
        self._waiting = waiting

    async def _insist(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Try until it works; the session's deadline is what ends it."""
        while True:
            self._session.check()
            try:
                await attempt()
            except CoordUnavailable as error:
                self._trouble("etcd", error)
                await asyncio.sleep(_FIRST_BACKOFF_S)
            else:
                return

    async def _sleep(self, limit_s: float) -> None:
        """Wait for a change in etcd, or until something is due."""
        waits = {
            asyncio.create_task(mirror.changed(timeout_s=limit_s)): mirror
            for mirror in (self._jobs, self._nodes, self._election)
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for wait, mirror in waits.items():
            if not wait.cancelled() and wait.result():
                self._changed.add(mirror)

    def _next_in_s(self) -> float:
        soonest = min(
            (entry.due_at_s for entry in self._observer.entries.values()), default=math.inf
        )
        wait_s = min(_LONGEST_WAIT_S, soonest - time.monotonic())
        return max(_SHORTEST_WAIT_S, wait_s, self._redis.left_s)

    def _without_redis(self, error: FrontierUnavailable) -> None:
        self._redis.failed()
        self._trouble("redis", error)
        if self._redis.lasts_s > _TTLS_WITHOUT_REDIS * self._session.ttl_s and self._has_rival():
            # Only its own way to Redis may be broken: let somebody try who may have another.
            raise NotMaster(
                f"Redis has not answered for {self._redis.lasts_s:.0f} s; "
                "another candidate may reach it"
            ) from error

    def _has_rival(self) -> bool:
        candidates = [
            info
            for info in self._observer.roll.live.values()
            if info.role == "master" and info.state not in ("draining", "offline")
        ]
        return len(candidates) > 1

    def _trouble(self, service: str, error: ServiceUnavailable | UnknownOutcome) -> None:
        self._metrics.trouble.labels(service).inc()
        log.warning("master.hindered", service=service, error=str(error))

    def _sentence(self, done: Sequence[str]) -> str:
        observer = self._observer
        states = Counter(entry.stored.job.state for entry in observer.entries.values())
        for state in JobState:
            self._metrics.jobs.labels(state.value).set(states[state])
        assigned, locks = len(observer.assigned), len(self._locks.items)
        self._metrics.assigned.set(assigned)
        self._metrics.locks.set(locks)
        workers = sum(info.role == "worker" for info in observer.roll.live.values())
        active = [
            f"{states[state]} {state.value}"
            for state in JobState
            if states[state] and not state.is_final
        ]
        parts = [
            f"jobs: {', '.join(active) or 'none'}",
            f"workers: {workers}",
            f"tasks assigned: {assigned}"
            + (", some without owner yet" if locks < assigned else ""),
            *dict.fromkeys(done),
        ]
        return "; ".join(parts)
