"""``dead``: the URLs a job has given up, and another try for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from crawlctl.framework import Command, json_option, run, settings_of

if TYPE_CHECKING:
    from common.runtime.settings import Settings


@click.command(
    cls=Command,
    examples=[
        "crawlctl dead spring",
        "crawlctl dead spring --json | jq -r '.[] | [.code, .url] | @tsv'",
        "crawlctl dead spring --retry",
    ],
)
@click.argument("job_id", metavar="ID")
@click.option("--retry", is_flag=True, help="put all of them back, to be tried anew")
@json_option
@click.pass_context
def dead(ctx: click.Context, *, job_id: str, retry: bool, as_json: bool) -> None:
    """List the dead letters of a job: URLs whose retries are used up, with the last reason.

    With --retry they go back to their hosts' queues with all their tries, as long as the job is
    not over (one submitted with --keep-open waits); their former records are taken back, so that
    each still ends as one record. With --json that prints {"retried": N}.
    """
    settings = settings_of(ctx)
    if retry:
        run(_retry(settings, job_id, as_json=as_json))
    else:
        run(_dead(settings, job_id, as_json=as_json))


async def _dead(settings: Settings, job_id: str, *, as_json: bool) -> None:
    from crawlctl import show
    from crawlctl.connect import services
    from crawlctl.jobview import stored_job

    rows: list[dict[str, Any]] = []
    async with services(settings) as connected:
        stored = await stored_job(connected, job_id)
        async for _, letters in connected.letters(stored.job).pages():
            rows += (
                {
                    "url": letter.item.url,
                    "code": letter.code,
                    "message": letter.message,
                    "status": letter.status,
                    "attempts": letter.attempts,
                    "depth": letter.item.depth,
                    "referrer": letter.item.referrer,
                    "dead_at": letter.dead_at,
                }
                for letter in letters
            )
    if as_json:
        show.print_json(rows)
        return
    columns = ("url", "code", "message", "attempts", "dead_at")
    show.print_table(columns, [[row[name] for name in columns] for row in rows])


async def _retry(settings: Settings, job_id: str, *, as_json: bool) -> None:
    from crawlctl import show
    from crawlctl.connect import services
    from crawlctl.retrying import put_back_all

    async with services(settings) as connected:
        count = await put_back_all(connected, job_id)
    if as_json:
        show.print_json({"retried": count})
    elif not settings.quiet:
        show.note(f"put back: {show.quantity(count, 'dead letter')} of job {job_id}")
