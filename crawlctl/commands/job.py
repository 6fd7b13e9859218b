"""``jobs`` and ``job``: look at jobs, wait for them, change their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from common.model.ids import in_order
from common.model.job import Job
from crawlctl.framework import Command, Group, Lazy, json_option, run, settings_of
from crawlctl.parameters import Number

if TYPE_CHECKING:
    from common.runtime.settings import Settings
    from crawlctl.jobview import JobLook

_SHOWN_TASKS = 20
"""Shards listed for people: the busiest; ``--json`` has them all."""
_SHOWN_RULES = 10


@click.command(cls=Command, examples=["crawlctl jobs", "crawlctl jobs --json | jq '.[].id'"])
@json_option
@click.pass_context
def jobs(ctx: click.Context, *, as_json: bool) -> None:
    """List the jobs, oldest first."""
    run(_jobs(settings_of(ctx), as_json=as_json))


async def _jobs(settings: Settings, *, as_json: bool) -> None:
    from crawlctl import show
    from crawlctl.connect import services
    from crawlctl.jobview import document, look_at

    async with services(settings) as connected:
        stored = await connected.coord.jobs.list()
        shown = [document(await look_at(connected, one.job)) for one in stored]
    if as_json:
        show.print_json(shown)
        return
    show.print_table(
        ("id", "state", "pages", "queued", "in flight", "errors", "pages/s", "created"),
        [
            (
                one["id"],
                one["state"],
                one["counters"]["fetched"] + one["counters"]["not_modified"],
                one["counters"]["queued"] + one["counters"]["delayed"],
                one["counters"]["in_flight"],
                one["counters"]["failed"] + one["counters"]["dead"],
                one["counters"]["pages_per_second"],
                one["created_at"],
            )
            for one in shown
        ],
    )


@click.group(
    cls=Group,
    examples=["crawlctl job show spring", "crawlctl job wait spring --timeout 3600"],
    lazy={
        "add": Lazy("crawlctl.commands.job_add:add", "add seeds to a job that is not over"),
        "hosts": Lazy("crawlctl.commands.job_hosts:hosts", "list its hosts by backlog"),
        "host": Lazy("crawlctl.commands.job_hosts:host", "slow down or block one of its hosts"),
        "delete": Lazy("crawlctl.commands.job_delete:delete", "forget a job that is over"),
    },
)
def job() -> None:
    """Look at one job, wait for it, add to it, pause, resume, cancel or close it."""


@job.command(
    cls=Command,
    short_help="show its spec, its counters and who owns which part of it",
    examples=["crawlctl job show spring --json", "crawlctl job show spring --profile"],
)
@click.argument("job_id", metavar="ID")
@click.option("--profile", is_flag=True, help="say what limits it now, and where its pages are")
@json_option
@click.pass_context
def show(ctx: click.Context, *, job_id: str, profile: bool, as_json: bool) -> None:
    """Show a job: its spec, its counters and who owns which part of it."""
    run(_show(settings_of(ctx), job_id, with_profile=profile, as_json=as_json))


async def _show(settings: Settings, job_id: str, *, with_profile: bool, as_json: bool) -> None:
    from crawlctl import limits
    from crawlctl.connect import services
    from crawlctl.jobview import (
        document,
        look_at,
        situation,
        stored_job,
        waiting_visits,
        why_waiting,
    )
    from crawlctl.show import print_json

    async with services(settings) as connected:
        stored = await stored_job(connected, job_id)
        look = await look_at(connected, stored.job, with_rules=True)
        waiting = await why_waiting(connected.coord, stored.job)
        visits = await waiting_visits(connected, stored.job)
        locks = await connected.coord.locks.list()
        shown = document(look, locks, waiting=waiting, visits=visits)
        if with_profile:
            shown["profile"] = limits.document(await situation(connected, look, shown))
    if as_json:
        print_json(shown)
    else:
        _print_job(look, shown)


def _print_job(look: JobLook, shown: dict[str, Any]) -> None:
    from common.model import counters
    from common.model.job import JobSpec
    from crawlctl.show import print_line, print_table

    reason = f" ({shown['reason']})" if shown["reason"] else ""
    kept = f", kept open until 'crawlctl job close {shown['id']}'" if look.job.is_kept_open else ""
    print_line(f"{shown['id']}: {shown['state']}{reason}{kept}")
    if shown["waiting"]:
        print_line(f"waiting: {shown['waiting']}")
    print_table(
        ("created", "started", "finished", "seeds", "pages/s"),
        [
            (
                shown["created_at"],
                shown["started_at"],
                shown["finished_at"],
                shown["spec"]["seeds"],
                shown["counters"]["pages_per_second"],
            )
        ],
    )
    defaults = JobSpec()
    changed = [
        f"{name}={_spec_value(shown['spec'][name])}"
        for name in JobSpec.__struct_fields__
        if getattr(look.job.spec, name) != getattr(defaults, name)
    ]
    print_line()
    print_line(f"spec: {', '.join(changed) or 'all defaults'}")
    print_line()
    print_table(counters.NAMES, [[shown["counters"][name] for name in counters.NAMES]])
    print_line()
    if shown["recrawl"]:
        _print_recrawl(shown["recrawl"], goes_on=look.job.is_kept_open)
    _print_rules(shown["filtered_by_rule"])
    _print_tasks(shown["tasks"])
    if "profile" in shown:
        print_line()
        _print_profile(shown["profile"])


def _print_recrawl(recrawl: dict[str, Any], *, goes_on: bool) -> None:
    from crawlctl.show import print_line, quantity

    upcoming = "the job was closed or is over, nothing more is brought back"
    if goes_on:
        first = f", the next at {recrawl['next_visit_at']}" if recrawl["next_visit_at"] else ""
        upcoming = f"waiting for a visit: {quantity(recrawl['waiting'], 'page')}{first}"
    print_line(
        f"visited again: {quantity(recrawl['done'], 'time')}; {upcoming}; "
        f"under way: {recrawl['under_way']}"
    )
    print_line()


def _spec_value(value: object) -> str:
    """Return a value as users write it; several as a JSON array, since each may hold commas."""
    from crawlctl.show import json_text

    return value if isinstance(value, str) else json_text(value)


def _print_rules(rules: dict[str, int]) -> None:
    """Show which rules refused links, if any did, most first."""
    from crawlctl.show import print_line, print_table, quantity

    if not rules:
        return
    print_table(("links refused by", "links"), list(rules.items())[:_SHOWN_RULES])
    if len(rules) > _SHOWN_RULES:
        print_line(f"... and {quantity(len(rules) - _SHOWN_RULES, 'more rule')}; --json has all")
    print_line()


def _print_profile(profile: dict[str, Any]) -> None:
    from crawlctl.show import print_line, print_table

    print_line(f"limited by {profile['limit']}: {profile['reason']}")
    print_line(f"to change that: {profile['remedy']}")
    print_line()
    hosts = profile["hosts"]
    print_table(("hosts due", "hosts waiting", "hosts busy"), [list(hosts.values())])
    print_line()
    names = list(profile["stages"])
    rows = [
        [f"{one['id']} ({one['cpu']:.0%} cpu)", *(one["stages"].get(name, 0) for name in names)]
        for one in profile["workers"]
    ]
    print_table(("pages in each stage", *names), [*rows, ["all", *profile["stages"].values()]])


def _print_tasks(tasks: list[dict[str, Any]]) -> None:
    """Show who owns how many shards, and those with something to do, most first."""
    from collections import Counter

    from crawlctl.show import print_line, print_table, quantity

    def waiting(task: dict[str, Any]) -> int:
        return int(task["queued"] + task["delayed"] + task["in_flight"])

    owners = Counter(task["owner"] or "nobody" for task in tasks)
    shares = sorted(owners.items(), key=lambda item: in_order(item[0]))
    said = ", ".join(f"{owner} {count}" for owner, count in shares)
    print_line(f"{quantity(len(tasks), 'shard')}, owned by: {said}")
    busy = sorted(filter(waiting, tasks), key=waiting, reverse=True)
    if busy:
        columns = ("shard", "owner", "token", "queued", "delayed", "in_flight")
        print_table(columns, [[task[name] for name in columns] for task in busy[:_SHOWN_TASKS]])
    if len(busy) > _SHOWN_TASKS:
        print_line(f"... and {len(busy) - _SHOWN_TASKS} more; --json has all")


@job.command(
    cls=Command,
    short_help="wait until it ends",
    examples=["crawlctl job wait spring", "crawlctl job wait spring -q"],
)
@click.argument("job_id", metavar="ID")
@click.option(
    "--timeout",
    type=Number(0),
    metavar="SECONDS",
    help="wait no longer  [default: for ever]",
)
@click.pass_context
def wait(ctx: click.Context, *, job_id: str, timeout: float | None) -> int:
    """Wait until a job ends.

    Exits 0 when it finished, 1 when no seed answered, or it failed, was cancelled, or has not
    ended in time.
    """
    return run(_wait(settings_of(ctx), job_id, timeout_s=timeout))


async def _wait(settings: Settings, job_id: str, *, timeout_s: float | None) -> int:
    from crawlctl.connect import services
    from crawlctl.jobview import stored_job
    from crawlctl.progress import progress
    from crawlctl.show import note
    from crawlctl.waiting import closing, note_kept_open, wait_for_end

    async with services(settings) as connected:
        note_kept_open((await stored_job(connected, job_id)).job, quiet=settings.quiet)
        with progress(quiet=settings.quiet) as shown:
            look = await wait_for_end(connected, job_id, shown, timeout_s=timeout_s)
        if look is not None:
            return await closing(connected, look, quiet=settings.quiet)
    note(f"crawlctl: job {job_id} has not ended within {timeout_s:g} s; it goes on")
    return 1


@job.command(
    cls=Command,
    short_help="let it rest: what is in flight is finished",
    examples=["crawlctl job pause spring"],
)
@click.argument("job_id", metavar="ID")
@click.pass_context
def pause(ctx: click.Context, *, job_id: str) -> None:
    """Let a job rest: what is in flight is finished, nothing new begins."""
    from crawlctl.transitions import paused

    run(_change(settings_of(ctx), job_id, paused))


@job.command(
    cls=Command, short_help="let a paused job go on", examples=["crawlctl job resume spring"]
)
@click.argument("job_id", metavar="ID")
@click.pass_context
def resume(ctx: click.Context, *, job_id: str) -> None:
    """Let a paused job go on."""
    from crawlctl.transitions import resumed

    run(_change(settings_of(ctx), job_id, resumed))


@job.command(
    cls=Command,
    short_help="end it early: what is queued is dropped",
    examples=["crawlctl job cancel spring"],
)
@click.argument("job_id", metavar="ID")
@click.pass_context
def cancel(ctx: click.Context, *, job_id: str) -> None:
    """End a job early: what is queued is dropped, what was fetched stays."""
    from crawlctl.transitions import cancelled

    run(_change(settings_of(ctx), job_id, cancelled))


@job.command(
    cls=Command,
    short_help="let a job that is kept open finish",
    examples=["crawlctl job close spring"],
)
@click.argument("job_id", metavar="ID")
@click.pass_context
def close(ctx: click.Context, *, job_id: str) -> None:
    """Let a job submitted with --keep-open or --recrawl finish once nothing is queued.

    Pages that wait for their next visit are not visited any more.
    """
    from crawlctl.transitions import closed

    run(
        _change(
            settings_of(ctx), job_id, closed, then="; it will finish once nothing is left of it"
        )
    )


async def _change(
    settings: Settings, job_id: str, decide: Callable[[Job], Job], *, then: str = ""
) -> None:
    from crawlctl.connect import services
    from crawlctl.jobview import waits_for
    from crawlctl.show import note
    from crawlctl.transitions import change

    async with services(settings) as connected:
        now = await change(connected, job_id, decide)
    if not settings.quiet:
        kept = " and kept open" if now.is_kept_open else ""
        why = waits_for(now)
        note(f"job {job_id} is {now.state.value}{kept}{then}{f': {why}' if why else ''}")
