"""Bringing pages back for their next visit, for one task, as long as its job is to go on.

A job whose pages are visited again does not finish by itself; ``job close`` ends that. Whether it
was closed stands in the job's record. A shard that has seen a newer record than the one read here
refuses, and the record is read again: so nothing is brought back after the master has told the
shards of the closing.
"""

from __future__ import annotations

import time
from typing import Final

import structlog

from common.coord import Coord
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Refusal
from common.frontier.visits import DueVisits, Outdated, Recalled
from common.model.errors import CoordUnavailable, FrontierUnavailable
from common.model.ids import Revision, Task

LOOK_AGAIN_S: Final = 1.0
"""The wait where there was no answer, or the shard takes nothing now."""
LONGEST_S: Final = 10.0
"""The longest wait before it is looked at what is due: the clock of Redis may be set forward."""

log = structlog.get_logger()


class Recaller:
    """Queues the pages of one task that are due."""

    def __init__(
        self,
        coord: Coord,
        frontier: TaskFrontier,
        due: DueVisits,
        *,
        task: Task,
        least_s: float,
    ) -> None:
        """Prepare.

        Args:
            coord: where the job's record is.
            frontier: the task's.
            due: the task's pages that wait for a visit.
            task: which.
            least_s: the shortest interval of the job: a page committed after a look at what is due
                is due that much later, so that the look need not be repeated before.
        """
        self._coord = coord
        self._frontier = frontier
        self._due = due
        self._task = task
        self._longest_s = min(LONGEST_S, max(LOOK_AGAIN_S, least_s))
        self._revision: Revision | None = None
        """Of the job's record that says that pages are visited again; None = to be read."""
        self._is_closed = False
        self._not_before = 0.0

    async def run(self) -> Refusal | None:
        """Queue what is due, if it is time to look; return why the owner may not."""
        if self._is_closed or time.monotonic() < self._not_before:
            return None
        self._not_before = time.monotonic() + LOOK_AGAIN_S
        try:
            revision = self._revision or await self._read()
            if revision is None:
                return None
            answer = await self._due.recall(run=self._frontier.run, revision=revision)
        except (CoordUnavailable, FrontierUnavailable) as error:
            log.warning(
                "recall.waiting", job=self._task.job, shard=self._task.shard, reason=str(error)
            )
            return None
        match answer:
            case Recalled(moved=moved, wait_ms=wait_ms, is_held=is_held):
                if not is_held:
                    next_s = wait_ms / 1000 if wait_ms >= 0 else self._longest_s
                    self._not_before = time.monotonic() + min(next_s, self._longest_s)
                if moved:
                    log.debug(
                        "recall.done", job=self._task.job, shard=self._task.shard, pages=moved
                    )
                return None
            case Outdated():
                self._revision, self._not_before = None, 0.0
                return None
            case Refusal():
                self._not_before = 0.0
                return answer

    async def _read(self) -> Revision | None:
        stored = await self._coord.jobs.get(self._task.job)
        if stored is None or not stored.job.keep_open:
            self._is_closed = True
            return None
        self._revision = Revision(stored.revision)
        return self._revision
