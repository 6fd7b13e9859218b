"""Adopting the shard of a task: at its begin, and again whenever its server was restarted.

Only an owner that still holds the lock may adopt, and only the server run it looked the lock up
under: so no owner goes on with what a restart took back, and none under a lock it has lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import structlog

from common.coord import Coord
from common.coord.lock import Locks
from common.frontier.job import shard_state
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Refusal
from common.model.errors import CoordUnavailable, FrontierUnavailable, UnknownOutcome
from common.model.ids import Task, Token
from worker.outlinks import Outlinks

PAUSE_S: Final = (0.05, 1.0)
"""First and longest wait before a service that did not answer is asked again."""

log = structlog.get_logger()


class Adopter:
    """Adopts the shard of one task under one token."""

    def __init__(
        self,
        coord: Coord,
        frontier: TaskFrontier,
        outlinks: Outlinks,
        *,
        task: Task,
        token: Token,
        held: Collection[int],
        is_mine: Callable[[], bool],
        dead_below: int,
    ) -> None:
        """Prepare.

        Args:
            coord: knows the lock and the job's state.
            frontier: of the task.
            outlinks: of the job; told which run its shards are asked under.
            task: which.
            token: under which it is owned.
            held: claims being worked on or written, as they are at any moment.
            is_mine: whether the task is still ours, as far as this process knows.
            dead_below: tokens below it belong to processes known to be dead.
        """
        self._coord = coord
        self._frontier = frontier
        self._outlinks = outlinks
        self._task = task
        self._token = token
        self._held = held
        self._is_mine = is_mine
        self._dead_below = dead_below
        self._run = ""
        """Server run of the last adoption."""
        self.undone: set[int] = set()
        """Claims held while the server lost what it had acknowledged: to be given back."""
        self._adopting = asyncio.Lock()
        self._log = log.bind(job=task.job, shard=task.shard, token=token)

    async def adopt(self) -> bool:
        """Adopt under the server's present run; False = the task is not ours any more."""
        async with self._adopting:
            pause = PAUSE_S[0]
            while self._is_mine():
                try:
                    answer = await self._tried()
                except (CoordUnavailable, UnknownOutcome, FrontierUnavailable) as error:
                    self._log.warning("task.adopt_waiting", reason=str(error))
                else:
                    match answer:
                        case None:
                            return False
                        case int():
                            self._log.info("task.adopted", run=self._run[:8], requeued=answer)
                            return True
                        case Refusal() if answer is not Refusal.RUN:
                            self._log.info("task.not_adopted", by=str(answer))
                            return False
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_S[1])
            return False

    async def _tried(self) -> int | Refusal | None:
        """Return how many claims were put back; None = the lock or the job is gone.

        Numbered, since the order is the point (design rule P6).
        """
        run = await self._frontier.current_run()  # 1. the run
        name = Locks.task_name(self._task)
        if not await self._coord.locks.is_held(name, self._token):  # 2. the lock
            return None
        stored = await self._coord.jobs.get(self._task.job)  # 3. the job's state
        if stored is None:
            return None
        self._outlinks.begin_run(run)
        answer = await self._frontier.adopt(  # 4. the shard, under that run
            run, state=shard_state(stored.job.state), revision=stored.revision
        )
        if isinstance(answer, Refusal):
            return answer
        if run != self._run and not self._frontier.is_durable:
            # 5. links that its pages offered, or left out as known, may be gone
            self.undone.update(self._held)
        self._run = run
        return await self._frontier.recover(set(self._held), dead_below=self._dead_below)
