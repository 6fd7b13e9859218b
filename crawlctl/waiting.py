"""Waiting for a job to end, with progress."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from common.model.job import JobState
from crawlctl.jobview import JobLook, look_at, stored_job
from crawlctl.show import note

if TYPE_CHECKING:
    from crawlctl.connect import Services
    from crawlctl.progress import Progress

_POLL_S = 1.0
_FIRST_POLL_S = 0.1


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


def exit_code(look: JobLook) -> int:
    """Return 0 for a finished job, else 1 and say why."""
    if look.job.state is JobState.FINISHED:
        return 0
    reason = f": {look.job.reason}" if look.job.reason else ""
    note(f"crawlctl: job {look.job.id} is {look.job.state.value}{reason}")
    return 1
