"""Waiting for a job to end, with progress."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from common.model.job import Job, JobState
from common.runtime.clock import seconds_between
from crawlctl.jobview import JobLook, look_at, pages_per_second, stored_job
from crawlctl.show import duration, note
from crawlctl.sink import ANSWERED, START, ResultSource, decode_facts, is_answered_seed
from crawlctl.summary import counted, no_seed_answered

if TYPE_CHECKING:
    from crawlctl.connect import Services
    from crawlctl.progress import Progress

_POLL_S = 1.0
_FIRST_POLL_S = 0.1
_PAGE = 500


def note_kept_open(job: Job, *, quiet: bool) -> None:
    """Say of a job that is waited for that it does not end by itself, where that is so."""
    if job.is_kept_open and not quiet:
        note(f"the job is kept open; 'crawlctl job close {job.id}' lets it finish")


async def wait_for_end(
    services: Services, job_id: str, shown: Progress, *, timeout_s: float | None = None
) -> JobLook | None:
    """Wait until the job is in a final state and return it; None when the time is over first.

    Raises:
        NotFoundError: there is no such job (any more).
        ServiceUnavailable: a service went away; the job itself goes on.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _FIRST_POLL_S
    while True:
        # The record first: when it is final, the counters read after it are as well.
        stored = await stored_job(services, job_id)
        look = await look_at(services, stored.job)
        shown.update(look.counters)
        if look.job.state.is_final:
            return look
        left_s = pause_s if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            return None
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(_POLL_S, pause_s * 2)


async def closing(services: Services, look: JobLook, *, quiet: bool) -> int:
    """Say in one line how a job ended; return 0 when it finished and some seed of it answered.

    The rule is that of ``crawl``. ``quiet`` keeps the line back where all is well.
    """
    job = look.job
    causes = None
    if job.state is JobState.FINISHED:
        causes = await unanswered(services.frontier(job), job.spec.shards, look.counters)
        if causes is None and quiet:
            return 0
    note(_last_line(look, causes))
    return 0 if job.state is JobState.FINISHED and causes is None else 1


def _last_line(look: JobLook, causes: Sequence[str] | None) -> str:
    job, counters = look.job, look.counters
    said = f"job {job.id} is {job.state.value}"
    if causes is not None:
        said += f", but {no_seed_answered(causes)}"
    elif job.reason:
        said += f" ({job.reason})"
    said += f": {counted(counters)}"
    if job.started_at is not None and job.finished_at is not None:
        took = duration(seconds_between(job.started_at, job.finished_at))
        said += f" in {took}, {pages_per_second(job, counters):.1f} pages/s"
    return f"{said}; 'crawlctl export {job.id}' writes its results"


async def unanswered(
    source: ResultSource, shards: int, counted: Mapping[str, int]
) -> list[str] | None:
    """Return why no seed answered, the commonest error code first; None when one did."""
    # Whatever is no seed was found by a seed that answered, so any such outcome will do; records
    # are read only where there is none, and then they are those of the seeds.
    if any(counted[outcome] for outcome in ANSWERED):
        return None
    codes: Counter[str] = Counter()
    for shard in range(shards):
        after = START
        while True:
            entries = await source.results(shard, after=after, count=_PAGE)
            for after, record in entries:  # noqa: B007  # the last id is where to go on
                facts = decode_facts(record)
                if is_answered_seed(facts):
                    return None
                if facts.error is not None:
                    codes[facts.error.code] += 1
            if len(entries) < _PAGE:
                break
    return sorted(codes, key=lambda code: (-codes[code], code))
