"""How a job comes into being: recorded, its seeds staged in numbered chunks, then handed over.

1. The job is created PENDING with ``seeds=-1``: its id is taken, nobody works on it yet.
2. The seeds are staged, chunk by chunk. A chunk of the same number replaces itself, so after a
   client has died the same command simply does it again.
3. ``seeds=N`` is written by compare-and-swap. From here on the job belongs to the master.

Seeds added later take the same way, under chunk numbers of their own: these are reserved in the job
record first, and the record is swapped once more when all are staged, so that a job that was
finished meanwhile says so.
"""

from __future__ import annotations

import os
import time
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from common.model.errors import FrontierUnavailable, RefusedError
from common.model.ids import JobId
from common.model.job import Job, JobSpec, JobState
from common.runtime.clock import utc_now
from crawlctl.job_options import option_name
from crawlctl.jobview import differing_field
from crawlctl.seeds import chunk_count, chunks
from crawlctl.transitions import change

if TYPE_CHECKING:
    from common.coord import StoredJob
    from crawlctl.connect import Services

_CHUNKS_AT_ONCE = 4
"""Staged in one request: few enough that seeds of the greatest length do not fill the memory."""
_ATTEMPTS = 10
"""Times a job record is re-read when others change it; each one of them made progress."""


def new_job_id() -> str:
    """Return a new id: the time it was made, which sorts and can be read, and a random end."""
    made = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{made}-{os.urandom(3).hex()}"


async def submit(
    services: Services,
    *,
    job_id: str,
    spec: JobSpec,
    spool: BinaryIO,
    seeds: int,
    seeds_sha256: str,
    paused: bool,
    keep_open: bool = False,
) -> StoredJob:
    """Create the job, or go on where an earlier call with the same id stopped.

    Args:
        services: where to.
        job_id: a valid name.
        spec: how to crawl.
        spool: the seeds, canonical, one a line; read from its beginning.
        seeds: how many there are in it.
        seeds_sha256: their digest.
        paused: hand it over as PAUSED; ``job resume`` starts it.
        keep_open: it does not finish when nothing is left, until ``job close``; nor does one
            whose pages are visited again.

    Returns:
        The job as it is now: it may have gone on, or be finished, if it was there before.

    Raises:
        RefusedError: the id belongs to another job, or to one that was deleted.
    """
    wanted = Job(
        id=job_id,
        spec=spec,
        state=JobState.PENDING,
        seeds=-1,
        seeds_sha256=seeds_sha256,
        keep_open=keep_open or spec.recrawl is not None,
        created_at=utc_now(),
    )
    stored = await _create(services, wanted, seeds=seeds)
    if stored.job.seeds >= 0:
        return stored
    await _stage(services, stored.job, spool, first=0)
    return await _hand_over(services, stored, seeds=seeds, paused=paused)


async def add(services: Services, job_id: str, *, spool: BinaryIO, seeds: int) -> Job:
    """Add seeds to a job that is not over, and return it as it is now.

    Repeating it is harmless: seeds that are known already change nothing but the number shown.

    Args:
        services: where the job is.
        job_id: which.
        spool: the seeds, canonical, one a line; read from its beginning.
        seeds: how many there are in it.

    Raises:
        NotFoundError: there is no such job.
        RefusedError: it is over, or was finished while the seeds were staged, or its own
            submission is not complete.
    """

    def reserved(job: Job) -> Job:
        if job.seeds < 0:
            raise RefusedError(
                f"the seeds of job {job_id!r} are still being submitted; add more when they are in"
            )
        return msgspec.structs.replace(job, chunks=job.chunks + chunk_count(seeds))

    def counted(job: Job) -> Job:
        return msgspec.structs.replace(job, added=job.added + seeds)

    job = await change(services, job_id, reserved)
    await _stage(services, job, spool, first=job.chunks - chunk_count(seeds))
    # A finish that was decided before the seeds were staged is refused from here on; one that was
    # written before refuses this.
    return await change(services, job_id, counted)


async def _stage(services: Services, job: Job, spool: BinaryIO, *, first: int) -> None:
    frontier = services.frontier(job)
    for _ in range(_ATTEMPTS):
        run = await frontier.staging_run()
        spool.seek(0)
        number, parked = first, chunks(spool)
        while batch := list(islice(parked, _CHUNKS_AT_ONCE)):
            await frontier.stage(number, *batch)
            number += len(batch)
        if run == await frontier.keep_staged():
            return
        # A restart in between may have taken what was acknowledged before it: do it all again.
    raise FrontierUnavailable(
        f"Redis at {services.client.endpoint} was restarted again and again while seeds were "
        "staged; submit the job again when it stays up"
    )


async def _create(services: Services, job: Job, *, seeds: int) -> StoredJob:
    from common.coord import Exists, Reused

    answer = await services.coord.jobs.create(job)
    if isinstance(answer, Reused):
        raise RefusedError(
            f"--id: {job.id!r} was the id of a job that was deleted; ids are never used twice, "
            "choose another"
        )
    if isinstance(answer, Exists):
        _refuse_other(answer.stored.job, job, seeds=seeds)
        return answer.stored
    return answer


def _refuse_other(there: Job, here: Job, *, seeds: int) -> None:
    """Refuse to take one job for another.

    Raises:
        RefusedError: they differ in their spec, or in their seeds.
    """
    remedy = "choose another id, or submit the same again"
    other = differing_field(there.spec, here.spec)
    if other is None and there.seeds not in (-1, seeds):
        other = ("seeds", str(there.seeds), str(seeds))
    if other is not None:
        name, value, wanted = other
        raise RefusedError(
            f"--id: job {there.id!r} exists with another spec: {option_name(name)} is {value} "
            f"there and {wanted} here; {remedy}"
        )
    # A job made by a version that kept no digest is known by the number of its seeds alone.
    if there.seeds_sha256 not in (None, here.seeds_sha256):
        raise RefusedError(f"--id: job {there.id!r} exists with other seeds (--seeds); {remedy}")


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
            msgspec.structs.replace(job, seeds=seeds, chunks=chunk_count(seeds), state=state),
            expected=stored.revision,
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
