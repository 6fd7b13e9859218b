"""From pending to a final state, with a real etcd, a real Redis and a scripted worker."""

from __future__ import annotations

import asyncio

import pytest

from common.frontier import MasterFence
from common.model import counters
from common.model.job import JobState
from tests.integration.coordinator.rig import Rig
from tests.support.waiting import until, until_true

SITE = {
    "http://a.test/": ["http://a.test/1", "http://b.test/"],
    "http://b.test/": ["http://b.test/2", "http://a.test/"],
    "http://b.test/2": ["http://c.test/x"],
}
PAGES = {
    "http://a.test/",
    "http://a.test/1",
    "http://b.test/",
    "http://b.test/2",
    "http://c.test/x",
}


async def test_a_job_runs_from_pending_to_finished(rig: Rig) -> None:
    rig.master()
    worker = await rig.worker(SITE)
    await rig.submit(["http://a.test/"])

    finished = (await rig.until_state(JobState.FINISHED)).job

    assert sorted(worker.fetched) == sorted(PAGES)
    assert finished.started_at is not None
    assert finished.finished_at is not None
    assert finished.finished_at >= finished.started_at
    counted = await rig.counters()
    assert counted["fetched"] == counted["discovered"] == len(PAGES)
    await rig.until_shards("closed")
    await until_true(lambda: not worker.owned)


async def test_a_job_waits_as_pending_while_its_client_is_still_parking_seeds(rig: Rig) -> None:
    rig.master()
    worker = await rig.worker(SITE)
    await rig.submit(["http://a.test/"], job="half", hand_over=False)
    await rig.submit(["http://c.test/x"], job="whole")
    await rig.until_state(JobState.FINISHED, job="whole")

    assert (await rig.job("half")).job.state is JobState.PENDING
    assert worker.fetched == ["http://c.test/x"]
    await rig.change("half", seeds=1)
    await rig.until_state(JobState.FINISHED, job="half")


async def test_a_job_in_flight_is_never_finished(rig: Rig) -> None:
    """One slow page links to more; meanwhile every queue is empty."""
    rig.master()
    worker = await rig.worker(SITE)
    worker.gate.clear()
    await rig.submit(["http://a.test/"])
    await rig.until_state(JobState.RUNNING)

    async def is_in_flight() -> bool:
        return (await rig.counters())["in_flight"] == 1

    await until(is_in_flight)
    await asyncio.sleep(1.0)  # four looks of a master that believes the end is near
    assert (await rig.job()).job.state is JobState.RUNNING
    worker.gate.set()
    await rig.until_state(JobState.FINISHED)
    assert sorted(worker.fetched) == sorted(PAGES)


async def test_a_paused_job_stands_still_and_goes_on_when_resumed(rig: Rig) -> None:
    rig.master()
    worker = await rig.worker(SITE)
    await rig.submit(["http://a.test/"], state=JobState.PAUSED)

    async def is_seeded() -> bool:
        return (await rig.counters())["queued"] == 1

    await until(is_seeded)
    assert (await rig.job()).job.state is JobState.PAUSED
    assert worker.fetched == []

    worker.gate.clear()
    await rig.change("job", state=JobState.PENDING)
    await rig.until_state(JobState.RUNNING)
    await until_true(lambda: len(worker.owned) == 4)
    await rig.change("job", state=JobState.PAUSED)
    await rig.until_shards("paused")
    assert len(worker.owned) == 4
    worker.gate.set()

    await rig.change("job", state=JobState.RUNNING)
    await rig.until_state(JobState.FINISHED)
    assert sorted(worker.fetched) == sorted(PAGES)


async def test_a_cancelled_job_settles_everything_and_is_closed(rig: Rig) -> None:
    rig.master()
    worker = await rig.worker({})
    worker.gate.clear()
    await rig.submit([f"http://h{number}.test/" for number in range(40)])

    async def is_working() -> bool:
        return (await rig.counters())["in_flight"] > 0

    await until(is_working)
    await rig.change("job", state=JobState.CANCELLED)
    await rig.until_shards("cancelled")
    worker.gate.set()
    await rig.until_shards("closed")

    counted = await rig.counters()
    assert counters.is_balanced(counted)
    assert counted["queued"] == counted["delayed"] == counted["in_flight"] == 0
    assert counted["dropped"] > 0
    await until_true(lambda: not worker.owned)
    assert (await rig.job()).job.state is JobState.CANCELLED


async def test_a_job_cancelled_while_pending_is_closed_without_an_owner(rig: Rig) -> None:
    rig.master()
    await rig.submit([], state=JobState.PENDING, hand_over=False)
    await rig.until_shards("paused")
    await rig.change("job", state=JobState.CANCELLED)
    await rig.until_shards("closed")


async def test_a_job_kept_open_finishes_only_when_it_is_closed(rig: Rig) -> None:
    rig.master()
    worker = await rig.worker(SITE)
    await rig.submit(["http://a.test/"], keep_open=True)
    await until_true(lambda: len(worker.fetched) == len(PAGES))
    await asyncio.sleep(1.0)
    assert (await rig.job()).job.state is JobState.RUNNING
    await rig.change("job", keep_open=False)
    await rig.until_state(JobState.FINISHED)


async def test_seeds_added_to_a_running_job_are_fetched_too(rig: Rig) -> None:
    rig.master()
    worker = await rig.worker(SITE)
    worker.gate.clear()
    stored = await rig.submit(["http://a.test/"])
    await rig.until_state(JobState.RUNNING)
    await rig.frontier("job", stored.job.spec).stage(7, ["http://late.test/"])
    worker.gate.set()
    await rig.until_state(JobState.FINISHED)
    assert "http://late.test/" in worker.fetched


async def test_many_seeds_stream_in_chunks(rig: Rig) -> None:
    rig.master()
    seeds = [f"http://h{number}.test/" for number in range(5000)]
    stored = await rig.submit(seeds, chunk=100)
    frontier = rig.frontier("job", stored.job.spec)

    async def are_all_in() -> bool:
        return sum(one.staged for one in await frontier.stats()) == 0

    await until(are_all_in)
    counted = await rig.counters()
    assert counted["queued"] == counted["discovered"] == 5000


async def test_a_job_without_seeds_finishes_at_once(rig: Rig) -> None:
    rig.master()
    await rig.submit([])
    await rig.until_state(JobState.FINISHED)


@pytest.mark.parametrize("max_pages", [1, 3, 7])
async def test_a_page_budget_is_used_exactly_and_the_rest_is_dropped(
    rig: Rig, max_pages: int
) -> None:
    rig.master()
    worker = await rig.worker({})
    seeds = [f"http://h{number}.test/" for number in range(20)]
    await rig.submit(seeds, max_pages=max_pages, shards=8)
    await rig.until_state(JobState.FINISHED)
    counted = await rig.counters()
    assert counted["fetched"] == max_pages == len(worker.fetched)
    assert counted["dropped"] == 20 - max_pages


async def test_a_page_budget_larger_than_the_site_ends_by_completion(rig: Rig) -> None:
    rig.master()
    worker = await rig.worker(SITE)
    await rig.submit(["http://a.test/"], max_pages=1000)
    await rig.until_state(JobState.FINISHED)
    assert sorted(worker.fetched) == sorted(PAGES)
    assert (await rig.counters())["dropped"] == 0


async def test_a_job_whose_shards_are_deleted_is_damaged_and_not_recreated(rig: Rig) -> None:
    rig.master()
    worker = await rig.worker({})
    worker.gate.clear()
    stored = await rig.submit([f"http://h{number}.test/" for number in range(10)])

    async def is_working() -> bool:
        return (await rig.counters())["in_flight"] > 0

    await until(is_working)
    pattern = f"crawlctl:{rig.settings.cluster}:{{job:2}}:meta"
    assert await rig.client.commands([("DEL", pattern)]) == [1]

    damaged = (await rig.until_state(JobState.DAMAGED)).job
    assert damaged.reason is not None
    assert "shards gone from Redis: 1 of 4 " in damaged.reason

    async def is_closed() -> bool:
        return await rig.shard_states() == {"closed", "missing"}

    await until(is_closed)
    refusals = await rig.frontier("job", stored.job.spec).apply(
        (await rig.frontier("job", stored.job.spec).stats())[0].state,  # type: ignore[arg-type]
        fence=MasterFence(0, 1),
    )
    assert "STALE" in refusals


async def test_parked_seeds_that_are_lost_make_a_job_damaged(rig: Rig) -> None:
    stored = await rig.submit(["http://a.test/"])
    assert await rig.client.commands(
        [("DEL", f"crawlctl:{rig.settings.cluster}:{{job:0}}:staged")]
    ) == [1]
    rig.master()
    damaged = (await rig.until_state(JobState.DAMAGED)).job
    assert damaged.reason is not None
    assert "seeds" in damaged.reason
    assert stored.job.started_at is None
