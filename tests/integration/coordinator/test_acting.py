"""Single steps against real servers: refused when decided on an older state, harmless repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from common.coord import Session
from common.frontier import MasterFence, ShardState
from common.model.errors import FrontierUnavailable, NotMaster
from common.model.ids import JobId, NodeId, Revision, Term
from common.model.job import JobState
from coordinator.act import Actor
from coordinator.facts import Observation
from coordinator.observe import Entry, NodeRoll, Observer
from coordinator.plan import ApplyState, Finish, OfferSeeds, Publish, Rewrite, plan
from tests.integration.coordinator.rig import LEASE_TTL_S, Rig
from tests.support.servers import EtcdServer, RedisServer

JOB = JobId("job")


class Hands(NamedTuple):
    """A master taken apart: looks and acts when the test says so."""

    rig: Rig
    term: Term
    observer: Observer
    actor: Actor

    @property
    def entry(self) -> Entry:
        return self.observer.entries[JOB]

    async def look(self) -> Observation:
        jobs = await self.rig.coord.etcd.get_prefix(self.rig.coord.keys.jobs)
        self.observer.take_jobs(jobs.items)
        for entry in self.observer.entries.values():
            entry.due_at_s = 0.0
        await self.observer.look()
        return self.observer.observation()

    async def cycle(self) -> list[str]:
        actions = plan(await self.look())
        for entry in self.observer.entries.values():
            entry.remember_pass()
        return await self.actor.perform(actions)

    async def cycle_until_running(self) -> None:
        for _ in range(6):
            await self.cycle()
        assert self.entry.stored.job.state is JobState.RUNNING
        assert await self.rig.shard_states() == {"open"}


@asynccontextmanager
async def hands_on(rig: Rig) -> AsyncIterator[Hands]:
    session = await Session.open(rig.coord.etcd, ttl_s=LEASE_TTL_S)
    term = await rig.coord.election.campaign(session, node=NodeId("hands"))
    observer = Observer(
        rig.coord, rig.client, cluster=rig.settings.cluster, term=term, roll=NodeRoll()
    )
    jobs = await rig.coord.etcd.get_prefix(rig.coord.keys.jobs)
    await observer.begin(jobs.items)
    yield Hands(rig, term, observer, Actor(rig.coord, session, observer, term=term))
    await session.close()


@pytest.fixture
async def hands(rig: Rig) -> AsyncIterator[Hands]:
    async with hands_on(rig) as hands:
        yield hands


async def test_a_job_paused_after_the_passes_is_not_finished_and_its_seals_are_undone(
    rig: Rig, hands: Hands
) -> None:
    await rig.submit([])
    stored = await rig.change("job", keep_open=True)
    await hands.cycle_until_running()
    await rig.change("job", keep_open=False)
    await hands.cycle()  # the new revision raises the fence
    await hands.cycle()  # the first pass
    (finish,) = plan(await hands.look())
    assert isinstance(finish, Finish)

    await rig.change("job", state=JobState.PAUSED)
    await hands.actor.perform([finish])
    assert (await rig.job()).job.state is JobState.PAUSED
    assert await rig.shard_states() == {"sealed"}

    await hands.cycle()
    assert await rig.shard_states() == {"paused"}
    await rig.change("job", state=JobState.RUNNING)
    for _ in range(4):
        await hands.cycle()
    assert (await rig.job()).job.state is JobState.FINISHED
    assert stored.job.started_at is None


async def test_seeds_that_come_after_the_passes_keep_a_job_from_being_finished(
    rig: Rig, hands: Hands
) -> None:
    await rig.submit([], keep_open=True)
    await hands.cycle_until_running()
    await rig.change("job", keep_open=False)
    await hands.cycle()
    await hands.cycle()
    (finish,) = plan(await hands.look())
    spec = hands.entry.stored.job.spec
    await rig.frontier("job", spec).stage(0, ["http://late.test/"])
    await hands.actor.perform([finish])
    assert (await rig.job()).job.state is JobState.RUNNING
    await hands.cycle()
    await hands.cycle()
    assert (await rig.counters())["queued"] == 1


async def test_a_write_in_doubt_moves_the_jobs_revision_and_the_fence(
    rig: Rig, hands: Hands
) -> None:
    await rig.submit([], keep_open=True)
    await hands.cycle_until_running()
    before = hands.entry.stored.revision
    hands.entry.memory = replace(hands.entry.memory, doubtful=before)
    actions = plan(await hands.look())
    assert actions == [Rewrite(job=JOB, revision=before)]
    await hands.actor.perform(actions)
    assert hands.entry.stored.revision > before
    await hands.cycle()
    frontier = rig.frontier("job", hands.entry.stored.job.spec)
    late = await frontier.grant(0, 5, fence=MasterFence(hands.term, before))
    assert late == "STALE"


async def test_a_script_without_an_answer_is_shut_out_before_anything_else_is_decided(
    etcd_server: EtcdServer, own_redis: RedisServer, cluster_name: str
) -> None:
    async with (
        Rig.open(etcd_server.endpoint, own_redis.url, cluster=cluster_name) as rig,
        hands_on(rig) as hands,
    ):
        await rig.submit([], keep_open=True)
        await hands.cycle_until_running()
        before = hands.entry.stored.revision
        step = ApplyState(job=JOB, revision=before, state="open")
        await asyncio.to_thread(own_redis.kill)
        with pytest.raises(FrontierUnavailable):
            await hands.actor.perform([step])
        await asyncio.to_thread(own_redis.restart)

        assert [type(action) for action in plan(await hands.look())] == [Rewrite]
        await hands.cycle()
        await hands.cycle()
        frontier = rig.frontier("job", hands.entry.stored.job.spec)
        late = await frontier.apply(ShardState.OPEN, fence=MasterFence(hands.term, before))
        assert set(late) == {"STALE"}
        assert plan(await hands.look()) == []


async def test_steps_decided_at_an_older_revision_are_left_out(rig: Rig, hands: Hands) -> None:
    await rig.submit([], keep_open=True)
    await hands.cycle_until_running()
    old = Revision(hands.entry.stored.revision - 1)
    steps = [
        ApplyState(job=JOB, revision=old, state="closed"),
        OfferSeeds(job=JOB, revision=old),
        Finish(job=JOB, revision=old),
    ]
    assert await hands.actor.perform(steps) == []
    assert await rig.shard_states() == {"open"}


async def test_a_shard_that_has_seen_a_newer_term_ends_the_term(rig: Rig, hands: Hands) -> None:
    await rig.submit([], keep_open=True)
    await hands.cycle_until_running()
    newer = await Session.open(rig.coord.etcd, ttl_s=LEASE_TTL_S)
    await rig.coord.election.resign(hands.term)
    term = await rig.coord.election.campaign(newer, node=NodeId("newer"))
    frontier = rig.frontier("job", hands.entry.stored.job.spec)
    revision = hands.entry.stored.revision
    await frontier.apply(ShardState.OPEN, fence=MasterFence(term, revision))

    step = ApplyState(job=JOB, revision=revision, state="closed")
    with pytest.raises(NotMaster):
        await hands.actor.perform([step])
    assert await rig.shard_states() == {"open"}
    await newer.close()


async def test_a_shard_ahead_of_etcd_is_reported_and_left_alone(rig: Rig, hands: Hands) -> None:
    """As after a restore of etcd from a snapshot."""
    await rig.submit([], keep_open=True)
    await hands.cycle_until_running()
    frontier = rig.frontier("job", hands.entry.stored.job.spec)
    ahead = MasterFence(0, hands.entry.stored.revision + 1000)
    await frontier.apply(ShardState.OPEN, fence=ahead)
    step = ApplyState(job=JOB, revision=hands.entry.stored.revision, state="paused")
    with capture_logs() as logs:
        await hands.actor.perform([step])
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["job.refused"]
    assert hands.entry.due_at_s > 0


async def test_a_publication_of_a_former_term_is_refused(rig: Rig, hands: Hands) -> None:
    (publish,) = plan(hands.observer.observation())
    assert isinstance(publish, Publish)
    await hands.actor.perform([publish])
    await rig.coord.election.resign(hands.term)
    with pytest.raises(NotMaster):
        await hands.actor.perform([publish])


async def test_deleted_jobs_are_forgotten(rig: Rig, hands: Hands) -> None:
    await rig.submit([], keep_open=True)
    await hands.cycle_until_running()
    revision = (await rig.job()).revision
    assert await rig.coord.jobs.delete(JOB, expected=revision)
    await hands.look()
    assert hands.observer.entries == {}


async def test_a_job_of_another_version_is_skipped_and_reported_once(
    rig: Rig, hands: Hands
) -> None:
    await rig.submit([])
    await rig.change("job", version=99)
    with capture_logs() as logs:
        await hands.look()
        await hands.look()
    assert [entry["event"] for entry in logs] == ["job.skipped"]
    assert hands.observer.entries == {}
