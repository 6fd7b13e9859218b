"""``export --consume``: each record once into the file, whatever ends the command."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import select
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from common.frontier.results import ResultGroup
from common.model.errors import FrontierUnavailable
from crawlctl.connect import Services
from crawlctl.export.consumed_file import ConsumedFile, Source
from crawlctl.export.consuming import ConsumedOutput, Consumer
from crawlctl.export.formats import CSV, JSONL
from tests.support.cli import Ran, at_least_lines, crawlctl, environment, running
from tests.support.results import JOB, SHARDS, WrittenJob, urls
from tests.support.waiting import until_true

COMMAND = ("export", JOB, "--consume", "g")


async def consume(options: list[str], *arguments: str, group: str = "g") -> Ran:
    return await asyncio.to_thread(
        crawlctl, "export", JOB, "--consume", group, *arguments, *options
    )


def of_lines(text: str) -> Counter[str]:
    return Counter(json.loads(line)["url"] for line in text.splitlines())


def found_in(path: Path) -> Counter[str]:
    return of_lines(path.read_text())


def opened(path: Path, cluster: str, *, style: str = "jsonl") -> ConsumedFile:
    source = Source(cluster=cluster, job=JOB, group="g", style=style)
    return ConsumedFile(path, source, CSV if style == "csv" else JSONL)


async def test_each_run_brings_what_is_new_and_what_was_read_is_trimmed(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    await job.add(1600)
    ran = await consume(options, "-o", str(out))
    assert 0 == ran.code, ran.err
    assert "1600 more records" in ran.err
    assert [0] * SHARDS == await job.lengths()
    await job.add(50)
    assert 0 == (await consume(options, "-o", str(out))).code
    assert "0 more records" in (await consume(options, "-o", str(out))).err
    assert urls(range(1650)) == found_in(out)
    await job.add(5)
    plain = await asyncio.to_thread(crawlctl, "export", JOB, *options)
    assert urls(range(1650, 1655)) == of_lines(plain.out)
    assert "not in this export: 1650 earlier records" in plain.err
    # What may be the only copy of the trimmed ones is not replaced by fewer.
    refused = await asyncio.to_thread(crawlctl, "export", JOB, "-o", str(out), *options)
    assert 4 == refused.code
    assert "1650 records of the job have been trimmed" in refused.err
    assert urls(range(1650)) == found_in(out)
    other = await asyncio.to_thread(crawlctl, "export", JOB, "-o", f"{out}.csv", *options)
    assert (0, True) == (other.code, "5 records (csv) in" in other.err), other.err


def wait_until_full(pipe: int) -> None:
    """Wait until nothing more comes into a pipe."""
    held, since = -1, 0.0
    while time.monotonic() - since < 0.5:
        answer = fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4)
        now_held = int.from_bytes(answer, sys.byteorder)
        if now_held != held:
            held, since = now_held, time.monotonic()
        time.sleep(0.02)


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_what_a_reader_that_left_had_no_part_of_is_not_trimmed(
    job: WrittenJob, options: list[str], unbuffered: str
) -> None:
    """Without a buffer, which containers like to switch off, a write that is cut fails silently."""
    await job.add(150)  # the last of three writes is more than the pipe holds

    def reader_leaves() -> tuple[int, int]:
        with subprocess.Popen(
            [sys.executable, "-m", "crawlctl", *COMMAND, *options],
            stdout=subprocess.PIPE,
            env=environment(PYTHONUNBUFFERED=unbuffered),
        ) as process:
            assert process.stdout is not None
            poll = select.poll()
            poll.register(process.stdout, select.POLLIN)
            assert poll.poll(60_000)
            wait_until_full(process.stdout.fileno())
            held = len(os.read(process.stdout.fileno(), 100))
            process.stdout.close()
            return held, process.wait(60)

    assert (100, 1) == await asyncio.to_thread(reader_leaves)
    again = await consume(options)
    assert (0, urls(range(150))) == (again.code, of_lines(again.out))


async def test_records_stay_until_every_group_has_them(
    job: WrittenJob, options: list[str], tmp_path: Path
) -> None:
    await job.add(30)
    slow = tmp_path / "slow"
    assert 0 == (await consume(options, "-o", str(slow), group="slow")).code
    await job.add(12)
    ran = await consume(options, "-o", str(tmp_path / "fast"), group="fast")
    assert "begins behind 30 records" in ran.err
    assert 12 == sum(await job.lengths()), "slow has not read these"
    assert 0 == (await consume(options, "-o", str(slow), group="slow")).code
    assert 0 == sum(await job.lengths())
    assert urls(range(42)) == found_in(slow)
    assert urls(range(30, 42)) == found_in(tmp_path / "fast")


async def test_csv_has_one_head_over_all_runs(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    for _ in range(2):
        await job.add(4)
        assert 0 == (await consume(options, "--format", "csv", "-o", str(out))).code
    heads = [line for line in out.read_text().splitlines() if line.startswith("url,")]  # noqa: ASYNC240
    assert 1 == len(heads)


async def test_following_as_a_group_ends_with_the_job(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    with running(*COMMAND, "--follow", "-o", str(out), *options) as follow:
        await job.add(40)
        await until_true(at_least_lines(out, 40), within_s=30)
        await job.add(3)
        await job.end()
        ran = await asyncio.to_thread(follow.end)
    assert 0 == ran.code, ran.err
    assert urls(range(43)) == found_in(out)
    assert 0 == sum(await job.lengths())


@pytest.mark.parametrize("seed", range(2))
async def test_killed_at_any_moment_a_file_loses_and_doubles_nothing(
    job: WrittenJob, options: list[str], out: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        with running(*COMMAND, "--follow", "-o", str(out), *options) as follow:
            before = await _size(out)
            await job.add(900)
            await until_true(lambda before=before: _has_grown(out, before), within_s=30)  # type: ignore[misc]
            for _ in range(chance.randrange(4)):
                await job.add(300)
                await asyncio.sleep(chance.uniform(0, 0.05))
            follow.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(follow.end)
    assert 0 == (await consume(options, "-o", str(out))).code
    assert urls(range(job.count)) == found_in(out)
    assert 0 == sum(await job.lengths())


async def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0  # noqa: ASYNC240


def _has_grown(path: Path, before: int) -> bool:
    return path.exists() and path.stat().st_size > before


@pytest.mark.parametrize("moment", ["given", "written", "saved"])
async def test_what_was_under_way_when_it_died_is_in_the_file_once(
    connected: Services, job: WrittenJob, out: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise FrontierUnavailable(moment)

    async def dies_later(*_: object) -> None:
        raise FrontierUnavailable(moment)

    await job.add(30)
    with closing(opened(out, connected.cluster)) as file, monkeypatch.context() as patched:
        if moment == "given":
            patched.setattr(file, "write", dies)
        elif moment == "written":
            patched.setattr(file, "save", dies)
        else:
            patched.setattr(ResultGroup, "acknowledge", dies_later)
        with pytest.raises(FrontierUnavailable):
            await Consumer(connected, JOB, group="g", target=file).run(follow=False)
    await job.add(7)
    with closing(opened(out, connected.cluster)) as file:
        await Consumer(connected, JOB, group="g", target=file).run(follow=False)
    assert urls(range(37)) == found_in(out)
    assert 0 == sum(await job.lengths())


async def test_a_lost_reply_is_recovered_by_the_same_process(
    connected: Services, job: WrittenJob, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gave records, the answer never came: they are pending below what comes next."""
    await job.add(30)
    await job.end()
    taken = ResultGroup.new
    lost = 0

    async def loses(group: ResultGroup, shard: int, *, count: int) -> list[object]:
        nonlocal lost
        given = await taken(group, shard, count=min(count, 4))
        if lost < 3:
            lost += 1
            raise FrontierUnavailable("lost")
        return list(given)

    monkeypatch.setattr(ResultGroup, "new", loses)
    with closing(opened(out, connected.cluster)) as file:
        for _ in range(3):  # each takes at most four of a shard
            await Consumer(connected, JOB, group="g", target=file).run(follow=True)
    assert urls(range(30)) == found_in(out)


async def test_standard_output_gets_unacknowledged_records_again(
    connected: Services, job: WrittenJob, options: list[str]
) -> None:
    await job.add(10)
    killed = ResultGroup(
        connected.client, cluster=connected.cluster, job=JOB, shards=SHARDS, group="g",
        reader=ConsumedOutput.reader,
    )  # fmt: skip
    await killed.enrol()
    assert 3 == len(await killed.new(0, count=3)), "written perhaps, and not acknowledged"
    assert urls(range(10)) == of_lines((await consume(options)).out)
    await job.add(2)
    assert urls(range(10, 12)) == of_lines((await consume(options)).out)


async def test_records_given_to_another_file_are_spoken_of(
    connected: Services, job: WrittenJob, options: list[str], out: Path
) -> None:
    await job.add(9)
    other = ResultGroup(
        connected.client, cluster=connected.cluster, job=JOB, shards=SHARDS, group="g",
        reader="elsewhere:/data/part1",
    )  # fmt: skip
    await other.enrol()
    await other.new(0, count=2)
    ran = await consume(options, "-o", str(out))
    assert 7 == found_in(out).total()
    assert "of group g, elsewhere:/data/part1 (host:file) was given 2 records" in ran.err


async def test_a_file_moved_away_is_begun_anew(
    job: WrittenJob, options: list[str], out: Path, tmp_path: Path
) -> None:
    await job.add(6)
    assert 0 == (await consume(options, "-o", str(out))).code
    out.rename(tmp_path / "first")  # noqa: ASYNC240
    await job.add(6)
    assert 0 == (await consume(options, "-o", str(out))).code
    assert urls(range(6)) == found_in(tmp_path / "first")
    assert urls(range(6, 12)) == found_in(out)


async def test_files_of_others_are_refused(
    connected: Services, job: WrittenJob, options: list[str], out: Path, tmp_path: Path
) -> None:
    await job.add(3)
    foreign = tmp_path / "foreign"
    foreign.write_text("mine\n")
    ran = await consume(options, "-o", str(foreign))
    assert 4 == ran.code
    assert "was not written by export --consume" in ran.err
    assert "mine\n" == foreign.read_text()
    assert 0 == (await consume(options, "-o", str(out))).code
    ran = await consume(options, "-o", str(out), group="other")
    assert 4 == ran.code
    assert "group g" in ran.err
    with closing(opened(out, connected.cluster)):
        ran = await consume(options, "-o", str(out))
    assert 4 == ran.code
    assert "in use" in ran.err
    assert urls(range(3)) == found_in(out)
