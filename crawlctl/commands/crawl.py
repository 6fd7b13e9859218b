"""``crawl``: everything from start to finish, on this machine, into one folder."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from common.model.errors import UsageError
from common.model.job import JobSpec
from crawlctl.framework import Command, run, settings_of, version
from crawlctl.job_options import job_options, note_nameless, option_name, spec_from
from crawlctl.parameters import Place, Whole
from crawlctl.plugin_options import CODE, arguments, named

if TYPE_CHECKING:
    from common.embedded.folder import Folder, FolderState
    from crawlctl.crawling import Crawl
    from crawlctl.seeds import Collected
    from crawlctl.summary import Summary

_SHARDS: Final = 16
"""Enough for the workers of one machine, and quicker to look at than the cluster's default."""
_INTERRUPTED: Final = 130
_WORDS: Final = {
    "plugin": f"plugin that this crawl uses: {CODE}, the same with FILE.py in place of MODULE, or "
    "the name of an installed one; repeatable"
}
"""Where an option means more here than for a job that goes to workers elsewhere."""


@click.command(
    cls=Command,
    examples=[
        "crawlctl crawl https://example.org/ -o out",
        "crawlctl crawl --seeds seeds.txt -o out --max-depth 2 --delay 0.5",
        "crawlctl crawl http://127.0.0.1:8000/ -o out --allow-private --delay 0 --per-host 8",
        "crawlctl crawl https://shop.example/ -o out --plugin prices=shop.py:Prices",
    ],
)
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option(
    "-o", "--output", type=Place(), required=True, metavar="DIR", help="folder for the results"
)
@click.option("--seeds", metavar="FILE|-", help="file of seeds, one a line; - is standard input")
@click.option("--workers", type=Whole(1, 256), metavar="N", help="workers  [default: one a core]")
@click.option(
    "--fresh", is_flag=True, help="start over, deleting what an earlier crawl left in DIR"
)
@job_options(words=_WORDS, shards=_SHARDS)
@click.pass_context
def crawl(
    ctx: click.Context,
    /,
    *,
    urls: Sequence[str],
    output: str,
    seeds: str | None,
    workers: int | None,
    fresh: bool,
    **options: Any,
) -> int:
    """Crawl from start to finish on this machine, with servers of its own.

    Results are in DIR/results.jsonl, one record for every URL, and in DIR/summary.json. Ctrl-C ends
    it in good order; the same command goes on with it. With --recrawl it goes on until then, and
    results.jsonl has a line for each visit of a page.
    """
    from common.embedded.folder import Folder, FolderState
    from common.runtime.process import cores
    from common.runtime.request_secrets import revealed_headers, revealed_proxy
    from crawlctl.crawling import JOB_ID, Crawl
    from crawlctl.seeds import collect, note_bare

    settings = settings_of(ctx, with_services=False)
    names, references = named(options["plugin"])
    spec = spec_from({**options, "plugin": names}, shards=_SHARDS)
    # The workers run here: what they would miss is missing already.
    revealed_headers(spec)
    revealed_proxy(spec)
    with tempfile.TemporaryFile() as spool:
        collected = collect(urls, seeds, spool, allow_private=spec.allow_private)
        note_bare(collected, quiet=settings.quiet)
        with Folder.claim(output) as folder:
            state = _state_of(folder, fresh=fresh)
            if state is not None:
                _refuse_other(state, spec, collected, output)
            if state is not None and state.finished:
                return _show_finished(folder, quiet=settings.quiet)
            if state is None:
                note_nameless(spec, quiet=settings.quiet)
                folder.save_state(
                    FolderState(
                        kind="crawl",
                        job=JOB_ID,
                        spec=spec,
                        seeds=collected.sha256,
                        versions={"crawlctl": version()},
                    )
                )
            asked = Crawl(
                folder=folder,
                spec=spec,
                spool=spool,
                seeds=collected.good,
                seeds_sha256=collected.sha256,
                bad_seed_lines=collected.bad,
                workers=workers or cores(),
                worker_arguments=arguments(references),
                quiet=settings.quiet,
                log_level=settings.log_level,
            )
            return _run(asked)


def _state_of(folder: Folder, *, fresh: bool) -> FolderState | None:
    """Return what crawl the folder holds; None for a new one, or one made new."""
    try:
        state = folder.load_state()
    except UsageError:
        if not fresh:
            raise
        state = None
    if state is not None and state.kind != "crawl":
        raise UsageError(
            f"-o: {folder.path} holds the data of 'crawlctl up', not of a crawl; give another one"
        )
    if fresh:
        folder.wipe()
        return None
    return state


def _refuse_other(state: FolderState, spec: JobSpec, collected: Collected, output: str) -> None:
    """Refuse to go on with another crawl than the folder's."""
    from crawlctl.jobview import differing_field

    remedy = "repeat the command as it was, give another -o, or start over with --fresh"
    other = differing_field(state.spec or JobSpec(), spec)
    if other is not None:
        name, there, here = (part if part != "null" else "none" for part in other)
        raise UsageError(
            f"{option_name(name)}: the crawl in {output} was begun with {there}, this one has "
            f"{here}; {remedy}"
        )
    if state.seeds != collected.sha256:
        raise UsageError(f"URL, --seeds: the crawl in {output} was begun with others; {remedy}")


def _run(asked: Crawl) -> int:
    from crawlctl import crawling, summary
    from crawlctl.show import note

    result = run(crawling.run(asked))
    if result is not None and not asked.quiet:
        summary.show(result, asked.folder.path / crawling.RESULTS)
    code, words = _verdict(result)
    if words:
        note(f"crawlctl: {words}")
    return code


def _verdict(result: Summary | None) -> tuple[int, str | None]:
    """Return the exit code and what is to be said about it."""
    from crawlctl.summary import CrawlOutcome, no_seed_answered

    if result is None or result.outcome is CrawlOutcome.INTERRUPTED:
        return _INTERRUPTED, "interrupted; the same command goes on with it"
    if result.outcome is CrawlOutcome.FAILED:
        return 1, f"the crawl is {result.state}: {result.reason or 'see the logs in .crawlctl'}"
    if result.outcome is CrawlOutcome.NO_SEED_ANSWERED:
        return 1, no_seed_answered(result.errors)
    if result.bad_seed_lines:
        lines = "line was" if result.bad_seed_lines == 1 else "lines were"
        return 1, f"{result.bad_seed_lines} seed {lines} bad; all the others were crawled"
    return 0, None


def _show_finished(folder: Folder, *, quiet: bool) -> int:
    """Show the summary again; a crawl that reached nobody has still failed."""
    from crawlctl import crawling, summary
    from crawlctl.show import note

    found = summary.load(folder.path)
    if not quiet:
        note(f"the crawl in {folder.path} is finished; --fresh starts over")
        if found is not None:
            summary.show(found, folder.path / crawling.RESULTS)
    if found is not None and found.outcome is summary.CrawlOutcome.NO_SEED_ANSWERED:
        code, words = _verdict(found)
        note(f"crawlctl: {words}")
        return code
    return 0
