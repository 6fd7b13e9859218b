"""``job add``: more seeds for a job that is not over."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

import click

from crawlctl.framework import Command, run, settings_of

if TYPE_CHECKING:
    from common.model.job import Job
    from common.runtime.settings import Settings


@click.command(
    cls=Command,
    examples=[
        "crawlctl job add spring https://example.org/news/",
        "tail -n 1000 new.txt | crawlctl job add spring --seeds -",
    ],
)
@click.argument("job_id", metavar="ID")
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option("--seeds", metavar="FILE|-", help="file of seeds, one a line; - is standard input")
@click.pass_context
def add(ctx: click.Context, *, job_id: str, urls: Sequence[str], seeds: str | None) -> int:
    """Add seeds to a job: they join its scope, and those not seen before are fetched.

    A job that is over takes none (exit 4); one submitted with --keep-open waits for more until
    'job close'.
    """
    from crawlctl.seeds import collect, note_bare
    from crawlctl.show import note, quantity

    settings = settings_of(ctx)
    spec = run(_job(settings, job_id)).spec
    with tempfile.TemporaryFile() as spool:
        # Outside of the event loop: reading standard input may take its time.
        collected = collect(urls, seeds, spool, allow_private=spec.allow_private)
        note_bare(collected, quiet=settings.quiet)
        run(_add(settings, job_id, spool, collected.good))
    if not settings.quiet:
        note(f"added to job {job_id}: {quantity(collected.good, 'seed')}")
    return 1 if collected.bad else 0


async def _job(settings: Settings, job_id: str) -> Job:
    from crawlctl.connect import services
    from crawlctl.jobview import stored_job

    async with services(settings) as connected:
        return (await stored_job(connected, job_id)).job


async def _add(settings: Settings, job_id: str, spool: BinaryIO, count: int) -> None:
    from crawlctl.connect import services
    from crawlctl.submission import add as add_seeds

    async with services(settings) as connected:
        await add_seeds(connected, job_id, spool=spool, seeds=count)
