"""States broken on purpose, on real servers: doctor finds each and names it, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from common.coord import Session
from common.coord.wire import Put
from common.frontier.keys import TaskKeys
from common.model.ids import JobId, NodeId, Task
from common.model.job import JobState
from crawlctl.diagnosis import examine, exit_code
from crawlctl.findings import Finding, Status
from tests.integration.coordinator.rig import Rig
from tests.support.servers import EtcdServer, RedisServer
from tests.support.waiting import until

SEEDS = [f"http://h{number}.test/" for number in range(12)]


@pytest.fixture
async def rig(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str
) -> AsyncIterator[Rig]:
    """A job of two shards in the middle of its work."""
    async with Rig.open(etcd_server.endpoint, redis_server.url, cluster=cluster_name) as rig:
        rig.master()
        worker = await rig.worker({})
        await rig.submit(SEEDS, shards=2, keep_open=True)

        async def are_fetched() -> bool:
            job = await rig.job()
            return (
                job.job.state is JobState.RUNNING
                and (await rig.counters())["fetched"] == len(SEEDS)
                and len(worker.owned) == 2
            )

        await until(are_fetched, within_s=30)
        yield rig


def keys(rig: Rig, shard: int = 0) -> TaskKeys:
    return TaskKeys(rig.settings.cluster, Task(JobId("job"), shard))


def troubles(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.status not in (Status.OK, Status.INFO)]


async def raise_fence(rig: Rig) -> None:
    await rig.client.commands([("HSET", keys(rig).meta, "fence", 2**50)])


async def alter_counter(rig: Rig) -> None:
    await rig.client.commands([("HINCRBY", keys(rig).meta, "discovered", 1)])


async def alter_both_sides(rig: Rig) -> None:
    """The equation holds, and is a lie."""
    await rig.client.commands(
        [
            ("HINCRBY", keys(rig).meta, "discovered", 1),
            ("HINCRBY", keys(rig).meta, "in_flight", 1),
        ]
    )


async def drop_record(rig: Rig) -> None:
    ((entry, *_), *_) = (
        await rig.client.commands([("XRANGE", keys(rig).results, "-", "+", "COUNT", 1)])
    )[0]
    await rig.client.commands([("XDEL", keys(rig).results, entry)])


async def lock_without_node(rig: Rig) -> None:
    key = rig.coord.keys.lock("tasks/job/1")
    await rig.coord.locks.release("tasks/job/1", await token(rig, 1))
    value = {"owner": "ghost", "nonce": "n", "acquired_at": "2026-01-01T00:00:00.000Z"}
    session = await Session.open(rig.coord.etcd, ttl_s=60)
    while True:
        put = Put(key, msgspec.json.encode(value), session.lease)
        reply = await rig.coord.etcd.txn(compare=[], success=[put])
        if reply.succeeded:
            return


async def token(rig: Rig, shard: int) -> int:
    locks = {lock.name: lock.token for lock in await rig.coord.locks.list()}
    return locks[f"tasks/job/{shard}"]


async def lose_shard(rig: Rig) -> None:
    await rig.masters[0].kill()  # which would note it at once
    await rig.client.commands([("DEL", keys(rig).meta)])


async def nobody_can(rig: Rig) -> None:
    await rig.submit([], job="stores", keep_open=True, shards=1, store="warc")
    await rig.until_state(JobState.RUNNING, job="stores")


@pytest.mark.parametrize(
    ("break_it", "check", "said"),
    [
        (raise_fence, "job job", "etcd has not reached"),
        (alter_counter, "job job", "accounted for"),
        (alter_both_sides, "job job", "in flight: 1 by its counters, but 0 are there"),
        (drop_record, "job job", "records"),
        (lock_without_node, "locks", "tasks/job/1 is held by ghost"),
        (lose_shard, "job job", "shards gone from Redis: 1 of 2 "),
        (nobody_can, "job stores", "--warc-dir"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_broken_state_is_found_and_named_with_a_remedy(
    rig: Rig, break_it: Callable[[Rig], Awaitable[None]], check: str, said: str
) -> None:
    await break_it(rig)
    findings = await examine(rig.settings)
    failed = [one for one in findings if one.status is Status.FAILED]
    assert {one.check for one in failed} == {check}, findings
    assert any(said in one.detail for one in failed), failed
    assert all(one.remedy for one in failed)
    assert exit_code(findings) == 1


async def test_a_sound_cluster_has_nothing_to_complain_of_while_it_works(rig: Rig) -> None:
    findings = await examine(rig.settings)
    assert troubles(findings) == []
    assert exit_code(findings) == 0


async def test_the_way_of_a_lock_from_one_owner_to_the_next_is_no_fault(rig: Rig) -> None:
    """Tasks are handed over all the time while doctor looks."""
    second = await rig.worker({}, "w2")
    for _ in range(3):
        await second.set_state("draining")
        assert troubles(await examine(rig.settings)) == []
        await second.set_state("ready")
    assert NodeId("w1") in {lock.owner for lock in await rig.coord.locks.list()}
