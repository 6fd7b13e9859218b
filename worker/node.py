"""A worker process in the cluster: its session, its key among the nodes, and what it is to own.

The node follows its assignment: what it is to own is acquired (:mod:`worker.owned`), what it is not
to own any more is drained, and it goes on with what it owns while there is no master. A lost
session ends every task at once; the process then begins again with a new one.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from pathlib import Path
from typing import Final

import msgspec
import structlog

from common.coord import Coord
from common.coord.assignments import Assignment
from common.coord.mirror import Mirror
from common.coord.session import Session
from common.frontier import FrontierClient
from common.model.errors import (
    CoordUnavailable,
    LeaseLost,
    ServiceUnavailable,
    UnknownOutcome,
)
from common.model.ids import JobId, NodeId, Task
from common.model.node import NodeInfo, NodeState
from common.plugins.loading import PluginSet
from worker.capacity import Capacity
from worker.health import Health
from worker.jobs import Jobs
from worker.owned import OwnedTasks
from worker.plugin_faults import PluginFaults

TICK_S: Final = 0.25
"""How often locks held by others are tried again, and finished tasks looked at."""
DRAIN_S: Final = 10.0
"""How much longer than the slowest request a drain may take: Redis may be away."""

log = structlog.get_logger()


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
        health: Health,
        dead_below: int,
        warc_dir: Path | None,
        plugins: PluginSet,
        faults: PluginFaults,
        started_at: str,
    ) -> None:
        self._coord = coord
        self._session = session
        self._id = node_id
        self._capacity = capacity
        self._health = health
        self._started_at = started_at
        self._state = NodeState.REGISTERED
        self._told_in_s = 0.0
        """How long etcd took for the last report."""
        self._news = asyncio.Event()
        """Something of the node changed that others should know at once."""
        self._jobs = Jobs(
            coord,
            client,
            cluster=cluster,
            node=node_id,
            capacity=capacity,
            dead_below=dead_below,
            stages=health.meter.stages,
            warc_dir=warc_dir,
            plugins=plugins,
            faults=faults,
            on_change=self._news.set,
        )
        self._owned = OwnedTasks(
            coord=coord,
            client=client,
            session=session,
            cluster=cluster,
            node=node_id,
            jobs=self._jobs,
            dead_below=dead_below,
            on_page=health.meter.count,
        )

    @property
    def tasks(self) -> int:
        """Tasks owned."""
        return len(self._owned)

    def info(self) -> NodeInfo:
        """Return what the node publishes of itself."""
        health = self._health
        state = self._state
        if state is NodeState.READY and not health.is_fit:
            state = NodeState.DEGRADED
        elif state is NodeState.READY and self._capacity.in_use:
            state = NodeState.BUSY
        return NodeInfo(
            id=self._id,
            role="worker",
            state=state,
            weight=health.weight,
            load=health.load,
            stages=health.meter.stages.occupancy(),
            tasks=len(self._owned),
            abilities=self._jobs.abilities,
            refused=self._jobs.refused,
            is_stalled=health.is_stalled,
            is_slow=health.is_slow and state is NodeState.DEGRADED,
            reasons=health.reasons + self._jobs.reasons,
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
        self._state = NodeState.READY
        self._be_measured()
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
                if changed.done():
                    changed.result()
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
            await self._owned.drop_all()

    def _be_measured(self) -> None:
        health = self._health
        health.on_change = self._news.set
        health.slowest_fetch_s = lambda: self._jobs.slowest_request_s
        health.etcd_late_s = lambda: max(self._session.overdue_s, self._told_in_s)

        def look() -> tuple[int, int]:
            in_use = self._capacity.in_use
            return in_use, max(0, self._owned.in_flight - in_use)

        health.look = look

    async def _report(self) -> None:
        """Refresh the node key three times a lease, spread so that nodes do not beat in step."""
        while True:
            self._news.clear()
            if not await self._tell():
                return
            pause_s = self._session.ttl_s / 3 * random.uniform(0.7, 1.3)  # noqa: S311
            try:
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _tell(self) -> bool:
        """Publish what the node is like; False = it is not registered any more."""
        asked_at_s = time.monotonic()
        try:
            await self._coord.members.update(self._session, self.info())
            self._told_in_s = time.monotonic() - asked_at_s
        except (CoordUnavailable, UnknownOutcome) as error:
            log.warning("node.report_failed", reason=str(error))
        except LeaseLost:
            return False  # the session says so too; serve() acts on it
        return True

    async def _reconcile(self, wished: set[Task]) -> None:
        await self._owned.verify()
        await self._owned.reap()
        # Without Redis nothing can be finished: what is to go elsewhere is let go as it is.
        self._owned.keep(wished, is_stalled=self._health.is_stalled)
        if not (self._health.is_fit or self._health.is_slow):
            return
        try:
            await self._owned.acquire(wished)
        except (ServiceUnavailable, UnknownOutcome) as error:
            log.warning("node.acquire_failed", reason=str(error))
        except LeaseLost:
            return  # serve() sees it

    async def _drain(self) -> None:
        self._state = NodeState.DRAINING
        self._owned.drain()
        # At once, so that the master gives the tasks to others while the last pages are finished.
        await self._tell()
        deadline = time.monotonic() + self._jobs.slowest_request_s + DRAIN_S
        while self._owned and self._session.is_live:
            if time.monotonic() > deadline:
                log.warning("node.drain_given_up", tasks=len(self._owned))
                break
            await self._owned.wait_for_an_end(timeout_s=TICK_S)
            await self._owned.reap()
        self._state = NodeState.OFFLINE


def _tasks(raw: bytes | None) -> set[Task]:
    if raw is None:
        return set()
    assignment = msgspec.json.decode(raw, type=Assignment)
    return {Task(JobId(job), shard) for job, shards in assignment.tasks.items() for shard in shards}
