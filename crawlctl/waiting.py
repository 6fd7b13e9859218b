"""Waiting for a job to end, with progress."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from common.model.job import JobState
from crawlctl.jobview import JobLook, look_at, stored_job
from crawlctl.show import note
from crawlctl.sink import ANSWERED, START, ResultSource, decode_facts, is_answered_seed
from crawlctl.summary import no_seed_answered

if TYPE_CHECKING:
    from crawlctl.connect import Services
    from crawlctl.progress import Progress

_POLL_S = 1.0
_FIRST_POLL_S = 0.1
_PAGE = 500


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


async def exit_code(services: Services, look: JobLook) -> int:
    """Return 0 for a finished job some seed of which answered, else 1 and say why.

    The rule is that of ``crawl``.
    """
    job = look.job
    if job.state is not JobState.FINISHED:
        reason = f": {job.reason}" if job.reason else ""
        note(f"crawlctl: job {job.id} is {job.state.value}{reason}")
        return 1
    causes = await unanswered(services.frontier(job), job.spec.shards, look.counters)
    if causes is None:
        return 0
    note(f"crawlctl: job {job.id} is finished, but {no_seed_answered(causes)}")
    return 1


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
