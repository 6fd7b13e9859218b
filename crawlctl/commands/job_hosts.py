"""``job hosts`` and ``job host``: the hosts of a job, and settings for one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import click

from common.model.errors import RefusedError, UsageError
from common.model.ids import in_order
from crawlctl.framework import Command, json_option, run, settings_of
from crawlctl.parameters import Number, Whole

if TYPE_CHECKING:
    from common.frontier.hosts import HostView
    from common.model.ids import HostKey
    from common.model.job import Job
    from common.runtime.settings import Settings
    from crawlctl.connect import Services

_SHOWN: Final = 50
_LONGEST_DELAY_S: Final = 86_400.0
_ATTEMPTS: Final = 10

_Setting = Literal["block", "unblock"] | int
"""The last one is a delay in ms."""


@click.command(
    cls=Command,
    examples=["crawlctl job hosts spring", "crawlctl job hosts spring --json | jq '.[0]'"],
)
@click.argument("job_id", metavar="ID")
@click.option(
    "--limit",
    type=Whole(1),
    metavar="N",
    help=f"show this many  [default: {_SHOWN}; with --json all]",
)
@json_option
@click.pass_context
def hosts(ctx: click.Context, *, job_id: str, limit: int | None, as_json: bool) -> None:
    """List the hosts of a job that have URLs waiting, errors or settings; longest backlog first."""
    run(_hosts(settings_of(ctx), job_id, limit=limit, as_json=as_json))


async def _hosts(settings: Settings, job_id: str, *, limit: int | None, as_json: bool) -> None:
    from crawlctl import show
    from crawlctl.connect import services
    from crawlctl.jobview import stored_job

    async with services(settings) as connected:
        job = (await stored_job(connected, job_id)).job
        found = [view async for view in connected.hosts(job).views()]
    found.sort(key=lambda view: (-view.queued - view.delayed, -view.errors, in_order(view.host)))
    limit = limit or (None if as_json else _SHOWN)
    rows = [_row(job, view) for view in found[:limit]]
    if as_json:
        show.print_json(rows)
        return
    columns = (
        "host", "queued", "delayed", "in_flight", "errors", "delay", "next_at", "blocked",
    )  # fmt: skip
    show.print_table(
        [name.replace("_", " ") for name in columns],
        [[row[name] for name in columns] for row in rows],
    )
    if len(found) > len(rows):
        show.print_line(f"... and {len(found) - len(rows)} more; --limit or --json shows them")


def _row(job: Job, view: HostView) -> dict[str, Any]:
    from common.runtime.clock import from_unix_ms

    delay_ms = view.delay_ms
    return {
        "host": view.host,
        "shard": view.shard,
        "queued": view.queued,
        "delayed": view.delayed,
        "in_flight": view.in_flight,
        "errors": view.errors,
        "delay": job.spec.delay if delay_ms is None else delay_ms / 1000,
        "next_at": None if view.ready_at_ms is None else from_unix_ms(view.ready_at_ms),
        "blocked": view.is_blocked,
    }


@click.command(
    cls=Command,
    examples=[
        "crawlctl job host spring example.org --delay 10",
        "crawlctl job host spring https://example.org --block",
    ],
)
@click.argument("job_id", metavar="ID")
@click.argument("host")
@click.option(
    "--delay",
    type=Number(0, _LONGEST_DELAY_S),
    metavar="S",
    help="seconds between two requests to it, in place of the job's; a longer Crawl-delay of its "
    "robots.txt still wins",
)
@click.option("--block", is_flag=True, help="send it nothing more; what is queued waits")
@click.option("--unblock", is_flag=True, help="let it go on")
@click.pass_context
def host(
    ctx: click.Context, *, job_id: str, host: str, delay: float | None, block: bool, unblock: bool
) -> None:
    """Change how one host is treated while a job runs, whoever owns it.

    HOST is a name, with its port where that is not the scheme's own: both http and https are meant
    unless a scheme is given. Requests under way are finished. A job with URLs of a blocked host
    does not finish.
    """
    if (delay is not None) + block + unblock != 1:
        raise UsageError("give exactly one of --delay, --block and --unblock")
    to: _Setting = "block" if block else "unblock" if unblock else round((delay or 0) * 1000)
    run(_host(settings_of(ctx), job_id, _host_keys(host), to))


def _host_keys(text: str) -> list[HostKey]:
    """Return the hosts a user means.

    Raises:
        UsageError: it is no host.
    """
    from common.web.url import host_key, parse_seed

    given = text.strip()
    schemes = ("",) if "://" in given else ("http://", "https://")
    urls = [parse_seed(scheme + given) for scheme in schemes]
    keys = [host_key(url) for url in urls]
    if any(url != key + "/" for url, key in zip(urls, keys, strict=True)):
        raise UsageError(f"HOST: {text!r} is more than a host; give a name, as in example.org")
    return keys


async def _host(settings: Settings, job_id: str, keys: list[HostKey], to: _Setting) -> None:
    from crawlctl.connect import services
    from crawlctl.show import note

    async with services(settings) as connected:
        for key in keys:
            await _change(connected, job_id, key, to)
    if not settings.quiet:
        done = {"block": "blocked", "unblock": "not blocked any more"}
        said = done[to] if isinstance(to, str) else f"given a delay of {to / 1000:g} s"
        note(f"{' and '.join(keys)}: {said} in job {job_id}")


async def _change(services: Services, job_id: str, key: HostKey, to: _Setting) -> None:
    from common.frontier import Refusal
    from crawlctl.jobview import stored_job

    for _ in range(_ATTEMPTS):
        stored = await stored_job(services, job_id)
        state = stored.job.state
        if state.is_final:
            raise RefusedError(f"job {job_id!r} is {state.value}; nothing changes it any more")
        match await services.hosts(stored.job).change(key, to, revision=stored.revision):
            case None:
                return
            case Refusal.MISSING:
                raise RefusedError(f"job {job_id!r} has not started yet; try again in a moment")
            case _:  # a newer job record, or its end: look again
                continue
    raise RefusedError(f"job {job_id!r} is being changed by others all the time; try again")
