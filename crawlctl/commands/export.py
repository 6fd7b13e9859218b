"""``export``: a job's results as JSON lines, CSV or Parquet."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from common.model.errors import UsageError
from crawlctl.framework import Command, run, settings_of

if TYPE_CHECKING:
    from common.runtime.settings import Settings
    from crawlctl.export.reading import Reader

_FORMATS: Final = ("jsonl", "csv", "parquet")
_STDOUT: Final = "-"


@click.command(
    cls=Command,
    examples=[
        "crawlctl export spring -o spring.jsonl",
        "crawlctl export spring | jq -r .url",
        "crawlctl export spring --format parquet -o spring.parquet",
        "crawlctl export spring --follow",
    ],
)
@click.argument("job_id", metavar="ID")
@click.option(
    "-o",
    "--output",
    default=_STDOUT,
    metavar="FILE|-",
    help="where to; - is standard output (default)",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(_FORMATS),
    default="jsonl",
    help="jsonl, csv, or parquet (into a file)  [default: jsonl]",
)
@click.option(
    "--follow", is_flag=True, help="go on with records as they come, until the job is over"
)
@click.pass_context
def export(ctx: click.Context, /, *, job_id: str, output: str, style: str, follow: bool) -> None:
    """Write one record for every finished URL of a job, from the beginning.

    Repeatable: nothing is consumed. A file is replaced only when all of it has been written; with
    --follow it is begun anew and grows.
    """
    if style == "parquet":
        _check_parquet(output, follow=follow)
    settings = settings_of(ctx)
    run(_export(settings, job_id, output, style, follow=follow))


def _check_parquet(output: str, *, follow: bool) -> None:
    from crawlctl.export.parquet import check_available

    if follow:
        raise UsageError(
            "--follow: a parquet file is written as a whole; use --format jsonl or csv"
        )
    if output == _STDOUT:
        raise UsageError("-o: a parquet file does not go to standard output; give a file")
    check_available()


async def _export(
    settings: Settings, job_id: str, output: str, style: str, *, follow: bool
) -> None:
    from crawlctl.connect import services
    from crawlctl.export.reading import Reader
    from crawlctl.show import note

    async with services(settings) as connected:
        reader = Reader(connected, job_id)
        before = await reader.trimmed()
        pages = reader.following() if follow else reader.pages()
        if output == _STDOUT:
            await _to_stdout(pages, style)
        else:
            count = await _to_file(pages, Path(output), style, grows=follow)
            if not settings.quiet:
                note(f"{count} records in {output}")
        await _tell_trimmed(reader, before)


async def _tell_trimmed(reader: Reader, before: int) -> None:
    """Say so where records are missing: fewer than there were must not look like all."""
    from crawlctl.show import note

    trimmed = max(before, await reader.trimmed())
    if trimmed:
        note(
            f"crawlctl: {trimmed} earlier records are not in this export: they were trimmed after "
            "every consumer group had read them"
        )


async def _to_stdout(pages: AsyncIterator[list[bytes]], style: str) -> None:
    from crawlctl.export.formats import TEXT_FORMATS
    from crawlctl.export.targets import StandardOutput

    target = StandardOutput(TEXT_FORMATS[style])
    async for page in pages:
        target.write(page)


async def _to_file(
    pages: AsyncIterator[list[bytes]], path: Path, style: str, *, grows: bool
) -> int:
    from crawlctl.export.formats import TEXT_FORMATS
    from crawlctl.export.parquet import ParquetWriter
    from crawlctl.export.targets import naming, replaced_file

    count = 0
    with naming(path), path.open("wb") if grows else replaced_file(path) as file:
        if style == "parquet":
            writer = ParquetWriter(file)
            async for page in pages:
                writer.write(page)
                count += len(page)
            writer.close()
            return count
        text = TEXT_FORMATS[style]
        file.write(text.head)
        async for page in pages:
            file.write(text.encode(page))
            count += len(page)
            if grows:
                file.flush()
        if grows:
            os.fsync(file.fileno())
    return count
