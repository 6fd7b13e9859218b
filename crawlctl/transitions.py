"""Pause, resume, cancel and close: changes of a job's state by compare-and-swap.

Each is decided on the state that was read and refused by etcd if that has changed since (design
rule P2); then it is decided again. The master does the rest: it watches the job's record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from common.model.errors import RefusedError
from common.model.job import Job, JobState
from common.runtime.clock import utc_now
from crawlctl.jobview import stored_job

if TYPE_CHECKING:
    from crawlctl.connect import Services

_ATTEMPTS = 10


def paused(job: Job) -> Job:
    """Return the job paused."""
    return msgspec.structs.replace(job, state=JobState.PAUSED)


def resumed(job: Job) -> Job:
    """Return the job going on, or beginning, where it was paused; else as it is."""
    if job.state is not JobState.PAUSED:
        return job
    state = JobState.PENDING if job.started_at is None else JobState.RUNNING
    return msgspec.structs.replace(job, state=state)


def cancelled(job: Job) -> Job:
    """Return the job cancelled."""
    return msgspec.structs.replace(job, state=JobState.CANCELLED, finished_at=utc_now())


def closed(job: Job) -> Job:
    """Return the job finishing as soon as nothing is left."""
    return msgspec.structs.replace(job, keep_open=False)


async def change(services: Services, job_id: str, decide: Callable[[Job], Job]) -> Job:
    """Change a job and return it as it is now.

    Raises:
        NotFoundError: there is no such job.
        RefusedError: it is in a final state, which nothing changes.
    """
    from common.coord import Stale

    for _ in range(_ATTEMPTS):
        stored = await stored_job(services, job_id)
        job = stored.job
        if job.state.is_final:
            raise RefusedError(f"job {job_id!r} is {job.state.value}; nothing changes it any more")
        wanted = decide(job)
        if wanted == job:
            return job
        answer = await services.coord.jobs.replace(wanted, expected=stored.revision)
        if not isinstance(answer, Stale):
            return answer.job
    raise RefusedError(f"job {job_id!r} is being changed by others all the time; try again")
