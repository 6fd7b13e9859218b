"""A whole crawl inside the test process: real master, real workers, real servers, real sockets.

Only the processes are missing, so that a crawl costs a second and not five. What has to be killed
runs as a process of its own (``WorkerProcess``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import msgspec

import coordinator
import worker
from common.coord import Coord, EtcdOptions, StoredJob, connect
from common.frontier import FrontierClient, JobFrontier, RedisOptions
from common.frontier.keys import TaskKeys
from common.model import counters
from common.model.errors import ServiceUnavailable
from common.model.ids import JobId, NodeId, Task
from common.model.job import Job, JobSpec, JobState
from common.plugins.loading import PluginSet
from common.runtime.clock import utc_now
from common.runtime.settings import Settings
from common.web import url
from tests.support.cli import environment
from tests.support.waiting import until

LEASE_TTL_S = 10.0
Record = dict[str, Any]


class Node:
    """A master or worker as a task of the test."""

    def __init__(self, serve: Callable[[asyncio.Event], Any]) -> None:
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(serve(self._stop))

    async def end(self, *, within_s: float = 30.0) -> None:
        """Drain and leave; raises what the node raised."""
        self._stop.set()
        async with asyncio.timeout(within_s):
            await self.task


class WorkerProcess:
    """A worker in a process of its own, for the signals."""

    def __init__(self, settings: Settings, name: str, *, ttl_s: float, concurrency: int) -> None:
        command = [
            sys.executable, "-m", "crawlctl", "start-worker", "--id", name,
            "--etcd", settings.etcd_endpoints[0], "--redis", settings.redis_urls[0],
            "--cluster", settings.cluster, "--lease-ttl", f"{ttl_s:g}",
            "--concurrency", str(concurrency), "--log-level", "error",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True
        )

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    async def ended(self, *, within_s: float) -> int:
        """Return the exit code."""

        async def is_over() -> bool:
            return self.process.poll() is not None

        await until(is_over, within_s=within_s)
        return int(self.process.returncode)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


class Crawls:
    """One cluster of a test: nodes, jobs, results."""

    def __init__(self, coord: Coord, client: FrontierClient, settings: Settings) -> None:
        self.coord = coord
        self.client = client
        self.settings = settings
        self._nodes: list[Node] = []
        self._processes: list[WorkerProcess] = []

    def master(self, name: str = "m") -> Node:
        return self._add(
            lambda stop: coordinator.run(
                self.settings, node_id=name, lease_ttl_s=LEASE_TTL_S, http=None, stop=stop
            )
        )

    def worker(
        self,
        name: str = "w",
        *,
        ttl_s: float = LEASE_TTL_S,
        concurrency: int = 64,
        plugins: PluginSet | None = None,
    ) -> Node:
        return self._add(
            lambda stop: worker.run(
                self.settings, node_id=NodeId(name), lease_ttl_s=ttl_s, concurrency=concurrency,
                http=None, stop=stop, plugins=plugins,
            )
        )  # fmt: skip

    def process(self, name: str, *, ttl_s: float = 2.0, concurrency: int = 64) -> WorkerProcess:
        process = WorkerProcess(self.settings, name, ttl_s=ttl_s, concurrency=concurrency)
        self._processes.append(process)
        return process

    def _add(self, serve: Callable[[asyncio.Event], Any]) -> Node:
        node = Node(serve)
        self._nodes.append(node)
        return node

    async def close(self) -> None:
        for process in self._processes:
            process.kill()
        for node in self._nodes:
            node.task.cancel()
        ends = await asyncio.gather(*(node.task for node in self._nodes), return_exceptions=True)
        await self.client.close()
        await self.coord.close()
        for end in ends:
            # A node whose server the test took away may say so.
            if isinstance(end, Exception) and not isinstance(end, ServiceUnavailable):
                raise end

    async def submit(
        self, *seeds: str, job: str = "job", keep_open: bool = False, **options: object
    ) -> None:
        """Do what ``crawlctl submit`` does."""
        spec = msgspec.convert(
            {"shards": 2, "delay": 0.0, "allow_private": True, "timeout": 10.0, **options}, JobSpec
        )
        new = Job(
            id=job, spec=spec, state=JobState.PENDING, seeds=-1, keep_open=keep_open,
            created_at=utc_now(),
        )  # fmt: skip
        stored = await self.coord.jobs.create(new)
        assert isinstance(stored, StoredJob)
        await self._frontier(job, spec).stage(0, [url.parse_seed(seed) for seed in seeds])
        await self.change(job, seeds=len(seeds), chunks=1)

    async def add(self, *seeds: str, job: str = "job") -> None:
        """Do what ``crawlctl job add`` does."""
        chunk = (await self.job(job)).chunks
        await self.change(job, chunks=chunk + 1)
        await self._frontier(job, (await self.job(job)).spec).stage(chunk, list(seeds))
        await self.change(job, added=len(seeds))

    async def change(self, job: str = "job", **fields: object) -> None:
        while True:
            stored = await self.coord.jobs.get(JobId(job))
            assert stored is not None
            changed = msgspec.structs.replace(stored.job, **fields)
            if isinstance(
                await self.coord.jobs.replace(changed, expected=stored.revision), StoredJob
            ):
                return

    async def job(self, job: str = "job") -> Job:
        stored = await self.coord.jobs.get(JobId(job))
        assert stored is not None
        return stored.job

    def _frontier(self, job: str, spec: JobSpec) -> JobFrontier:
        return JobFrontier(self.client, cluster=self.settings.cluster, job=JobId(job), spec=spec)

    async def finished(self, job: str = "job", *, within_s: float = 180.0) -> dict[str, Record]:
        """Wait for the end of a job; return its records by URL, each URL once.

        Raises what a node raised that ended meanwhile: there may be nobody left to end the job.
        """

        async def is_over() -> bool:
            for node in self._nodes:
                if node.task.done():
                    node.task.result()
            with suppress(ServiceUnavailable):  # a store that the test has taken away
                await self.client.probe()
                return (await self.job(job)).state.is_final
            return False

        await until(is_over, within_s=within_s)
        found = await self.job(job)
        assert found.state is JobState.FINISHED, found
        counted = await self.counters(job)
        assert counters.is_balanced(counted), counted
        return await self.records(job)

    async def records(self, job: str = "job") -> dict[str, Record]:
        """Return the records so far, by URL; none twice."""
        spec = (await self.job(job)).spec
        found: dict[str, Record] = {}
        for shard in range(spec.shards):
            (entries,) = await self.client.commands(
                [("XRANGE", self.keys(shard, job=job).results, "-", "+")]
            )
            for _, fields in entries:
                record = msgspec.json.decode(fields[1])
                assert record["url"] not in found, f"twice: {record['url']}"
                found[record["url"]] = record
        return found

    async def counters(self, job: str = "job") -> dict[str, int]:
        spec = (await self.job(job)).spec
        return counters.add([one.counters for one in await self._frontier(job, spec).stats()])

    def keys(self, shard: int, *, job: str = "job") -> TaskKeys:
        return TaskKeys(self.settings.cluster, Task(JobId(job), shard))


@asynccontextmanager
async def crawls(
    etcd: str | Sequence[str], redis: str, *, cluster: str, workers: int = 1, master: bool = True
) -> AsyncIterator[Crawls]:
    """Run a cluster for a while."""
    endpoints = (etcd,) if isinstance(etcd, str) else tuple(etcd)
    coord = await connect(EtcdOptions(endpoints=endpoints), cluster=cluster)
    client = FrontierClient(RedisOptions(urls=(redis,)))
    settings = Settings(etcd_endpoints=endpoints, redis_urls=(redis,), cluster=cluster)
    running = Crawls(coord, client, settings)
    try:
        if master:
            running.master()
        for number in range(workers):
            running.worker(f"w{number}")
        yield running
    finally:
        await running.close()


Crawling = Callable[..., AbstractAsyncContextManager[Crawls]]
"""Runs a cluster for a while: :func:`crawls` with its servers and its name."""
