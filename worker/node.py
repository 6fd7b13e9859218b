"""A worker process in the cluster: session, membership, and which tasks it owns.

The assignment is the master's wish; the lock is the fact. The node takes the locks of what it is
assigned, drains what it is not assigned any more, and goes on with what it owns while there is no
master. A lost session ends every task at once; the node then begins again with a new one.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from common.coord import Coord
from common.coord.assignments import Assignment
from common.coord.lock import LOCKS_PER_TXN, Acquired, Locks
from common.coord.members import NodeInfo
from common.coord.mirror import Mirror
from common.coord.session import Session
from common.frontier import FrontierClient
from common.model.errors import (
    CoordUnavailable,
    CrawlerError,
    LeaseLost,
    ServiceUnavailable,
    UnknownOutcome,
    UsageError,
)
from common.model.ids import JobId, NodeId, Task
from common.model.job import JobSpec, JobState
from common.runtime.clock import utc_now
from worker.capacity import Capacity
from worker.job import JobContext
from worker.load import LoadMeter
from worker.task import Ending, TaskRunner

TICK_S: Final = 0.25
"""How often locks held by others are tried again, and finished tasks looked at."""
ACQUIRE_BATCH: Final = 32
VERIFY_S: Final = 1.0
"""How often up to ``LOCKS_PER_TXN`` of the own locks are looked at: one may have been broken."""
RETRY_TASK_S: Final = 1.0
"""How long a task that was just lost is left alone."""
RETRY_JOB_S: Final = 10.0
"""How long a job is left alone that could not be worked on here."""
DRAIN_S: Final = 10.0
"""How much longer than the slowest request a drain may take: Redis may be away."""

if TYPE_CHECKING:
    from worker.warc import Archive

log = structlog.get_logger()


class _Unable(NamedTuple):
    """Why this worker takes no tasks of a job."""

    reason: str
    until: float
    """Monotonic."""


class WorkerNode:
    """One session of one worker process."""

    def __init__(
        self,
        *,
        coord: Coord,
        client: FrontierClient,
        session: Session,
        cluster: str,
        node_id: NodeId,
        capacity: Capacity,
        meter: LoadMeter,
        dead_below: int,
        warc_dir: Path | None,
    ) -> None:
        self._coord = coord
        self._client = client
        self._session = session
        self._cluster = cluster
        self._id = node_id
        self._capacity = capacity
        self._meter = meter
        self._dead_below = dead_below
        self._warc_dir = warc_dir
        self._specs: dict[JobId, JobSpec] = {}
        """Of the jobs wished for; they never change."""
        self._unable: dict[JobId, _Unable] = {}
        self._contexts: dict[JobId, JobContext] = {}
        self._runners: dict[Task, tuple[TaskRunner, asyncio.Task[Ending]]] = {}
        self._not_before: dict[Task, float] = {}
        self._verify_at = 0.0
        self._unverified: list[Task] = []
        self._started_at = utc_now()
        self._state = "registered"

    @property
    def tasks(self) -> int:
        """Tasks owned."""
        return len(self._runners)

    def info(self) -> NodeInfo:
        """Return what the node publishes of itself."""
        held = sum(runner.in_flight for runner, _ in self._runners.values())
        in_use = self._capacity.in_use
        state = self._state
        if state == "ready" and in_use:
            state = "busy"
        return NodeInfo(
            id=self._id,
            role="worker",
            state=state,
            load=self._meter.figures(in_flight=in_use, backlog=held - in_use),
            tasks=len(self._runners),
            reasons=tuple(unable.reason for unable in self._unable.values()),
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=self._started_at,
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Own what is assigned until told to stop or the session is lost.

        A request to drain sets ``stop``: the process is to leave.

        Raises:
            LeaseLost: the session is dead; every task was dropped.
        """
        await self._coord.members.join(self._session, self.info())
        key = self._coord.keys.assignment(self._id)
        mirror = Mirror(self._coord.etcd, key)
        await mirror.start()
        self._state = "ready"
        reporting = asyncio.create_task(self._report())
        lost = asyncio.create_task(self._session.wait_lost())
        stopping = asyncio.create_task(stop.wait())
        asked = asyncio.create_task(self._coord.drains.wait(self._id))
        try:
            while not stop.is_set() and self._session.is_live:
                item = mirror.items.get(key)
                await self._reconcile(_tasks(item.value if item else None))
                changed = asyncio.create_task(mirror.changed(timeout_s=TICK_S))
                await asyncio.wait(
                    [changed, lost, stopping, asked], return_when=asyncio.FIRST_COMPLETED
                )
                changed.cancel()
                if asked.done():
                    asked.result()
                    log.info("node.asked_to_drain", node=self._id)
                    stop.set()
            if not self._session.is_live:
                raise LeaseLost(self._session.lost_reason or "the session ended")
            await self._drain()
            await self._coord.members.leave(self._session, self.info())
        finally:
            for helper in (reporting, lost, stopping, asked):
                helper.cancel()
            await mirror.close()
            await self._drop_all()

    async def _report(self) -> None:
        """Refresh the node key three times a lease, spread so that nodes do not beat in step."""
        while True:
            if not await self._tell():
                return
            await asyncio.sleep(self._session.ttl_s / 3 * random.uniform(0.7, 1.3))  # noqa: S311

    async def _tell(self) -> bool:
        """Publish what the node is like; False = it is not registered any more."""
        try:
            await self._coord.members.update(self._session, self.info())
        except (CoordUnavailable, UnknownOutcome) as error:
            log.warning("node.report_failed", reason=str(error))
        except LeaseLost:
            return False  # the session says so too; serve() acts on it
        return True

    async def _reconcile(self, wished: set[Task]) -> None:
        await self._verify()
        await self._reap()
        for task, (runner, _) in self._runners.items():
            if task not in wished:
                runner.drain()
        now = time.monotonic()
        missing = sorted(
            task for task in wished - self._runners.keys() if self._not_before.get(task, 0.0) <= now
        )
        try:
            await self._look_at_jobs({task.job for task in wished})
            missing = [task for task in missing if task.job not in self._unable]
            for start in range(0, len(missing), ACQUIRE_BATCH):
                await self._acquire(missing[start : start + ACQUIRE_BATCH])
        except (ServiceUnavailable, UnknownOutcome) as error:
            log.warning("node.acquire_failed", reason=str(error))
        except LeaseLost:
            return  # serve() sees it

    async def _verify(self) -> None:
        """Drop tasks whose locks were broken by hand; they are acquired anew, under new tokens.

        Safety does not hang on this, since the frontier refuses old tokens; but without it a broken
        lock would stay free while its task is worked on.
        """
        now = time.monotonic()
        if now < self._verify_at or not self._runners:
            return
        self._verify_at = now + VERIFY_S
        self._unverified = self._unverified or list(self._runners)
        batch, self._unverified = (
            self._unverified[:LOCKS_PER_TXN],
            self._unverified[LOCKS_PER_TXN:],
        )
        owned = {
            Locks.task_name(task): self._runners[task] for task in batch if task in self._runners
        }
        if not owned:
            return
        try:
            broken = await self._coord.locks.not_held(
                {name: runner.token for name, (runner, _) in owned.items()}
            )
        except (CoordUnavailable, UnknownOutcome) as error:
            log.warning("node.verify_failed", reason=str(error))
            return
        for name in broken:
            runner, running = owned[name]
            if not running.done():
                log.warning("task.lock_broken", task=str(runner.task), token=runner.token)
                running.cancel()

    async def _look_at_jobs(self, wished: set[JobId]) -> None:
        """Find out what the jobs ask for, and which of them this worker cannot do."""
        now = time.monotonic()
        for job in [job for job in self._specs if job not in wished and job not in self._contexts]:
            del self._specs[job]
        for job, unable in list(self._unable.items()):
            if job not in wished or unable.until <= now:
                del self._unable[job]
        for job in sorted(wished - self._specs.keys()):
            stored = await self._coord.jobs.get(job)
            if stored is not None:
                self._specs[job] = stored.job.spec
        for job in sorted(wished - self._unable.keys()):
            spec = self._specs.get(job)
            if spec is not None and spec.store == "warc" and self._warc_dir is None:
                reason = (
                    f"job {job} stores responses (store warc), but this worker has no folder for "
                    "them; start it with --warc-dir DIR"
                )
                await self._refuse(job, reason, for_s=math.inf)

    async def _refuse(self, job: JobId, reason: str, *, for_s: float) -> None:
        """Take no tasks of a job for a while, and say why."""
        log.error("job.refused", job=job, reason=reason)
        self._unable[job] = _Unable(reason, time.monotonic() + for_s)
        await self._tell()

    async def _acquire(self, tasks: list[Task]) -> None:
        answers = await self._coord.locks.acquire_tasks(self._session, tasks, owner=self._id)
        for task, answer in answers.items():
            if not isinstance(answer, Acquired):
                continue
            context = await self._context(task.job)
            if context is None:
                await self._coord.locks.release(Locks.task_name(task), answer.token)
                self._not_before[task] = time.monotonic() + RETRY_TASK_S
                continue
            runner = TaskRunner(
                task=task,
                token=answer.token,
                session=self._session,
                coord=self._coord,
                client=self._client,
                cluster=self._cluster,
                context=context,
                capacity=self._capacity,
                dead_below=self._dead_below,
                on_page=self._meter.count,
            )
            self._runners[task] = (runner, asyncio.create_task(runner.run()))

    async def _context(self, job: JobId) -> JobContext | None:
        known = self._contexts.get(job)
        if known is not None:
            return None if known.has_failed else known
        spec = self._specs.get(job)
        if spec is None or job in self._unable:
            return None
        try:
            archive = self._archive(job, spec)
        except CrawlerError as error:
            await self._refuse(job, str(error), for_s=RETRY_JOB_S)
            return None
        try:
            context = JobContext(
                self._client,
                cluster=self._cluster,
                job=job,
                spec=spec,
                node=self._id,
                connections=self._capacity.places,
                archive=archive,
            )
        except UsageError as error:
            await self._fail(job, f"{self._id}: {error}")
            return None
        self._contexts[job] = context
        return context

    async def _fail(self, job: JobId, reason: str) -> None:
        """End a job that cannot be worked on as it was asked for (a secret that is not here, say).

        It must neither take this worker down, nor stand still without a word.
        """
        await self._refuse(job, reason, for_s=RETRY_JOB_S)
        stored = await self._coord.jobs.get(job)
        if stored is not None and not stored.job.state.is_final:
            failed = msgspec.structs.replace(
                stored.job, state=JobState.FAILED, reason=reason, finished_at=utc_now()
            )
            await self._coord.jobs.replace(failed, expected=stored.revision)

    def _archive(self, job: JobId, spec: JobSpec) -> Archive | None:
        if spec.store == "none":
            return None
        from worker.warc import Archive  # noqa: PLC0415 - few jobs need it

        assert self._warc_dir is not None
        facts = {"robots": spec.robots, "http-header-user-agent": spec.user_agent}
        return Archive(self._warc_dir, job=job, node=self._id, facts=facts)

    async def _reap(self) -> None:
        """Let go of tasks that have ended: drained or lost, their locks are needed no more."""
        ended = [task for task, (_, running) in self._runners.items() if running.done()]
        for task in ended:
            runner, running = self._runners.pop(task)
            error = None if running.cancelled() else running.exception()
            if isinstance(error, CrawlerError):
                log.error("task.failed", task=str(task), reason=str(error))
            elif error is not None:
                log.error("task.broken", task=str(task), exc_info=error)
            self._not_before[task] = time.monotonic() + RETRY_TASK_S
            await self._release(runner)
        in_use = {task.job for task in self._runners}
        for job in [job for job in self._contexts if job not in in_use]:
            context = self._contexts.pop(job)
            await context.close()
            if context.archive is not None and context.archive.failure is not None:
                await self._refuse(job, str(context.archive.failure), for_s=RETRY_JOB_S)
        if not self._runners:
            now = time.monotonic()
            self._not_before = {task: at for task, at in self._not_before.items() if at > now}

    async def _release(self, runner: TaskRunner) -> None:
        try:
            await self._coord.locks.release(Locks.task_name(runner.task), runner.token)
        except (CoordUnavailable, UnknownOutcome) as error:
            # A guarded delete is harmless late; the lease gives the lock back in any case.
            log.warning("task.release_failed", task=str(runner.task), reason=str(error))

    async def _drain(self) -> None:
        self._state = "draining"
        for runner, _ in self._runners.values():
            runner.drain()
        # At once, so that the master gives the tasks to others while the last pages are finished.
        await self._tell()
        slowest_s = max((spec.timeout for spec in self._specs.values()), default=0.0)
        deadline = time.monotonic() + slowest_s + DRAIN_S
        while self._runners and self._session.is_live:
            if time.monotonic() > deadline:
                log.warning("node.drain_given_up", tasks=len(self._runners))
                break
            await asyncio.wait(
                [running for _, running in self._runners.values()],
                return_when=asyncio.FIRST_COMPLETED,
                timeout=TICK_S,
            )
            await self._reap()
        self._state = "offline"

    async def _drop_all(self) -> None:
        for _, running in self._runners.values():
            running.cancel()
        await asyncio.gather(
            *(running for _, running in self._runners.values()), return_exceptions=True
        )
        self._runners.clear()
        for context in self._contexts.values():
            await context.close()
        self._contexts.clear()


def _tasks(raw: bytes | None) -> set[Task]:
    if raw is None:
        return set()
    assignment = msgspec.json.decode(raw, type=Assignment)
    return {Task(JobId(job), shard) for job, shards in assignment.tasks.items() for shard in shards}
