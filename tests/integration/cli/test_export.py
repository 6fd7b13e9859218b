"""``export`` as a user runs it, of results written by the test."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from common.frontier import MasterFence, ShardState
from common.model.job import JobState
from crawlctl.connect import Services
from tests.support.cli import Ran, at_least_lines, crawlctl, running
from tests.support.results import JOB, WrittenJob, record, urls
from tests.support.waiting import until_true
from tests.unit.cli.calling import Caller


async def export(options: list[str], *arguments: str) -> Ran:
    return await asyncio.to_thread(crawlctl, "export", JOB, *arguments, *options)


def content(path: Path) -> bytes:
    return path.read_bytes()


def listed(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def of_lines(text: str) -> Counter[str]:
    return Counter(json.loads(line)["url"] for line in text.splitlines())


async def test_every_record_is_exported_as_often_as_asked(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    await job.add(1300)
    ran = await export(options)
    assert (0, urls(range(1300))) == (ran.code, of_lines(ran.out)), ran.err
    ran = await export(options, "-o", str(out))
    assert 0 == ran.code, ran.err
    assert urls(range(1300)) == of_lines(content(out).decode())
    assert [1300] == [sum(await job.lengths())]


async def test_csv_keeps_every_value_and_quotes_every_text(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    await job.add(26)
    ran = await export(options, "--format", "csv", "-o", str(out))
    assert 0 == ran.code, ran.err
    data = content(out)
    rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    by_url = {row["url"]: row for row in rows}
    assert len(rows) == 26
    for number in range(26):
        expected, row = record(number), by_url[record(number).url]
        assert (expected.title or "") == row["title"]
        assert ("true" if expected.truncated else "false") == row["truncated"]
        assert ("" if expected.status is None else "200") == row["status"]
        assert (expected.error.code if expected.error else "") == row["error_code"]
        assert (expected.error.message if expected.error else "") == row["error_message"]
        assert (str(expected.warc.offset) if expected.warc else "") == row["warc_offset"]
    head = data.partition(b"\r\n")[0].decode().split(",")
    assert {"warc_file", "warc_length", "outcome", "sha256"} <= set(head)
    assert b'"=HYPERLINK(""http://x"",""y"")"' in data
    assert all(f'"{text}"'.encode() in data for text in ("+1", "-1", "@SUM(A1)", "\t=1"))
    nulls = [line for line in data.split(b"\r\n") if line.startswith(b'"http://h.example/1?')]
    assert b",,," in nulls[0], "a null is not an empty text"


async def test_parquet_holds_the_same_records_in_row_groups(
    job: WrittenJob, options: list[str], tmp_path: Path
) -> None:
    await job.add(10_040)
    target = tmp_path / "out.parquet"
    ran = await export(options, "--format", "parquet", "-o", str(target))
    assert 0 == ran.code, ran.err
    file = parquet.ParquetFile(target)
    assert (2, 10_040) == (file.metadata.num_row_groups, file.metadata.num_rows)
    table = file.read()
    rows = {row["url"]: row for row in table.to_pylist()}
    for number in range(10_040):
        expected, row = record(number), rows[record(number).url]
        assert (expected.title, expected.status) == (row["title"], row["status"])
        assert (expected.error.code if expected.error else None) == row["error_code"]
        assert (expected.warc.file if expected.warc else None) == row["warc_file"]
    assert pa.timestamp("ms", tz="UTC") == table.schema.field("fetched_at").type
    assert "2026-11-30T08:15:30.123000+00:00" == rows[record(0).url]["fetched_at"].isoformat()
    assert [target] == listed(tmp_path)


async def test_the_format_is_what_the_file_is_named_for(
    job: WrittenJob, options: list[str], tmp_path: Path
) -> None:
    await job.add(3)
    for name in ("a.csv", "a.parquet", "a.jsonl", "a.txt"):
        ran = await export(options, "-o", str(tmp_path / name))
        assert 0 == ran.code, ran.err
    assert "url" == (tmp_path / "a.csv").read_text("utf-8-sig").partition(",")[0]
    assert b"PAR1" == content(tmp_path / "a.parquet")[:4]
    assert content(tmp_path / "a.jsonl") == content(tmp_path / "a.txt")
    assert urls(range(3)) == of_lines(content(tmp_path / "a.txt").decode())


@pytest.mark.parametrize("more", [(), ("--follow",), ("--consume", "g"), ("--format", "csv")])
def test_a_file_named_for_a_compression_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    answer = Caller(capsys)("export", JOB, "-o", str(tmp_path / "x.jsonl.gz"), *more)
    assert 2 == answer.code
    assert "named for a compression, and files are written plain; leave .gz out" in answer.err
    assert [] == listed(tmp_path)


def test_parquet_without_its_library_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    answer = Caller(capsys)("export", JOB, "--format", "parquet", "-o", "x.parquet")
    assert 2 == answer.code
    assert "pip install 'crawlctl[parquet]'" in answer.err


@pytest.mark.parametrize(
    "arguments", [("-o", "-"), ("-o", "-", "--follow"), ("-o", "-", "--consume", "g")]
)
def test_parquet_goes_into_a_file_as_a_whole(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    answer = Caller(capsys)("export", JOB, "--format", "parquet", *arguments)
    assert 2 == answer.code
    assert arguments[0] in answer.err


async def test_a_file_that_cannot_be_written_is_named_and_the_old_one_kept(
    job: WrittenJob, options: list[str], tmp_path: Path
) -> None:
    await job.add(1)
    ran = await export(options, "-o", str(tmp_path / "missing" / "out"))
    assert 2 == ran.code
    assert "-o: cannot write" in ran.err


@pytest.mark.parametrize("style", ["jsonl", "csv"])
async def test_following_ends_when_the_job_is_over_and_all_was_written(
    job: WrittenJob, options: list[str], out: Path, style: str
) -> None:
    await job.add(20)
    with running("export", JOB, "--follow", "--format", style, "-o", str(out), *options) as follow:
        await until_true(at_least_lines(out, 20), within_s=30)
        await job.add(1000)
        await until_true(at_least_lines(out, 1020), within_s=30)
        assert follow.process.poll() is None, "the job still runs"
        await job.add(5)
        await job.end()
        ran = await asyncio.to_thread(follow.end)
    assert 0 == ran.code, ran.err
    text = content(out).decode()
    if style == "jsonl":
        assert urls(range(1025)) == of_lines(text)
    else:
        rows = csv.DictReader(io.StringIO(text, newline=""))
        assert urls(range(1025)) == Counter(row["url"] for row in rows)


def exists(path: Path) -> bool:
    return path.exists()


async def test_following_into_parquet_leaves_a_file_when_the_job_is_over(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    await job.add(20)
    arguments = ("export", JOB, "--follow", "--format", "parquet", "-o", str(out))
    with running(*arguments, *options) as follow:
        await until_true(lambda: list(out.parent.glob(f".{out.name}.*.tmp")), within_s=30)
        assert not exists(out), "half a Parquet file can be read by nobody"
        await job.add(1000)
        await job.end()
        ran = await asyncio.to_thread(follow.end)
    assert 0 == ran.code, ran.err
    assert urls(range(1020)) == Counter(parquet.read_table(out).column("url").to_pylist())


async def test_following_a_cancelled_job_waits_for_what_is_still_dropped(
    connected: Services, job: WrittenJob, options: list[str], out: Path
) -> None:
    frontier = connected.frontier(job.stored.job)
    await connected.client.commands(
        [("HINCRBY", job.keys(0).meta, name, 1) for name in ("discovered", "queued")]
    )
    await job.end(JobState.CANCELLED)
    await frontier.apply(ShardState.CANCELLED, fence=MasterFence(1, job.stored.revision))
    await job.add(1)
    with running("export", JOB, "--follow", "-o", str(out), *options) as follow:
        await until_true(at_least_lines(out, 1), within_s=30)
        await job.add(1)
        await until_true(at_least_lines(out, 2), within_s=30)
        assert follow.process.poll() is None
        await connected.client.commands([("HINCRBY", job.keys(0).meta, "queued", -1)])
        assert 0 == (await asyncio.to_thread(follow.end)).code


async def test_ctrl_c_ends_following_with_whole_lines(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    await job.add(700)
    with running("export", JOB, "--follow", "-o", str(out), *options) as follow:
        await until_true(at_least_lines(out, 700), within_s=30)
        follow.process.send_signal(signal.SIGINT)
        ran = await asyncio.to_thread(follow.end)
    assert (130, "") == (ran.code, ran.out)
    assert urls(range(700)) == of_lines(content(out).decode())


async def test_following_to_standard_output_is_seen_at_once(
    job: WrittenJob, options: list[str]
) -> None:
    await job.add(1)
    with running("export", JOB, "--follow", *options) as follow:
        assert follow.process.stdout is not None
        line = await asyncio.to_thread(follow.process.stdout.readline)
        assert msgspec.json.encode(record(0)).decode() + "\n" == line
        await job.end()
        assert 0 == (await asyncio.to_thread(follow.end)).code
