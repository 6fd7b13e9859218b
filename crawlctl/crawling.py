"""One ``crawl`` from its folder to its end: servers up, job in, results out, servers down.

The job's id and the cluster name are fixed: the folder is the identity. Whatever ends the process,
the same command on the same folder goes on from what is on disk.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar

import msgspec
import structlog

from common.embedded.cluster import EmbeddedCluster
from common.embedded.folder import Folder
from common.model.errors import ServiceUnavailable, UnknownOutcome
from common.model.ids import JobId
from common.model.job import JobSpec, JobState
from common.runtime.process import stop_on_signals
from common.runtime.settings import Settings
from crawlctl.activity import Activity
from crawlctl.connect import Services, services
from crawlctl.jobview import JobLook, look_at, stored_job
from crawlctl.progress import Progress, progress
from crawlctl.sink import Sink
from crawlctl.submission import submit
from crawlctl.summary import Summary, save, summarize

JOB_ID: Final = "crawl"
CLUSTER: Final = "crawl"
RESULTS: Final = "results.jsonl"
WARC: Final = "warc"
_CHECKPOINT: Final = "checkpoint.json"
_POLL_S: Final = 0.25
_SAVE_EVERY_S: Final = 1.0
_RETRY_S: Final = 0.2
_DRAIN_S: Final = 45.0
"""For requests in flight to end; a longer one is fetched again next time."""

log = structlog.get_logger()

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawl:
    """What is to be crawled into a claimed folder."""

    folder: Folder
    spec: JobSpec
    spool: BinaryIO
    """The seeds, canonical, one a line; the same ones at every start."""
    seeds: int
    seeds_sha256: str
    bad_seed_lines: int
    workers: int
    worker_arguments: Sequence[str]
    """Further ones of ``start-worker``."""
    quiet: bool
    log_level: str


async def run(crawl: Crawl) -> Summary | None:
    """Crawl until the job ends or a signal comes, and return the summary, which is saved as well.

    The first SIGTERM or SIGINT drains, the second leaves at once. None when a signal came before
    there was anything to sum up.

    Raises:
        CrawlerError: the servers or nodes cannot be started or kept running.
    """
    stop = stop_on_signals()
    sink = Sink(crawl.folder.path / RESULTS, crawl.folder.own / _CHECKPOINT)
    try:
        with progress(quiet=crawl.quiet) as shown:
            look = await _Run(crawl, sink, shown, stop).run()
    finally:
        sink.close()
    if look is None:
        return None
    summary = summarize(look, sink.state, bad_seed_lines=crawl.bad_seed_lines)
    save(summary, crawl.folder.path)
    if look.job.state is JobState.FINISHED:
        _finish(crawl.folder)
    return summary


class _Run:
    """One start of the crawl."""

    def __init__(self, crawl: Crawl, sink: Sink, shown: Progress, stop: asyncio.Event) -> None:
        self._crawl = crawl
        self._sink = sink
        self._shown = shown
        self._stop = stop
        self._activity = Activity()
        self._active_before_s = sink.state.active_s
        self._saved = time.monotonic()

    async def run(self) -> JobLook | None:
        """Return the job as it was left; None when there is none yet."""
        crawl = self._crawl
        self._shown.say("starting etcd, a data server, a master and workers")
        async with EmbeddedCluster.open(
            crawl.folder,
            workers=crawl.workers,
            cluster=CLUSTER,
            master_arguments=("--log-level", crawl.log_level),
            worker_arguments=(
                *("--log-level", crawl.log_level),
                *_store_options(crawl),
                *crawl.worker_arguments,
            ),
            drain_timeout_s=_DRAIN_S,
            first_page_soon=True,
        ) as cluster:
            servers = cluster.endpoints
            self._shown.tell(f"servers: {servers.etcd_program}, {servers.redis_program}")
            settings = Settings(
                etcd_endpoints=(cluster.endpoints.etcd,),
                redis_urls=(cluster.endpoints.redis,),
                cluster=CLUSTER,
            )
            async with services(settings) as connected:
                look = await self._until_stopped(self._follow(connected), cluster)
                if look is None:
                    self._shown.say("stopping: what is in flight is finished first")
                    await cluster.nodes.drain(timeout_s=_DRAIN_S)
                    if await connected.coord.jobs.get(JobId(JOB_ID)) is not None:
                        look = await self._collect(connected, with_rules=True)
                self._save()
        return look

    async def _until_stopped(
        self, work: Coroutine[Any, Any, JobLook], cluster: EmbeddedCluster
    ) -> JobLook | None:
        """Return what ``work`` returns; None when a signal came first.

        Raises:
            CrawlerError: a server or node is down for good.
        """
        following = asyncio.create_task(work)
        failing = asyncio.create_task(cluster.wait_failed())
        stopping = asyncio.create_task(self._stop.wait())
        tasks = (following, failing, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return following.result()
            if failing.done():
                raise failing.result()
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, connected: Services) -> JobLook:
        """Submit the job and write its results until it has ended."""
        await _insist(lambda: self._submit(connected))
        while True:
            look = await _insist(lambda: self._collect(connected))
            if look.job.state.is_final:
                return await _insist(partial(look_at, connected, look.job, with_rules=True))
            if time.monotonic() - self._saved >= _SAVE_EVERY_S:
                self._save()
            await asyncio.sleep(_POLL_S)

    async def _submit(self, connected: Services) -> None:
        await submit(
            connected,
            job_id=JOB_ID,
            spec=self._crawl.spec,
            spool=self._crawl.spool,
            seeds=self._crawl.seeds,
            seeds_sha256=self._crawl.seeds_sha256,
            paused=False,
        )

    async def _collect(self, connected: Services, *, with_rules: bool = False) -> JobLook:
        """Write what there is to write and return the job as it was just before."""
        # The record first: once it is final, nothing is added behind what is read after it.
        stored = await stored_job(connected, JOB_ID)
        await self._sink.pull(connected.frontier(stored.job), stored.job.spec.shards)
        look = await look_at(connected, stored.job, with_rules=with_rules)
        self._activity.look(look.counters, time.monotonic())
        self._shown.update(look.counters)
        return look

    def _save(self) -> None:
        self._saved = time.monotonic()
        self._sink.save(active_s=self._active_before_s + self._activity.seconds)


def _store_options(crawl: Crawl) -> tuple[str, ...]:
    if crawl.spec.store == "none":
        return ()
    return ("--warc-dir", str(crawl.folder.path / WARC))


async def _insist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until it works: a server that died is started again within seconds, or the run fails."""
    while True:
        try:
            return await attempt()
        except (ServiceUnavailable, UnknownOutcome) as error:
            log.info("crawl.waiting", reason=str(error))
            await asyncio.sleep(_RETRY_S)


def _finish(folder: Folder) -> None:
    """Mark the crawl as finished; its servers' data has served its purpose and may be large."""
    state = folder.load_state()
    assert state is not None
    folder.save_state(msgspec.structs.replace(state, finished=True))
    for data in (folder.redis, folder.etcd):
        shutil.rmtree(data)
