"""Putting the dead letters of a live job back, each batch fenced by the job's revision.

A job may be finished meanwhile only as long as nothing was put back: a shard with a URL in it is
not sealed, and a sealed one says wait, until the job is over or the seal is undone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from common.model.errors import FrontierUnavailable, RefusedError
from crawlctl.jobview import stored_job

if TYPE_CHECKING:
    from common.frontier.letters import DeadLetter
    from crawlctl.connect import Services

_PAUSE_S: Final = 0.2
_PATIENCE_S: Final = 30.0


async def put_back_all(services: Services, job_id: str) -> int:
    """Put every dead letter of a job back and return how many there were.

    Raises:
        NotFoundError: there is no such job.
        RefusedError: it is over, or its page budget is.
        FrontierUnavailable: a shard said wait for too long; the same command goes on.
    """
    stored = await stored_job(services, job_id)
    _refuse_final(job_id, stored.job.state.is_final, stored.job.state.value)
    count = 0
    async for shard, letters in services.letters(stored.job).pages():
        if letters:
            count += await _put_back(services, job_id, shard, letters)
    return count


async def _put_back(
    services: Services, job_id: str, shard: int, letters: Sequence[DeadLetter]
) -> int:
    from common.frontier import Refusal

    deadline = time.monotonic() + _PATIENCE_S
    while True:
        stored = await stored_job(services, job_id)
        _refuse_final(job_id, stored.job.state.is_final, stored.job.state.value)
        frontier = services.letters(stored.job)
        answer = await frontier.put_back(shard, letters, revision=stored.revision)
        match answer:
            case int():
                return answer
            case Refusal.CLOSED:
                again = (await stored_job(services, job_id)).job.state
                _refuse_final(job_id, again.is_final, again.value)
                raise RefusedError(
                    f"the page budget of job {job_id!r} is spent, so that its dead letters would "
                    "only be dropped; submit them as a new job"
                )
            case _:
                # Sealed for the moment, a newer job record, or a restarted server's shard that its
                # owner has yet to adopt.
                if time.monotonic() > deadline:
                    raise FrontierUnavailable(
                        f"shard {shard} of job {job_id!r} does not take its dead letters back "
                        f"({answer.value}); is a worker running? Then try again"
                    )
        await asyncio.sleep(_PAUSE_S)


def _refuse_final(job_id: str, is_final: bool, state: str) -> None:
    if is_final:
        raise RefusedError(
            f"job {job_id!r} is {state}: nothing more is fetched for it; submit its dead letters "
            f"as a new job (crawlctl dead {job_id} --json lists them)"
        )
