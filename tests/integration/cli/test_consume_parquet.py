"""``export --consume --format parquet``: each record in one of the parts, whatever ends it."""

from __future__ import annotations

import asyncio
import fcntl
import random
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from pyarrow import parquet

from common.frontier.results import ResultGroup
from common.model.errors import FrontierUnavailable
from crawlctl.connect import Services
from crawlctl.export.consumed_file import Source
from crawlctl.export.consumed_parts import ConsumedParts
from crawlctl.export.consuming import Consumer
from tests.support.cli import Ran, crawlctl, running
from tests.support.results import JOB, SHARDS, WrittenJob, record, urls
from tests.support.waiting import until_true

COMMAND = ("export", JOB, "--consume", "g", "--format", "parquet")


async def consume(options: list[str], *arguments: str) -> Ran:
    return await asyncio.to_thread(crawlctl, *COMMAND, *arguments, *options)


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def found_in(folder: Path) -> Counter[str]:
    """Return the URLs of the folder, as a reader of such folders sees it."""
    table = parquet.read_table(folder)
    assert sum(parquet.read_metadata(part).num_rows for part in parts(folder)) == table.num_rows
    return Counter(table.column("url").to_pylist())


async def test_each_run_adds_a_part_with_what_is_new(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    await job.add(40)
    ran = await consume(options, "-o", str(out))
    assert 0 == ran.code, ran.err
    assert "40 more records" in ran.err
    assert [0] * SHARDS == await job.lengths()
    assert 0 == (await consume(options, "-o", str(out))).code
    assert 1 == len(parts(out)), "nothing new makes no part"
    await job.add(7)
    assert 0 == (await consume(options, "-o", str(out))).code
    assert 2 == len(parts(out))
    assert urls(range(47)) == found_in(out)
    rows = {row["url"]: row for row in parquet.read_table(out).to_pylist()}
    for number in range(47):
        assert record(number).title == rows[record(number).url]["title"]
    parts(out)[0].unlink()  # moved away
    await job.add(1)
    assert 0 == (await consume(options, "-o", str(out))).code
    assert ["part-000002.parquet", "part-000003.parquet"] == [part.name for part in parts(out)]


async def test_killed_at_any_moment_the_parts_lose_and_double_nothing(
    job: WrittenJob, options: list[str], out: Path
) -> None:
    chance = random.Random(0)
    for _ in range(3):
        before = len(parts(out))
        # More than are made final at once, so that a part is there before the time is over.
        await job.add(11_000)
        with running(*COMMAND, "--follow", "-o", str(out), *options) as follow:
            await until_true(lambda before=before: len(parts(out)) > before, within_s=60)  # type: ignore[misc]
            await asyncio.sleep(chance.uniform(0, 0.1))
            follow.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(follow.end)
    with running(*COMMAND, "--follow", "-o", str(out), *options) as follow:
        await job.add(30)
        await job.end()
        ran = await asyncio.to_thread(follow.end)
    assert 0 == ran.code, ran.err
    assert urls(range(job.count)) == found_in(out)
    assert [0] * SHARDS == await job.lengths()


def opened(folder: Path, cluster: str) -> ConsumedParts:
    return ConsumedParts(folder, Source(cluster=cluster, job=JOB, group="g", style="parquet"))


@pytest.mark.parametrize("moment", ["taken", "written", "counted", "named"])
async def test_what_was_under_way_when_it_died_is_in_the_parts_once(
    connected: Services, job: WrittenJob, out: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise FrontierUnavailable(moment)

    async def dies_later(*_: object) -> None:
        raise FrontierUnavailable(moment)

    await job.add(30)
    with closing(opened(out, connected.cluster)) as kept, monkeypatch.context() as patched:
        match moment:
            case "taken":
                patched.setattr(kept, "save", dies)
            case "written":
                patched.setattr(kept, "_save_checkpoint", dies)
            case "counted":
                patched.setattr(kept, "_name_counted_part", dies)
            case "named":
                patched.setattr(ResultGroup, "acknowledge", dies_later)
        with pytest.raises(FrontierUnavailable):
            await Consumer(connected, JOB, group="g", target=kept).run(follow=False)
    assert (1 if moment == "named" else 0) == len(parts(out))
    await job.add(7)
    with closing(opened(out, connected.cluster)) as kept:
        await Consumer(connected, JOB, group="g", target=kept).run(follow=False)
    assert urls(range(37)) == found_in(out)
    assert 0 == sum(await job.lengths())
    assert not list(out.glob("_part-*"))  # noqa: ASYNC240


async def test_folders_of_others_are_refused(
    job: WrittenJob, options: list[str], tmp_path: Path
) -> None:
    await job.add(3)
    (tmp_path / "file").touch()
    assert 2 == (await consume(options, "-o", str(tmp_path / "file"))).code
    assert 4 == (await consume(options, "-o", str(tmp_path))).code
    ours = tmp_path / "ours"
    assert 0 == (await consume(options, "-o", str(ours))).code
    other = await asyncio.to_thread(
        crawlctl, "export", JOB, "--consume", "h", "--format", "parquet", "-o", str(ours), *options
    )
    assert (4, True) == (other.code, "group g" in other.err)
    with running(*COMMAND, "--follow", "-o", str(ours), *options) as follow:
        await until_true(lambda: _is_locked(ours), within_s=30)
        assert 4 == (await consume(options, "-o", str(ours))).code
        follow.interrupt()
        assert 130 == (await asyncio.to_thread(follow.end)).code


def _is_locked(folder: Path) -> bool:
    with (folder / "_lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
