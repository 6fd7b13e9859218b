"""Submitting and changing jobs on real servers, where no master takes them away."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator

import pytest

from common.model.errors import NotFoundError, RefusedError
from common.model.ids import checked_name
from common.model.job import Job, JobSpec, JobState
from common.runtime.clock import utc_now
from common.runtime.settings import Settings
from crawlctl import transitions
from crawlctl.connect import Services, services
from crawlctl.submission import add, new_job_id, submit
from crawlctl.transitions import change
from tests.support.cli import crawlctl
from tests.support.servers import EtcdServer, RedisServer

SPEC = JobSpec(shards=2)


@pytest.fixture
async def connected(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str
) -> AsyncIterator[Services]:
    settings = Settings(
        etcd_endpoints=(etcd_server.endpoint,), redis_urls=(redis_server.url,), cluster=cluster_name
    )
    async with services(settings) as opened:
        yield opened


def spool(count: int) -> io.BytesIO:
    return io.BytesIO(b"".join(b"http://h.example/%d\n" % number for number in range(count)))


class _DiedError(Exception):
    """The client died here."""


class _DiesHalfway(io.BytesIO):
    """A spool that can be read for one request and a bit."""

    def __init__(self, count: int) -> None:
        super().__init__(spool(count).getvalue())
        self._left = 2700

    def __next__(self) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _DiedError
        return super().__next__()


async def submitted(
    connected: Services,
    *,
    seeds: int = 3,
    spec: JobSpec = SPEC,
    paused: bool = False,
    digest: str = "abc",
) -> JobState:
    stored = await submit(
        connected,
        job_id="j",
        spec=spec,
        spool=spool(seeds),
        seeds=seeds,
        seeds_sha256=digest,
        paused=paused,
    )
    assert stored.job.seeds == seeds
    return stored.job.state


async def staged_urls(connected: Services) -> list[str]:
    stored = await connected.coord.jobs.get("j")
    assert stored is not None
    chunks = await connected.frontier(stored.job).staged(limit=100)
    return [url for _, urls in chunks for url in urls]


async def test_a_job_is_handed_over_with_all_its_seeds(connected: Services) -> None:
    assert await submitted(connected, seeds=1201) is JobState.PENDING
    urls = await staged_urls(connected)
    assert urls == [f"http://h.example/{number}" for number in range(1201)]


async def test_a_job_may_be_handed_over_paused(connected: Services) -> None:
    assert await submitted(connected, paused=True) is JobState.PAUSED
    job = await change(connected, "j", transitions.resumed)
    assert job.state is JobState.PENDING


async def test_a_submission_that_died_is_completed_by_the_same_command(
    connected: Services,
) -> None:
    with pytest.raises(_DiedError):
        await submit(
            connected,
            job_id="j",
            spec=SPEC,
            spool=_DiesHalfway(3201),
            seeds=3201,
            seeds_sha256="abc",
            paused=False,
        )
    stored = await connected.coord.jobs.get("j")
    assert stored is not None
    assert stored.job.seeds == -1
    assert len(await staged_urls(connected)) == 2000
    with pytest.raises(RefusedError, match="other seeds"):
        await submitted(connected, seeds=3201, digest="def")
    await submitted(connected, seeds=3201)
    assert len(await staged_urls(connected)) == 3201


async def test_the_same_id_and_spec_is_the_same_job_whatever_became_of_it(
    connected: Services,
) -> None:
    await submitted(connected)
    await change(connected, "j", transitions.cancelled)
    assert await submitted(connected) is JobState.CANCELLED


@pytest.mark.parametrize(
    ("spec", "seeds", "field"), [(JobSpec(shards=3), 3, "--shards"), (SPEC, 4, "--seeds")]
)
async def test_the_same_id_with_another_spec_is_refused_naming_the_field(
    connected: Services, spec: JobSpec, seeds: int, field: str
) -> None:
    await submitted(connected)
    with pytest.raises(RefusedError, match=field):
        await submitted(connected, spec=spec, seeds=seeds)


async def test_the_same_id_with_as_many_other_seeds_is_refused(connected: Services) -> None:
    await submitted(connected)
    with pytest.raises(RefusedError, match="'j' exists with other seeds"):
        await submitted(connected, digest="def")
    await submitted(connected)


async def test_the_id_of_a_deleted_job_is_refused(connected: Services) -> None:
    await submitted(connected)
    stored = await connected.coord.jobs.get("j")
    assert stored is not None
    await connected.coord.jobs.delete("j", expected=stored.revision)
    with pytest.raises(RefusedError, match="never used twice"):
        await submitted(connected)


async def test_a_pause_during_staging_is_kept(connected: Services) -> None:
    """A state that others set between creation and hand-over is not undone by the hand-over."""
    being_staged = Job(id="j", spec=SPEC, state=JobState.PENDING, seeds=-1, created_at=utc_now())
    await connected.coord.jobs.create(being_staged)
    await change(connected, "j", transitions.paused)
    assert await submitted(connected) is JobState.PAUSED
    assert len(await staged_urls(connected)) == 3


async def test_pause_resume_and_cancel_follow_the_states(connected: Services) -> None:
    await submitted(connected)
    assert (await change(connected, "j", transitions.resumed)).state is JobState.PENDING
    assert (await change(connected, "j", transitions.paused)).state is JobState.PAUSED
    assert (await change(connected, "j", transitions.paused)).state is JobState.PAUSED
    ended = await change(connected, "j", transitions.cancelled)
    assert ended.state is JobState.CANCELLED
    assert ended.finished_at is not None
    for decide in (transitions.paused, transitions.resumed, transitions.cancelled):
        with pytest.raises(RefusedError, match="cancelled"):
            await change(connected, "j", decide)
    with pytest.raises(NotFoundError, match="'other'"):
        await change(connected, "other", transitions.paused)


async def test_of_changes_at_once_each_is_decided_on_what_the_others_left(
    connected: Services,
) -> None:
    await submitted(connected)
    decisions = [transitions.paused, transitions.resumed, transitions.cancelled] * 3
    answers = await asyncio.gather(
        *(change(connected, "j", decide) for decide in decisions), return_exceptions=True
    )
    cancelled = [one for one in answers if isinstance(one, Job) and one.state is JobState.CANCELLED]
    assert len(cancelled) == 1
    assert all(isinstance(one, Job | RefusedError) for one in answers)
    stored = await connected.coord.jobs.get("j")
    assert stored is not None
    assert stored.job == cancelled[0]


def test_new_ids_are_distinct_and_valid_names() -> None:
    ids = [new_job_id() for _ in range(200)]
    assert len(set(ids)) == 200
    assert [checked_name(one, field="--id") for one in ids] == ids


async def test_added_seeds_are_staged_under_numbers_of_their_own(connected: Services) -> None:
    """A chunk is deleted by its number: a number used twice would lose the second one."""
    await submitted(connected, seeds=501)
    stored = await connected.coord.jobs.get("j")
    assert stored is not None
    frontier = connected.frontier(stored.job)
    more = io.BytesIO(b"http://more.example/\n")
    assert (await add(connected, "j", spool=more, seeds=1)).chunks == 3
    assert (await add(connected, "j", spool=spool(501), seeds=501)).added == 502
    assert [0, 1, 2, 3, 4] == [number for number, _ in await frontier.staged(limit=100)]
    assert (await frontier.staged(limit=100))[2][1] == ["http://more.example/"]
    # The same submission again is still the same job.
    assert await submitted(connected, seeds=501) is JobState.PENDING


async def test_seeds_are_refused_by_a_job_that_ends_while_they_are_staged(
    connected: Services, etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str
) -> None:
    await submitted(connected)
    places = ("--etcd", etcd_server.endpoint, "--redis", redis_server.url)

    class CancelsHalfway(io.BytesIO):
        """The job is cancelled by another process while its first line is read."""

        def __next__(self) -> bytes:
            line = super().__next__()
            ran = crawlctl("job", "cancel", "j", *places, "--cluster", cluster_name)
            assert ran.code == 0, ran.err
            return line

    with pytest.raises(RefusedError, match="cancelled"):
        await add(connected, "j", spool=CancelsHalfway(b"http://a.example/\n"), seeds=1)
    with pytest.raises(RefusedError, match="cancelled"):
        await add(connected, "j", spool=spool(1), seeds=1)


async def test_nothing_is_added_before_the_submission_is_complete(connected: Services) -> None:
    being_staged = Job(id="j", spec=SPEC, state=JobState.PENDING, seeds=-1, created_at=utc_now())
    await connected.coord.jobs.create(being_staged)
    with pytest.raises(RefusedError, match="still being submitted"):
        await add(connected, "j", spool=spool(1), seeds=1)
