"""The tasks a worker owns: taking their locks, running them, giving the locks back.

The assignment is the master's wish; the lock is the fact. What is wished for is acquired, what is
not wished for any more is drained, and a lock that was broken by hand is noticed and its task
dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from common.coord import Coord
from common.coord.lock import LOCKS_PER_TXN, Acquired, Locks
from common.coord.session import Session
from common.frontier import FrontierClient
from common.model.errors import CoordUnavailable, CrawlerError, UnknownOutcome
from common.model.ids import JobId, NodeId, Task, Token
from worker.job import JobContext
from worker.jobs import Jobs
from worker.settlement import Settlement
from worker.task import Ending, TaskRunner

ACQUIRE_BATCH: Final = 32
VERIFY_S: Final = 1.0
"""How often up to ``LOCKS_PER_TXN`` of the own locks are looked at: one may have been broken."""
RETRY_TASK_S: Final = 1.0
"""How long a task that was just lost is left alone."""

log = structlog.get_logger()


class OwnedTasks:
    """The tasks of one session of a worker."""

    def __init__(
        self,
        *,
        coord: Coord,
        client: FrontierClient,
        session: Session,
        cluster: str,
        node: NodeId,
        jobs: Jobs,
        dead_below: int,
        on_page: Callable[[Settlement], None],
    ) -> None:
        self._coord = coord
        self._client = client
        self._session = session
        self._cluster = cluster
        self._node = node
        self._jobs = jobs
        self._dead_below = dead_below
        self._on_page = on_page
        self._runners: dict[Task, tuple[TaskRunner, asyncio.Task[Ending]]] = {}
        self._not_before: dict[Task, float] = {}
        self._verify_at = 0.0
        self._unverified: list[Task] = []

    def __len__(self) -> int:
        return len(self._runners)

    @property
    def in_flight(self) -> int:
        """Claims of all tasks that are being worked on or written."""
        return sum(runner.in_flight for runner, _ in self._runners.values())

    def keep(self, wished: set[Task], *, is_stalled: bool) -> None:
        """Let go of the tasks that are not wished for, soon: others are to go on with them.

        Args:
            wished: what to go on with.
            is_stalled: nothing can be finished now; let go at once instead.
        """
        for task, (runner, running) in self._runners.items():
            if task in wished:
                runner.stay()
                continue
            runner.move()
            if is_stalled:
                running.cancel()

    def drain(self) -> None:
        """Claim no more; finish what is in flight."""
        for runner, _ in self._runners.values():
            runner.drain()

    async def acquire(self, wished: set[Task]) -> None:
        """Try to own what is wished for and can be worked on.

        Raises:
            CoordUnavailable: etcd did not answer; try again.
            LeaseLost: the session is lost.
        """
        now = time.monotonic()
        missing = sorted(
            task for task in wished - self._runners.keys() if self._not_before.get(task, 0.0) <= now
        )
        await self._jobs.look_at({task.job for task in wished})
        missing = [task for task in missing if not self._jobs.is_left_alone(task.job)]
        for start in range(0, len(missing), ACQUIRE_BATCH):
            await self._acquire(missing[start : start + ACQUIRE_BATCH])

    async def _acquire(self, tasks: list[Task]) -> None:
        answers = await self._coord.locks.acquire_tasks(self._session, tasks, owner=self._node)
        for task, answer in answers.items():
            if not isinstance(answer, Acquired):
                continue
            context = await self._jobs.context(task.job, answer.token)
            if context is None:
                await self._coord.locks.release(Locks.task_name(task), answer.token)
                self._not_before[task] = time.monotonic() + RETRY_TASK_S
                continue
            runner = self._runner(task, answer.token, context)
            self._runners[task] = (runner, asyncio.create_task(runner.run()))

    def _runner(self, task: Task, token: Token, context: JobContext) -> TaskRunner:
        return TaskRunner(
            task=task,
            token=token,
            session=self._session,
            coord=self._coord,
            client=self._client,
            cluster=self._cluster,
            context=context,
            dead_below=self._dead_below,
            on_page=self._on_page,
        )

    async def verify(self) -> None:
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

    async def reap(self) -> None:
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
        await self._jobs.close_unused(task.job for task in self._runners)
        if not self._runners:
            now = time.monotonic()
            self._not_before = {task: at for task, at in self._not_before.items() if at > now}

    async def _release(self, runner: TaskRunner) -> None:
        try:
            await self._coord.locks.release(Locks.task_name(runner.task), runner.token)
        except (CoordUnavailable, UnknownOutcome) as error:
            # A guarded delete is harmless late; the lease gives the lock back in any case.
            log.warning("task.release_failed", task=str(runner.task), reason=str(error))

    async def wait_for_an_end(self, *, timeout_s: float) -> None:
        """Return once a task has ended, or after ``timeout_s``."""
        await asyncio.wait(
            [running for _, running in self._runners.values()],
            return_when=asyncio.FIRST_COMPLETED,
            timeout=timeout_s,
        )

    async def drop_all(self) -> None:
        """End every task at once, as lost, and close their jobs."""
        for _, running in self._runners.values():
            running.cancel()
        await asyncio.gather(
            *(running for _, running in self._runners.values()), return_exceptions=True
        )
        self._runners.clear()
        no_jobs: set[JobId] = set()
        await self._jobs.close_unused(no_jobs)
        await self._jobs.close_openings(no_jobs)
