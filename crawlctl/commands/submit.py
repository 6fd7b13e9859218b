"""``submit``: create a job."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from common.model.errors import CoordUnavailable, ServiceUnavailable, UnknownOutcome
from common.model.ids import checked_name
from common.model.job import JobSpec
from crawlctl.framework import Command, run, settings_of
from crawlctl.job_options import job_options, note_nameless, spec_from

if TYPE_CHECKING:
    from common.model.job import Job
    from common.runtime.settings import Settings
    from crawlctl.connect import Services
    from crawlctl.seeds import Collected


@click.command(
    cls=Command,
    examples=[
        "crawlctl submit https://example.org/ --max-pages 1000",
        "crawlctl submit --seeds seeds.txt --id spring --delay 2 --wait",
        "zcat seeds.gz | crawlctl submit --seeds - --paused",
        "crawlctl submit https://example.org/ --spec polite.toml --keep-open",
        "crawlctl submit https://shop.example/ --plugin prices",
        "crawlctl submit https://news.example/ --recrawl 6h --recrawl-max 7d",
    ],
)
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option("--seeds", metavar="FILE|-", help="file of seeds, one a line; - is standard input")
@click.option(
    "--spec",
    "spec_file",
    metavar="FILE",
    help="TOML or JSON file of the job options below, with underscores for dashes; options given "
    "here win",
)
@click.option("--id", "job_id", metavar="NAME", help="the job's id  [default: a new one]")
@click.option("--wait", is_flag=True, help="show progress until it ends; Ctrl-C leaves it running")
@click.option("--paused", is_flag=True, help="create it paused; 'job resume' starts it")
@click.option(
    "--keep-open", is_flag=True, help="do not finish when nothing is left, until 'job close'"
)
@job_options()
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    *,
    urls: Sequence[str],
    seeds: str | None,
    spec_file: str | None,
    job_id: str | None,
    wait: bool,
    paused: bool,
    keep_open: bool,
    **options: Any,
) -> int:
    """Create a job out of seeds and print its id.

    The same --id with the same spec again is the same job, so a submission that failed half-way is
    simply repeated.
    """
    from crawlctl.seeds import collect, note_bare
    from crawlctl.spec_file import load
    from crawlctl.submission import new_job_id

    settings = settings_of(ctx)
    spec = spec_from(options, **(load(spec_file) if spec_file is not None else {}))
    name = new_job_id() if job_id is None else checked_name(job_id, field="--id")
    with tempfile.TemporaryFile() as spool:
        collected = collect(urls, seeds, spool, allow_private=spec.allow_private)
        note_bare(collected, quiet=settings.quiet)
        note_nameless(spec, quiet=settings.quiet)
        return run(
            _submit(
                settings, name, spec, spool, collected,
                wait=wait, paused=paused, keep_open=keep_open,
            )
        )  # fmt: skip


async def _submit(
    settings: Settings,
    name: str,
    spec: JobSpec,
    spool: BinaryIO,
    collected: Collected,
    *,
    wait: bool,
    paused: bool,
    keep_open: bool,
) -> int:
    import asyncio

    from crawlctl.connect import services
    from crawlctl.show import note
    from crawlctl.submission import submit as submit_job
    from crawlctl.waiting import note_kept_open

    async with services(settings) as connected:
        try:
            stored = await submit_job(
                connected,
                job_id=name,
                spec=spec,
                spool=spool,
                seeds=collected.good,
                seeds_sha256=collected.sha256,
                paused=paused,
                keep_open=keep_open,
            )
        except (ServiceUnavailable, UnknownOutcome, asyncio.CancelledError):
            note(f"job {name} is not complete; the same command with --id {name} completes it")
            raise
        click.echo(stored.job.id)
        if not settings.quiet and not stored.job.state.is_final:
            await _tell_if_alone(connected, stored.job)
        if paused and wait and not settings.quiet:
            note(f"the job is paused; start it with 'crawlctl job resume {name}'")
        if wait:
            note_kept_open(stored.job, quiet=settings.quiet)
        code = await _wait(connected, name, quiet=settings.quiet) if wait else 0
    return max(code, 1 if collected.bad else 0)


async def _tell_if_alone(connected: Services, job: Job) -> None:
    """Say so where there is nobody to work on a job."""
    from crawlctl.jobview import why_not_begun
    from crawlctl.show import note

    try:
        reason = await why_not_begun(connected.coord, job)
    except (CoordUnavailable, UnknownOutcome):
        return  # the job is there all the same
    if reason is not None:
        note(f"nobody works on job {job.id} yet: {reason}")


async def _wait(connected: Services, name: str, *, quiet: bool) -> int:
    import asyncio

    from crawlctl.progress import progress
    from crawlctl.show import note
    from crawlctl.waiting import closing, wait_for_end

    try:
        with progress(quiet=quiet) as shown:
            look = await wait_for_end(connected, name, shown)
    except asyncio.CancelledError:
        note(f"job {name} goes on; 'crawlctl job wait {name}' waits for it again")
        raise
    assert look is not None
    return await closing(connected, look, quiet=quiet)
