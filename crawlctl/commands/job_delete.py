"""``job delete``: forget a job that is over, with everything stored for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from common.model.errors import NotFoundError, RefusedError
from common.model.ids import JobId
from crawlctl.framework import Command, run, settings_of

if TYPE_CHECKING:
    from common.runtime.settings import Settings
    from crawlctl.connect import Services

_SAY_EVERY_S: Final = 1.0


@click.command(cls=Command, examples=["crawlctl job delete spring"])
@click.argument("job_id", metavar="ID")
@click.pass_context
def delete(ctx: click.Context, *, job_id: str) -> None:
    """Delete a job that is over: its record, its frontier and its results.

    Export first what is still needed; WARC files stay where they are. The id is not used again. A
    deletion that was interrupted is completed by the same command.
    """
    run(_delete(settings_of(ctx), job_id))


async def _delete(settings: Settings, job_id: str) -> None:
    import time

    from common.frontier.removal import remove
    from crawlctl.connect import services
    from crawlctl.progress import progress
    from crawlctl.show import note, quantity

    count, said_at = 0, time.monotonic()
    async with services(settings) as connected:
        await _forget(connected, job_id)
        with progress(quiet=settings.quiet) as shown:
            steps = remove(connected.client, cluster=connected.cluster, job=JobId(job_id))
            async for deleted in steps:
                count += deleted
                if time.monotonic() - said_at >= _SAY_EVERY_S:
                    said_at = time.monotonic()
                    shown.say(f"deleting job {job_id}: {quantity(count, 'key')} so far")
    if not settings.quiet:
        note(f"job {job_id} is deleted ({quantity(count, 'key')})")


async def _forget(services: Services, job_id: str) -> None:
    """Delete the job's record, if it is there: from then on nobody works on the job."""
    jobs = services.coord.jobs
    while (stored := await jobs.get(JobId(job_id))) is not None:
        state = stored.job.state
        if not state.is_final:
            raise RefusedError(
                f"job {job_id!r} is {state.value}; wait until it is over, or end it with "
                f"'crawlctl job cancel {job_id}'"
            )
        if await jobs.delete(JobId(job_id), expected=stored.revision):
            return
    if not await jobs.was_deleted(JobId(job_id)):
        raise NotFoundError(f"there is no job {job_id!r}; 'crawlctl jobs' lists those there are")
