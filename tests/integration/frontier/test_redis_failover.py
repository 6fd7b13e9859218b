"""A master of a Redis Cluster is killed, and its replica takes over: with all its writes or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from common.frontier import FrontierClient, RedisOptions, Refusal, ShardState
from common.frontier.replies import Adopted, Offered
from common.frontier.results import ResultGroup
from common.model.errors import FrontierUnavailable
from common.model.job import JobSpec
from tests.integration.frontier.conftest import Starter
from tests.integration.frontier.shard import (
    FENCE,
    JOB,
    Shard,
    claim,
    commit,
    drain,
    page,
    pages,
    spread_shards,
)
from tests.integration.frontier.valkey import start_valkey
from tests.support.rediscluster import RedisCluster, redis_cluster, slot_of
from tests.support.servers import start_redis
from tests.support.waiting import until

SHARDS = 12


@pytest.fixture
def starter(request: pytest.FixtureRequest) -> Starter:
    """Starts a server of a cluster: Redis, where a test does not say otherwise."""
    chosen: Starter = getattr(request, "param", start_redis)
    return chosen


@pytest.fixture
def cluster(starter: Starter, tmp_path: Path) -> Iterator[RedisCluster]:
    # Without full coverage a lost node stops its own slots alone. A replica that was cut off from
    # its master for a while may take over all the same: that is what loses writes.
    options = (
        *("--cluster-require-full-coverage", "no"),
        *("--cluster-replica-validity-factor", "0"),
    )
    with redis_cluster(tmp_path, replicas=True, options=options, start=starter) as running:
        yield running


@pytest.fixture
async def client(cluster: RedisCluster) -> AsyncIterator[FrontierClient]:
    client = FrontierClient(RedisOptions(urls=cluster.urls))
    await client.open()
    yield client
    await client.close()


async def _answers(shard: Shard) -> str:
    """Return the run of the server that holds a shard, once there is one again."""

    async def ask() -> str:
        try:
            return await shard.client.current_run(shard.keys.meta)
        except FrontierUnavailable:
            return ""

    return await until(ask, within_s=240)


async def _told_that_it_moves(act: Callable[[], Awaitable[object]]) -> None:
    """Assert that nothing but this is ever said; the target goes on naming the one that is lost."""

    async def ask() -> bool:
        with pytest.raises(FrontierUnavailable) as caught:
            await act()
        return any(said in str(caught.value) for said in ("half moved", "is moving a slot"))

    await until(ask, within_s=240)


async def test_what_a_replica_acknowledged_outlives_its_master(
    client: FrontierClient, cluster: RedisCluster, cluster_name: str
) -> None:
    shards = await spread_shards(client, cluster_name, SHARDS)
    shard, victim = shards[0], cluster.owner_of(shards[0].keys.meta)
    other = next(one for one in shards if cluster.owner_of(one.keys.meta) is not victim)
    replica = cluster.replicas[cluster.masters.index(victim)]
    owner, elsewhere = await shard.adopted(), await other.adopted()
    await shard.offer(*pages(9))
    held = (await claim(owner, 3)).claims
    (before,) = await client.wait_durable([shard.keys.meta])
    assert not client.is_durable

    await asyncio.to_thread(victim.kill)
    with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{victim.port}"):
        await shard.try_offer(*pages(9))
    assert await other.offer(*pages(4)) == Offered(4, 4), "tasks on other nodes go on"
    await drain(elsewhere)

    await asyncio.to_thread(cluster.wait_taken_over, replica)
    assert await _answers(shard) != before
    assert (await shard.counters())["discovered"] == 9
    # What was decided under the former run is not written under this one.
    assert await shard.try_offer(*pages(9)) is Refusal.RUN
    assert await shard.adopt(owner) == Adopted(3, is_new_run=True)
    assert await commit(owner, held) == []
    await drain(owner)
    assert sorted((await shard.assert_sound()).results) == pages(9)
    # The new master has no replica, so there is nobody to wait for.
    (now,) = await client.wait_durable([shard.keys.meta])
    assert now == client.known_run(shard.keys.meta)


async def test_links_that_no_replica_has_are_not_taken_as_kept_and_are_offered_again(
    client: FrontierClient, cluster: RedisCluster, cluster_name: str
) -> None:
    """A page waits for its links until these cannot be lost any more."""
    shards = await spread_shards(client, cluster_name, SHARDS)
    far, victim = shards[0], cluster.owner_of(shards[0].keys.meta)
    replica = cluster.replicas[cluster.masters.index(victim)]
    owner = await far.adopted()
    await far.offer(page(0))
    runs = {far.number: far.offers.run(far.number)}
    assert await far.offers.kept(runs) == [far.number]

    cluster.cut_off_replica(victim)
    assert await far.offer(page(0), page(1)) == Offered(1, 2)
    with pytest.raises(FrontierUnavailable, match="no replica of Redis"):
        await far.offers.kept(runs)

    await asyncio.to_thread(victim.kill)
    await asyncio.to_thread(cluster.wait_taken_over, replica)
    await _answers(far)
    assert await far.offers.kept(runs) == [], "another run: offer them again"
    assert isinstance(await far.adopt(owner), Adopted)
    runs = {far.number: far.offers.run(far.number)}
    assert await far.offer(page(0), page(1)) == Offered(1, 2), "the failover took it back"
    assert await far.offers.kept(runs) == [far.number]


async def test_what_leaves_a_node_or_is_given_to_another_waits_for_a_replica(
    client: FrontierClient, cluster: RedisCluster, cluster_name: str
) -> None:
    """Records that are handed out, and budget that was taken back, are not taken back by a loss."""
    spec = JobSpec(shards=SHARDS, delay=0, per_host=32, max_pages=100)
    shards = [Shard(client, cluster_name, spec, number=number) for number in range(SHARDS)]
    shard = await shards[0].create()
    victim = cluster.owner_of(shard.keys.meta)
    other = next(one for one in shards if cluster.owner_of(one.keys.meta) is not victim)
    owner, master = await shard.adopted(), shard.master
    await master.stats()
    assert await master.grant(shard.number, 100, fence=FENCE) == 100
    await shard.offer(page(0))
    group = ResultGroup(client, cluster=cluster_name, job=JOB, shards=SHARDS, group="g", reader="r")
    assert await group.enrol() == 0

    cluster.cut_off_replica(victim)
    await commit(owner, (await claim(owner)).claims)
    with pytest.raises(FrontierUnavailable, match="no replica of Redis"):
        await group.new(shard.number, count=10)
    await master.stats()
    assert await master.grant(shard.number, -60, fence=FENCE) == -60
    await master.stats()
    with pytest.raises(FrontierUnavailable, match="no replica of Redis"):
        await master.grant(other.number, 60, fence=FENCE)
    with pytest.raises(FrontierUnavailable, match="no replica of Redis"):
        await master.apply(ShardState.SPENT, fence=FENCE)

    cluster.let_replica_follow(victim)

    async def granted() -> bool:
        try:
            await master.stats()
            return await master.grant(other.number, 60, fence=FENCE) == 60
        except FrontierUnavailable:
            return False

    await until(granted)
    assert len(await group.pending(shard.number, after="0-0", count=10)) == 1
    stats = await master.stats()
    assert [stats[one.number].grant for one in (shard, other)] == [40, 60]


@pytest.mark.parametrize(
    ("starter", "first"),
    [(start_redis, "meta"), (start_redis, "the rest"), (start_valkey, "meta")],
    ids=["redis-meta", "redis-the rest", "valkey-meta"],
    indirect=["starter"],
)
async def test_a_failover_amid_a_migration_makes_no_shard_look_missing_or_empty(
    client: FrontierClient, cluster: RedisCluster, cluster_name: str, first: str
) -> None:
    """A Redis that takes over does not know that keys are on their way: to it they never were."""
    shards = await spread_shards(client, cluster_name, SHARDS)
    shard, source = shards[0], cluster.owner_of(shards[0].keys.meta)
    replica = cluster.replicas[cluster.masters.index(source)]
    target = next(one for one in cluster.masters if one is not source)
    beside = next(one for one in shards[1:] if cluster.owner_of(one.keys.meta) is source)
    owner = await shard.adopted()
    await shard.offer(*pages(5))
    await claim(owner, 2)
    await client.wait_durable([shard.keys.meta])
    slot, meta = slot_of(shard.keys.meta), shard.keys.meta.encode()
    cluster.open_slot(slot, source, target)
    cluster.move_keys(slot, source, target, only=lambda key: (key == meta) == (first == "meta"))
    cluster.wait_replicated(source)

    await asyncio.to_thread(source.kill)
    await asyncio.to_thread(cluster.wait_taken_over, replica)
    await _answers(beside)
    await _told_that_it_moves(owner.current_run)  # an owner does not adopt it
    if first == "meta":
        await _told_that_it_moves(shard.master.stats)

    # What redis-cli --cluster fix does.
    cluster.open_slot(slot, replica, target)
    cluster.move_keys(slot, replica, target)
    cluster.close_slot(slot, replica, target)
    await _answers(shard)
    assert await shard.adopt(owner) == Adopted(2, is_new_run=True)
    assert await owner.recover([], dead_below=0) == 2
    await drain(owner)
    assert sorted((await shard.assert_sound()).results) == pages(5)
