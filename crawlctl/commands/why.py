"""``why``: what happened to URLs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from crawlctl.framework import Command, json_option, run, settings_of

if TYPE_CHECKING:
    from common.runtime.settings import Settings
    from crawlctl.explaining import Explanation


@click.command(
    cls=Command,
    examples=[
        "crawlctl why spring https://example.org/news/",
        "crawlctl why spring example.org/missing example.org/a --json | jq -r .reason",
    ],
)
@click.argument("job_id", metavar="ID")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@json_option
@click.pass_context
def why(ctx: click.Context, *, job_id: str, urls: Sequence[str], as_json: bool) -> None:
    """Say what happened to URLs in a job, and why.

    States: unknown (nobody has found it), filtered (by a rule or the scope), staged (a seed not
    offered yet), queued, delayed (for another try), in_flight, finished, denied (by robots.txt),
    over_budget, seen (known to the seen-set alone). Looks through the shard of each URL. With
    --json each of several URLs has a line.
    """
    run(_why(settings_of(ctx), job_id, urls, as_json=as_json))


async def _why(settings: Settings, job_id: str, urls: Sequence[str], *, as_json: bool) -> None:
    from crawlctl.connect import services
    from crawlctl.explaining import explain
    from crawlctl.jobview import stored_job
    from crawlctl.show import print_json, print_line

    async with services(settings) as connected:
        stored = await stored_job(connected, job_id)
        for number, url in enumerate(urls):
            answer = await explain(connected, stored.job, url)
            if as_json:
                print_json(answer._asdict())
                continue
            if number > 0:
                print_line()
            _print_answer(answer)


def _print_answer(answer: Explanation) -> None:
    from crawlctl.show import json_text, print_line

    print_line(answer.canonical or answer.url)
    since = f" since {answer.since}" if answer.since else ""
    print_line(f"{answer.state}{since}: {answer.reason}")
    for name, value in answer.detail.items():
        if value is not None:
            print_line(f"  {name}: {value if isinstance(value, str) else json_text(value)}")
