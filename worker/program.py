"""The worker process: services, health, and one session after the other."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from common.coord import Coord, EtcdOptions, connect
from common.coord.burial import buried_below
from common.coord.session import Session
from common.frontier import FrontierClient, RedisOptions
from common.model.errors import (
    CoordUnavailable,
    LeaseLost,
    RefusedError,
    UnknownOutcome,
)
from common.model.ids import NodeId
from common.model.node import NodeState
from common.plugins.loading import PluginSet
from common.runtime.clock import utc_now
from common.runtime.settings import Settings
from worker.capacity import Capacity
from worker.health import Health
from worker.node import WorkerNode
from worker.plugin_faults import PluginFaults

PAUSE_S: Final = (0.1, 5.0)
"""First and longest wait before another session is tried."""
MAX_FILES: Final = 65_536

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Program:
    """What outlives a session."""

    coord: Coord
    client: FrontierClient
    cluster: str
    node_id: NodeId
    lease_ttl_s: float
    capacity: Capacity
    warc_dir: Path | None
    plugins: PluginSet
    health: Health
    faults: PluginFaults = field(default_factory=PluginFaults)
    started_at: str = field(default_factory=utc_now)
    node: WorkerNode | None = None

    async def serve(self, stop: asyncio.Event) -> None:
        """Hold one session after the other until told to stop."""
        pause, is_first = PAUSE_S[0], True
        while not stop.is_set():
            try:
                await self._session(stop)
                pause = PAUSE_S[0]
            except (LeaseLost, CoordUnavailable, UnknownOutcome) as error:
                log.warning("worker.session_lost", node=self.node_id, reason=str(error))
            except RefusedError as error:
                if is_first:
                    raise
                # Our own former session: its key goes with its lease.
                log.info("worker.name_in_use", node=self.node_id, reason=str(error))
            is_first = False
            if not stop.is_set():
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads nodes
                pause = min(2 * pause, PAUSE_S[1])

    async def _session(self, stop: asyncio.Event) -> None:
        session = await Session.open(self.coord.etcd, ttl_s=self.lease_ttl_s)
        try:
            self.node = WorkerNode(
                coord=self.coord,
                client=self.client,
                session=session,
                cluster=self.cluster,
                node_id=self.node_id,
                capacity=self.capacity,
                health=self.health,
                dead_below=await buried_below(self.coord.etcd, self.coord.keys),
                warc_dir=self.warc_dir,
                plugins=self.plugins,
                faults=self.faults,
                started_at=self.started_at,
            )
            log.info("worker.serving", node=self.node_id, lease=session.lease)
            await self.node.serve(stop)
        finally:
            self.node = None
            await session.close()


async def run(
    settings: Settings,
    *,
    node_id: NodeId,
    lease_ttl_s: float,
    concurrency: int,
    http: str | None,
    stop: asyncio.Event,
    warc_dir: Path | None = None,
    memory_limit_bytes: int | None = None,
    plugins: PluginSet | None = None,
) -> None:
    """Be a worker until ``stop`` is set, then drain.

    Args:
        settings: where etcd and Redis are.
        node_id: name in the cluster.
        lease_ttl_s: seconds after which a silent worker's tasks are taken over.
        concurrency: pages worked on at once.
        http: HOST:PORT for health and metrics, or None.
        stop: set it to drain.
        warc_dir: where responses go of jobs that store them; without it such jobs are refused.
        memory_limit_bytes: with more in use the worker takes nothing new; by default most of the
            machine's.
        plugins: those it has; by default the installed ones.

    Raises:
        ServiceUnavailable: etcd or Redis did not answer at the start.
        RefusedError: a live node has this name.
    """
    _allow_many_files()
    capacity = Capacity(concurrency)
    async with _services(settings) as (coord, client), aclosing(capacity.heavy):
        health = Health(
            client,
            places=concurrency,
            lease_ttl_s=lease_ttl_s,
            memory_limit_bytes=memory_limit_bytes,
        )
        program = _Program(
            coord=coord,
            client=client,
            cluster=settings.cluster,
            node_id=node_id,
            lease_ttl_s=lease_ttl_s,
            capacity=capacity,
            warc_dir=warc_dir,
            plugins=plugins or PluginSet(),
            health=health,
        )
        async with _health(http, program) if http else nullcontext():
            await _beside(program.serve(stop), health.run())


async def _beside(work: Coroutine[Any, Any, None], helper: Coroutine[Any, Any, None]) -> None:
    """Do the work with a helper beside it, which must not end before."""
    tasks = [asyncio.create_task(work), asyncio.create_task(helper)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _allow_many_files() -> None:
    """Raise the limit of open files as far as we may: kept connections to sites are many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[tuple[Coord, FrontierClient]]:
    coord = await connect(EtcdOptions.of(settings), cluster=settings.cluster)
    try:
        client = FrontierClient(RedisOptions.of(settings))
        try:
            await client.open()
            yield coord, client
        finally:
            await client.close()
    finally:
        await coord.close()


@asynccontextmanager
async def _health(address: str, program: _Program) -> AsyncIterator[None]:
    from common.runtime import http  # noqa: PLC0415 - not needed otherwise
    from worker.metrics import registry_of  # noqa: PLC0415

    def health() -> http.Health:
        node = program.node
        facts = {
            "node": program.node_id,
            "state": node.info().state if node else NodeState.OFFLINE,
            "reasons": list(node.info().reasons) if node else [],
            "tasks": node.tasks if node else 0,
        }
        return http.Health(node is not None, facts)

    async with http.serve(
        address, health=health, registry=registry_of(program.health, program.faults)
    ):
        yield
