"""A whole crawler on this machine: servers, one master, workers, on one claimed folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Self

import structlog

from common.coord import Etcd, EtcdOptions, Keys, bury, connect, revoke_all_leases
from common.embedded.folder import Folder
from common.embedded.nodes import Nodes
from common.embedded.servers import Durability, has_data
from common.embedded.stack import Endpoints, Stack
from common.model.errors import CrawlerError
from common.runtime.process import cores

_log = structlog.get_logger()

JOIN_POLL_S: Final = 0.05
_FEWEST: Final = 2
"""Nodes that a crawl needs for its first page: a master and a worker."""


class EmbeddedCluster:
    """What :meth:`open` gives: endpoints to connect to, nodes to drain, failures to wait for."""

    def __init__(
        self, *, folder: Folder, endpoints: Endpoints, stack: Stack, nodes: Nodes, cluster: str
    ) -> None:
        self._cluster = cluster
        self.folder = folder
        self.endpoints = endpoints
        self.stack = stack
        self.nodes = nodes

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        folder: Folder,
        *,
        workers: int,
        cluster: str = "default",
        durability: Durability = "always",
        master_arguments: Sequence[str] = (),
        worker_arguments: Sequence[str] = (),
        drain_timeout_s: float = 30.0,
        first_page_soon: bool = False,
        program: Sequence[str] | None = None,
    ) -> AsyncIterator[Self]:
        """Start everything; on leaving drain the nodes, then stop the servers.

        Args:
            folder: claimed, and closed by the caller afterwards.
            workers: number of worker processes.
            cluster: name under which keys are kept in the two servers.
            durability: when the data server's log is on disk.
            master_arguments: further arguments of ``start-master``.
            worker_arguments: further arguments of ``start-worker``, the same for all.
            drain_timeout_s: what nodes get to leave in on the way out; then they are killed.
            first_page_soon: workers for which there is no core wait until the others are at work,
                instead of making them slower to start.
            program: what ``start-master`` and ``start-worker`` are commands of.

        Raises:
            UsageError: a server program is missing.
            ServiceUnavailable: a server does not come up.
        """
        is_resumed = has_data(folder)
        stack = Stack(folder, durability=durability)
        nodes = Nodes(
            folder,
            cluster=cluster,
            workers=workers,
            master_arguments=master_arguments,
            worker_arguments=worker_arguments,
            program=program,
        )
        try:
            try:
                # They load their code while the servers start.
                first = max(_FEWEST, cores()) if first_page_soon else 1 + workers
                await nodes.start(first)
                endpoints = await stack.start()
                if is_resumed:
                    await _bury_the_dead(endpoints, cluster)
                nodes.begin(endpoints)
                opened = cls(
                    folder=folder, endpoints=endpoints, stack=stack, nodes=nodes, cluster=cluster
                )
                if first < 1 + workers:
                    nodes.start_rest(partial(opened.wait_joined, first - 1))
                yield opened
                killed = await nodes.drain(timeout_s=drain_timeout_s)
                if killed:
                    _log.warning("embedded.nodes_killed", nodes=killed)
            finally:
                await nodes.kill()
        finally:
            await stack.stop()

    async def wait_joined(self, workers: int | None = None) -> None:
        """Wait until a master acts and every worker, or so many, are registered."""
        least = len(self.nodes.logs) - 1 if workers is None else workers
        coord = await connect(EtcdOptions(endpoints=(self.endpoints.etcd,)), cluster=self._cluster)
        try:
            while True:
                live = await coord.members.live()
                masters = [info for info in live if info.state == "active"]
                joined = [info for info in live if info.role == "worker"]
                if masters and len(joined) >= least:
                    return
                await asyncio.sleep(JOIN_POLL_S)
        finally:
            await coord.close()

    async def wait_failed(self) -> CrawlerError:
        """Wait until a server or a node is down for good and return why."""
        waits: list[asyncio.Task[CrawlerError]] = [
            asyncio.create_task(self.stack.wait_failed()),
            asyncio.create_task(self.nodes.wait_failed()),
        ]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def _bury_the_dead(endpoints: Endpoints, cluster: str) -> None:
    """End at once what processes of the former run still hold.

    They are dead, since their lock on the folder is ours: waiting for leases to run out would gain
    nothing. Before this run's nodes begin, so that no lease revoked here is a living one's.
    """
    etcd = Etcd(EtcdOptions(endpoints=(endpoints.etcd,)))
    await etcd.open()
    try:
        revoked = await revoke_all_leases(etcd)
        revision = await bury(etcd, Keys(cluster))
    finally:
        await etcd.close()
    _log.info("embedded.former_run_buried", leases=revoked, below=revision)
