"""The jobs a worker is asked to work on: their specs, which it cannot do, and their contexts.

A job is refused here, with a reason that is published, where this worker lacks what it asks for.
That is never a reason to end the worker: the tasks of other jobs go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from common.coord import Coord
from common.frontier import FrontierClient
from common.model.errors import CrawlerError, UsageError
from common.model.ids import JobId, NodeId, Token
from common.model.job import JobSpec, JobState
from common.model.node import WARC, plugin_ability, what_lacks
from common.plugins.loading import PluginSet
from common.runtime.clock import utc_now
from worker.capacity import Capacity, weight
from worker.job import JobContext
from worker.plugin_faults import PluginFaults
from worker.plugins import JobPlugins, open_plugins
from worker.stages import Stages

if TYPE_CHECKING:
    from worker.warc import Archive

RETRY_JOB_S: Final = (10.0, 300.0)
"""How long a job is left alone that could not be worked on here, at first and at most."""
OPEN_S: Final = 0.5
"""How long the tasks of other jobs wait until the plugins of one are open."""

log = structlog.get_logger()


class _Unable(NamedTuple):
    """Why this worker takes no tasks of a job."""

    reason: str
    until: float
    """Monotonic."""


class Jobs:
    """The jobs of one session of a worker."""

    def __init__(
        self,
        coord: Coord,
        client: FrontierClient,
        *,
        cluster: str,
        node: NodeId,
        capacity: Capacity,
        dead_below: int,
        stages: Stages,
        warc_dir: Path | None,
        plugins: PluginSet,
        faults: PluginFaults,
        on_change: Callable[[], None],
    ) -> None:
        self._coord = coord
        self._client = client
        self._cluster = cluster
        self._node = node
        self._capacity = capacity
        self._dead_below = dead_below
        self._stages = stages
        self._warc_dir = warc_dir
        self._plugins = plugins
        self._faults = faults
        self._on_change = on_change
        self._specs: dict[JobId, JobSpec] = {}
        """Of the jobs wished for; they never change."""
        self._unable: dict[JobId, _Unable] = {}
        self._pauses_s: dict[JobId, float] = {}
        """How long each job was left alone last."""
        self._contexts: dict[JobId, JobContext] = {}
        self._opening: dict[JobId, asyncio.Task[JobPlugins | None]] = {}
        """Of jobs that wait for their plugins."""

    @property
    def abilities(self) -> tuple[str, ...]:
        """What this worker can do beyond fetching."""
        stores = () if self._warc_dir is None else (WARC,)
        return (*stores, *map(plugin_ability, self._plugins.names))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why jobs are refused here, one sentence each."""
        return tuple(unable.reason for unable in self._unable.values())

    @property
    def refused(self) -> tuple[str, ...]:
        """The jobs of which no tasks are taken for now."""
        return tuple(sorted(self._unable))

    @property
    def slowest_request_s(self) -> float:
        """How long a request of any of the jobs may take."""
        return max((spec.timeout for spec in self._specs.values()), default=0.0)

    def is_left_alone(self, job: JobId) -> bool:
        """Tell whether tasks of the job are left alone for now."""
        opening = self._opening.get(job)
        return job in self._unable or (opening is not None and not opening.done())

    async def look_at(self, wished: set[JobId]) -> None:
        """Find out what the jobs ask for, and which of them this worker cannot do.

        Raises:
            CoordUnavailable: etcd did not answer; look again.
        """
        await self.close_openings(wished)
        now = time.monotonic()
        for job in [job for job in self._specs if job not in wished and job not in self._contexts]:
            del self._specs[job]
        for job, unable in list(self._unable.items()):
            if unable.until <= now:
                del self._unable[job]
                self._on_change()
        for job in sorted(wished - self._specs.keys()):
            stored = await self._coord.jobs.get(job)
            if stored is not None:
                self._specs[job] = stored.job.work
        for job in sorted(wished - self._unable.keys()):
            spec = self._specs.get(job)
            lacking = None if spec is None else what_lacks(spec, self.abilities)
            if lacking is not None:
                # The master knows what this worker lacks; this is for one that did not look.
                self._refuse(job, f"this worker has {lacking}")

    async def context(self, job: JobId, token: Token) -> JobContext | None:
        """Return what tasks of the job share; None where they cannot be worked on now.

        Args:
            job: which.
            token: of one of its tasks, owned now.
        """
        known = self._contexts.get(job)
        if known is not None:
            return None if known.has_failed else known
        spec = self._specs.get(job)
        if spec is None or job in self._unable:
            return None
        plugins: JobPlugins | None = None
        try:
            opening = await self._opened(job, spec)
            if not opening.done():
                return None
            plugins = opening.result()
            archive = self._archive(job, spec)
        except CrawlerError as error:
            if plugins is not None:
                await plugins.close()
            self._refuse(job, str(error))
            return None
        try:
            context = JobContext(
                self._client,
                cluster=self._cluster,
                job=job,
                spec=spec,
                node=self._node,
                connections=self._capacity.places,
                places=self._capacity.share(weight=weight(spec.priority)),
                token=token,
                dead_below=self._dead_below,
                stages=self._stages,
                archive=archive,
                plugins=plugins,
            )
        except UsageError as error:
            if plugins is not None:
                await plugins.close()
            await self._fail(job, f"{self._node}: {error}")
            return None
        self._contexts[job] = context
        return context

    async def close_unused(self, in_use: Iterable[JobId]) -> None:
        """Close the contexts of jobs no task of which is owned here any more."""
        kept = set(in_use)
        for job in [job for job in self._contexts if job not in kept]:
            context = self._contexts.pop(job)
            await context.close()
            if context.archive is not None and context.archive.failure is not None:
                self._refuse(job, str(context.archive.failure))

    async def _opened(self, job: JobId, spec: JobSpec) -> asyncio.Task[JobPlugins | None]:
        """Return the opening of a job's plugins; it may last, and is asked for again then."""
        opening = self._opening.get(job)
        if opening is None:
            opening = self._opening[job] = asyncio.create_task(
                open_plugins(self._plugins, spec, job=job, worker=self._node, faults=self._faults)
            )
            await asyncio.wait([opening], timeout=OPEN_S)
        if opening.done():
            del self._opening[job]
        return opening

    async def close_openings(self, wished: Collection[JobId]) -> None:
        """End the opening of plugins of all but some jobs."""
        for job in [job for job in self._opening if job not in wished]:
            opening = self._opening.pop(job)
            opening.cancel()
            await asyncio.wait([opening])
            if opening.cancelled() or opening.exception() is not None:
                continue  # none is left open
            if (plugins := opening.result()) is not None:
                await plugins.close()

    def _refuse(self, job: JobId, reason: str) -> None:
        """Take no tasks of a job for a while, longer each time, and say why."""
        log.error("job.refused", job=job, reason=reason)
        first_s, longest_s = RETRY_JOB_S
        pause_s = min(longest_s, 2 * self._pauses_s.get(job, first_s / 2))
        self._pauses_s[job] = pause_s
        self._unable[job] = _Unable(f"job {job}: {reason}", time.monotonic() + pause_s)
        self._on_change()

    async def _fail(self, job: JobId, reason: str) -> None:
        """End a job that cannot be worked on as it was asked for (a secret that is not here, say).

        It must neither take this worker down, nor stand still without a word.
        """
        self._refuse(job, reason)
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
        return Archive(self._warc_dir, job=job, node=self._node, facts=facts)
