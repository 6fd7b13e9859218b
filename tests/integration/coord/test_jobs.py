"""Jobs in a real etcd: changed by compare-and-swap, their ids never used again."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from common.coord import Coord, Exists, Reused, Stale, StoredJob
from common.coord.wire import Put
from common.model.errors import NotMaster
from common.model.ids import NodeId, Revision
from common.model.job import Job, JobSpec, JobState
from tests.integration.coord.conftest import OpenSession


def job_named(job_id: str, *, created_at: str = "2026-01-01T00:00:00.000Z") -> Job:
    return Job(id=job_id, spec=JobSpec(), state=JobState.PENDING, created_at=created_at)


def in_state(job: Job, state: JobState) -> Job:
    return msgspec.structs.replace(job, state=state)


async def created(coord: Coord, job: Job) -> StoredJob:
    stored = await coord.jobs.create(job)
    assert isinstance(stored, StoredJob)
    return stored


async def test_a_job_is_read_back_as_it_was_stored(coord: Coord) -> None:
    stored = await created(coord, job_named("j"))
    assert await coord.jobs.get("j") == stored
    assert await coord.jobs.get("other") is None


async def test_an_id_is_taken_by_the_first(coord: Coord) -> None:
    first = await created(coord, job_named("j"))
    answers = await asyncio.gather(*(coord.jobs.create(job_named("j")) for _ in range(5)))
    assert answers == [Exists(first)] * 5


async def test_a_change_decided_on_an_old_revision_is_stale(coord: Coord) -> None:
    stored = await created(coord, job_named("j"))
    running = await coord.jobs.replace(
        in_state(stored.job, JobState.RUNNING), expected=stored.revision
    )
    assert isinstance(running, StoredJob)
    assert running.revision > stored.revision
    late = await coord.jobs.replace(in_state(stored.job, JobState.PAUSED), expected=stored.revision)
    assert late == Stale(running)
    assert await coord.jobs.get("j") == running


async def test_a_masters_change_needs_both_its_term_and_the_revision(
    coord: Coord, session_on: OpenSession
) -> None:
    term = await coord.election.campaign(await session_on(coord.etcd), node=NodeId("m"))
    stored = await created(coord, job_named("j"))
    running = in_state(stored.job, JobState.RUNNING)
    changed = await coord.jobs.replace(running, expected=stored.revision, term=term)
    assert isinstance(changed, StoredJob)
    again = await coord.jobs.replace(running, expected=stored.revision, term=term)
    assert again == Stale(changed)
    await coord.election.resign(term)
    with pytest.raises(NotMaster):
        await coord.jobs.replace(running, expected=changed.revision, term=term)
    assert await coord.jobs.get("j") == changed


async def test_a_deleted_jobs_id_is_never_used_again(coord: Coord) -> None:
    stored = await created(coord, job_named("j"))
    assert not await coord.jobs.delete("j", expected=Revision(stored.revision - 1))
    assert await coord.jobs.delete("j", expected=stored.revision)
    assert not await coord.jobs.delete("j", expected=stored.revision)
    assert await coord.jobs.get("j") is None
    assert await coord.jobs.list() == []
    assert await coord.jobs.create(job_named("j")) == Reused()
    assert await coord.jobs.replace(stored.job, expected=stored.revision) == Stale(None)


async def test_jobs_are_listed_by_creation_and_one_unreadable_hides_no_other(
    coord: Coord,
) -> None:
    for job_id, day in (("c", 1), ("a", 3), ("b", 2)):
        await created(coord, job_named(job_id, created_at=f"2026-01-0{day}T00:00:00.000Z"))
    newer = Put(coord.keys.job("z"), b'{"id": "z", "spec": {"from_the_future": 1}}')
    await coord.etcd.txn(compare=(), success=[newer])
    assert [stored.job.id for stored in await coord.jobs.list()] == ["c", "b", "a"]
