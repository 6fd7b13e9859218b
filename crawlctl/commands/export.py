"""``export``: a job's results as JSON lines."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from crawlctl.framework import Command, run, settings_of

if TYPE_CHECKING:
    from common.frontier import JobFrontier
    from common.runtime.settings import Settings

_PAGE = 500
_START = "0-0"
_C1: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
"""Control characters JSON lets stand as they are (UTF-8): never for a terminal."""


@click.command(
    cls=Command,
    examples=["crawlctl export spring -o spring.jsonl", "crawlctl export spring | jq -r .url"],
)
@click.argument("job_id", metavar="ID")
@click.option(
    "-o", "--output", default="-", metavar="FILE|-", help="where to; - is standard output (default)"
)
@click.pass_context
def export(ctx: click.Context, *, job_id: str, output: str) -> None:
    """Write one record for every finished URL of a job, from the beginning.

    Repeatable: nothing is consumed. A file is replaced only when all of it has been written.
    """
    run(_export(settings_of(ctx), job_id, output))


async def _export(settings: Settings, job_id: str, output: str) -> None:
    from crawlctl.connect import services
    from crawlctl.jobview import stored_job
    from crawlctl.show import note

    async with services(settings) as connected:
        stored = await stored_job(connected, job_id)
        frontier = connected.frontier(stored.job)
        if output == "-":
            await _to_stdout(frontier, stored.job.spec.shards)
            return
        count = await _to_file(frontier, stored.job.spec.shards, Path(output))
    if not settings.quiet:
        note(f"{count} records in {output}")


async def _records(frontier: JobFrontier, shards: int) -> AsyncIterator[bytes]:
    for shard in range(shards):
        after = _START
        while True:
            entries = await frontier.results(shard, after=after, count=_PAGE)
            for after, record in entries:  # noqa: B007  # the last id is where to go on
                yield record + b"\n"
            if len(entries) < _PAGE:
                break


async def _to_stdout(frontier: JobFrontier, shards: int) -> None:
    to_terminal = sys.stdout.isatty()
    async for line in _records(frontier, shards):
        safe = _C1.sub(lambda match: b"\\u%04x" % ord(match[0].decode()), line)
        sys.stdout.buffer.write(safe if to_terminal else line)
    sys.stdout.buffer.flush()


async def _to_file(frontier: JobFrontier, shards: int, path: Path) -> int:
    from common.model.errors import UsageError

    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with draft.open("xb") as file:
            async for line in _records(frontier, shards):
                file.write(line)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"-o: cannot write {str(path)!r} ({error.strerror})") from error
    finally:
        draft.unlink(missing_ok=True)
    return count
