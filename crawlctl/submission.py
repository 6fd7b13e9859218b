"""How a job comes into being: recorded, its seeds staged in numbered chunks, then handed over.

1. The job is created PENDING with ``seeds=-1``: its id is taken, nobody works on it yet.
2. The seeds are staged, chunk by chunk. A chunk of the same number replaces itself, so after a
   client has died the same command simply does it again.
3. ``seeds=N`` is written by compare-and-swap. From here on the job belongs to the master.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from common.model.errors import FrontierUnavailable, RefusedError
from common.model.ids import JobId
from common.model.job import Job, JobSpec, JobState
from common.runtime.clock import utc_now
from crawlctl.job_options import option_name, refuse_unsupported
from crawlctl.jobview import differing_field
from crawlctl.seeds import chunks

if TYPE_CHECKING:
    from common.coord import StoredJob
    from crawlctl.connect import Services

_ATTEMPTS = 10
"""Times a job record is re-read when others change it; each one of them made progress."""


def new_job_id() -> str:
    """Return a new id: the time it was made, which sorts and can be read, and a random end."""
    made = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{made}-{os.urandom(3).hex()}"


async def submit(
    services: Services, *, job_id: str, spec: JobSpec, spool: BinaryIO, seeds: int, paused: bool
) -> StoredJob:
    """Create the job, or go on where an earlier call with the same id stopped.

    Args:
        services: where to.
        job_id: a valid name.
        spec: how to crawl.
        spool: the seeds, canonical, one a line; read from its beginning.
        seeds: how many there are in it.
        paused: hand it over as PAUSED; ``job resume`` starts it.

    Returns:
        The job as it is now: it may have gone on, or be finished, if it was there before.

    Raises:
        RefusedError: the id belongs to another job, or to one that was deleted.
    """
    refuse_unsupported(spec)
    stored = await _create(services, job_id, spec=spec, seeds=seeds)
    if stored.job.seeds >= 0:
        return stored
    await _stage(services, stored.job, spool)
    return await _hand_over(services, stored, seeds=seeds, paused=paused)


async def _stage(services: Services, job: Job, spool: BinaryIO) -> None:
    frontier = services.frontier(job)
    for _ in range(_ATTEMPTS):
        run = await services.client.current_run()
        spool.seek(0)
        for number, urls in enumerate(chunks(spool)):
            await frontier.stage(number, urls)
        if run == await services.client.current_run():
            return
        # A restart in between may have taken what was acknowledged before it: do it all again.
    raise FrontierUnavailable(
        f"Redis at {services.client.endpoint} was restarted again and again while seeds were "
        "staged; submit the job again when it stays up"
    )


async def _create(services: Services, job_id: str, *, spec: JobSpec, seeds: int) -> StoredJob:
    from common.coord import Exists, Reused

    job = Job(id=job_id, spec=spec, state=JobState.PENDING, seeds=-1, created_at=utc_now())
    answer = await services.coord.jobs.create(job)
    if isinstance(answer, Reused):
        raise RefusedError(
            f"--id: {job_id!r} was the id of a job that was deleted; ids are never used twice, "
            "choose another"
        )
    if isinstance(answer, Exists):
        _refuse_other(answer.stored.job, spec=spec, seeds=seeds)
        return answer.stored
    return answer


def _refuse_other(job: Job, *, spec: JobSpec, seeds: int) -> None:
    other = differing_field(job.spec, spec)
    if other is None and job.seeds in (-1, seeds):
        return
    name, there, here = other or ("seeds", str(job.seeds), str(seeds))
    raise RefusedError(
        f"--id: job {job.id!r} exists with another spec: {option_name(name)} is {there} there and "
        f"{here} here; choose another id, or submit the same again"
    )


async def _hand_over(
    services: Services, stored: StoredJob, *, seeds: int, paused: bool
) -> StoredJob:
    from common.coord import Stale

    for _ in range(_ATTEMPTS):
        job = stored.job
        if job.seeds >= 0 or job.state.is_final:
            return stored
        state = JobState.PAUSED if paused else job.state
        answer = await services.coord.jobs.replace(
            msgspec.structs.replace(job, seeds=seeds, state=state), expected=stored.revision
        )
        if not isinstance(answer, Stale):
            return answer
        again = await services.coord.jobs.get(JobId(job.id))
        if again is None:
            break
        stored = again
    raise RefusedError(
        f"job {stored.job.id!r} was changed or deleted by others while its seeds were handed over; "
        "look at it with 'crawlctl job show' and submit again"
    )
