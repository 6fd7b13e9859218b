"""``export``: a job's results as JSON lines, CSV or Parquet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from common.model.errors import RefusedError, UsageError
from common.model.ids import checked_name
from crawlctl.framework import Command, run, settings_of
from crawlctl.parameters import Place

if TYPE_CHECKING:
    from common.runtime.settings import Settings
    from crawlctl.export.consumed_file import ConsumedFile, Source
    from crawlctl.export.consumed_parts import ConsumedParts
    from crawlctl.export.consuming import Consumer
    from crawlctl.export.reading import Reader

_FORMATS: Final = ("jsonl", "csv", "parquet")
_COMPRESSIONS: Final = ("gz", "bz2", "xz", "zst", "zip")
_STDOUT: Final = "-"


@click.command(
    cls=Command,
    examples=[
        "crawlctl export spring -o spring.jsonl",
        "crawlctl export spring | jq -r .url",
        "crawlctl export spring -o spring.parquet",
        "crawlctl export spring --follow",
        "crawlctl export spring --consume index --follow -o spring.jsonl",
        "crawlctl export spring --consume lake --follow --format parquet -o parts",
    ],
)
@click.argument("job_id", metavar="ID")
@click.option(
    "-o",
    "--output",
    type=Place(),
    default=_STDOUT,
    metavar="FILE|-",
    help="where to; - is standard output (default)",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(_FORMATS),
    help="jsonl, csv, or parquet (into a file; with --consume a folder of files)  [default: as "
    "the name of -o ends, else jsonl]",
)
@click.option(
    "--follow", is_flag=True, help="go on with records as they come, until the job is over"
)
@click.option(
    "--consume",
    metavar="GROUP",
    help="write only what this group of readers has not got yet, into a file each record once; "
    "what every group has is dropped from the server",
)
@click.pass_context
def export(
    ctx: click.Context,
    /,
    *,
    job_id: str,
    output: str,
    style: str | None,
    follow: bool,
    consume: str | None,
) -> None:
    """Write one record for every finished URL of a job, from the beginning.

    Repeatable: without --consume nothing is consumed; but what every group of --consume has read,
    the only one included, is gone for good. A file is replaced only when all of it has
    been written, a device or a pipe is written into; with --follow a file is begun anew and grows
    (Parquet has its index at the end: that file appears when the job is over).
    With --consume it is appended to, and FILE.checkpoint says how far: the same command goes on
    with it, whatever ended the last one.
    """
    style = _style(output, style, is_consumed=consume is not None)
    if style == "parquet":
        _check_parquet(output, place="a file" if consume is None else "a folder")
    settings = settings_of(ctx)
    if consume is None:
        run(_export(settings, job_id, output, style, follow=follow))
    else:
        group = checked_name(consume, field="--consume")
        run(_consume(settings, job_id, output, style, group=group, follow=follow))


def _style(output: str, asked: str | None, *, is_consumed: bool) -> str:
    """Return the format: the one asked for, else what the file is named for.

    A consumer goes on in the format it was begun with, whatever its file is named.

    Raises:
        UsageError: the file is named for another one than was asked for, or for a compression.
    """
    suffix = Path(output).suffix.removeprefix(".").lower()
    if suffix in _COMPRESSIONS and not (is_consumed and Path(output).exists()):
        raise UsageError(
            f"-o: {output!r} is named for a compression, and files are written plain; leave "
            f".{suffix} out, or give - and pipe it to a compressor"
        )
    named = suffix if suffix in _FORMATS else None
    if asked is not None and named not in (None, asked) and not is_consumed:
        raise UsageError(
            f"-o: {output!r} is named for {named}, and --format is {asked}; leave --format out, or "
            "give another name"
        )
    return asked or named or _FORMATS[0]


def _check_parquet(output: str, *, place: str) -> None:
    from crawlctl.export.parquet import check_available

    if output == _STDOUT:
        raise UsageError(f"-o: parquet does not go to standard output; give {place}")
    check_available()


async def _export(
    settings: Settings, job_id: str, output: str, style: str, *, follow: bool
) -> None:
    from crawlctl.connect import services
    from crawlctl.export.reading import Reader
    from crawlctl.show import note, quantity

    async with services(settings) as connected:
        reader = Reader(connected, job_id)
        before = await reader.trimmed()
        if before:
            _keep_older(output, before)
        pages = reader.following() if follow else reader.pages()
        if output == _STDOUT:
            await _to_stdout(pages, style)
        else:
            # A Parquet file can only be read when it has its end: it appears when the job is over.
            grows = follow and style != "parquet"
            count = await _to_file(pages, Path(output), style, grows=grows)
            if not settings.quiet:
                note(f"{quantity(count, 'record')} ({style}) in {output}")
        await _tell_trimmed(reader, before)


def _keep_older(output: str, trimmed: int) -> None:
    """Refuse to replace a file that may be all there is of records trimmed since.

    Raises:
        RefusedError: the file is there, and holds something.
    """
    from crawlctl.show import quantity

    path = Path(output)
    if output != _STDOUT and path.is_file() and path.stat().st_size:
        raise RefusedError(
            f"-o: {quantity(trimmed, 'record')} of the job have been trimmed, after every consumer "
            f"group had read them, and {output!r} may hold them; give another name"
        )


async def _tell_trimmed(reader: Reader, before: int) -> None:
    """Say so where records are missing: fewer than there were must not look like all."""
    from crawlctl.show import note, quantity

    trimmed = max(before, await reader.trimmed())
    if trimmed:
        note(
            f"crawlctl: not in this export: {quantity(trimmed, 'earlier record')}, trimmed after "
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
    from crawlctl.export.targets import make_final, naming, replaced_file

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
            make_final(file)
    return count


async def _consume(
    settings: Settings, job_id: str, output: str, style: str, *, group: str, follow: bool
) -> None:
    from crawlctl.connect import services
    from crawlctl.export.consumed_file import Source
    from crawlctl.export.consuming import ConsumedOutput, Consumer
    from crawlctl.export.formats import TEXT_FORMATS
    from crawlctl.export.targets import StandardOutput
    from crawlctl.jobview import stored_job
    from crawlctl.show import note, quantity

    async with services(settings) as connected:
        await stored_job(connected, job_id)
        if output == _STDOUT:
            target = ConsumedOutput(StandardOutput(TEXT_FORMATS[style]))
            consumer = Consumer(connected, job_id, group=group, target=target)
            await consumer.run(follow=follow)
        else:
            source = Source(cluster=settings.cluster, job=job_id, group=group, style=style)
            with closing(_consumed(Path(output), source)) as kept:
                consumer = Consumer(connected, job_id, group=group, target=kept)
                await consumer.run(follow=follow)
            if not settings.quiet:
                note(f"{quantity(consumer.records, 'more record')} in {output}")
        await _tell_missing(consumer, group)


def _consumed(path: Path, source: Source) -> ConsumedFile | ConsumedParts:
    from crawlctl.export.consumed_file import ConsumedFile
    from crawlctl.export.consumed_parts import ConsumedParts
    from crawlctl.export.formats import TEXT_FORMATS

    if source.style == "parquet":
        return ConsumedParts(path, source)
    return ConsumedFile(path, source, TEXT_FORMATS[source.style])


async def _tell_missing(consumer: Consumer, group: str) -> None:
    """Say what the group does not have, or not for sure."""
    from crawlctl.show import note, quantity

    if consumer.missed:
        note(
            f"crawlctl: group {group} begins behind {quantity(consumer.missed, 'record')} trimmed "
            "after every other group had read them"
        )
    for reader, count in (await consumer.held_by_others()).items():
        note(
            f"crawlctl: of group {group}, {reader} (host:file) was given "
            f"{quantity(count, 'record')} and has not acknowledged them yet; if that export has "
            "ended, repeat its command to have them"
        )
