"""A Redis Cluster of three masters: tasks on all of them, slots that move, nodes that are lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.frontier import FrontierClient, RedisOptions, Refusal
from common.frontier.removal import remove
from common.frontier.replies import Adopted, Offered
from common.model.errors import FrontierUnavailable, SettingsError
from tests.integration.frontier.conftest import Starter
from tests.integration.frontier.shard import (
    FENCE,
    JOB,
    claim,
    commit,
    drain,
    finished,
    pages,
    spread_shards,
)
from tests.support.rediscluster import RedisCluster, redis_cluster, slot_of
from tests.support.servers import free_ports, stopping

SHARDS = 12


@pytest.fixture(scope="module")
def cluster(
    start_server: Starter, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster"), start=start_server) as running:
        yield running


@pytest.fixture
async def client(cluster: RedisCluster) -> AsyncIterator[FrontierClient]:
    client = FrontierClient(RedisOptions(urls=cluster.urls[:2]))
    await client.open()
    yield client
    await client.close()


async def test_tasks_lie_on_all_nodes_and_each_knows_the_run_of_its_own(
    client: FrontierClient, cluster_name: str
) -> None:
    shards = await spread_shards(client, cluster_name, SHARDS)
    runs = await client.current_runs([one.keys.meta for one in shards])
    assert len(set(runs)) == 3
    assert [one.run for one in await shards[0].master.stats()] == runs
    assert runs == [client.known_run(one.keys.meta) for one in shards]


async def test_a_job_over_all_nodes_is_crawled_sealed_and_deleted(
    client: FrontierClient, cluster_name: str
) -> None:
    shards = await spread_shards(client, cluster_name, SHARDS)
    for shard in shards:
        await shard.offer(*pages(3, f"http://h{shard.number}.example"))
        await drain(await shard.adopted())
    stats = await shards[0].master.stats()
    assert sum(one.counters["fetched"] for one in stats) == 3 * SHARDS
    assert await shards[0].master.seal(stats, fence=FENCE)
    assert sum([count async for count in remove(client, cluster=cluster_name, job=JOB)]) > 0
    assert not any(one.exists for one in await shards[0].master.stats())
    assert [count async for count in remove(client, cluster=cluster_name, job=JOB)] == []


async def test_urls_that_are_not_of_one_cluster_are_refused(
    cluster: RedisCluster, start_server: Starter, tmp_path: Path
) -> None:
    (bus,) = free_ports(1)
    alone = ("--cluster-enabled", "yes", "--cluster-port", f"{bus}")
    single, other = start_server(tmp_path / "s"), start_server(tmp_path / "o", options=alone)
    with stopping(single), stopping(other):
        for urls, message in (
            ((cluster.urls[0], single.url), f"127.0.0.1:{single.port} is not in cluster mode"),
            ((cluster.urls[0], other.url), "belongs to another Redis Cluster than"),
            ((cluster.urls[0].replace("/0", "/3"),), "a Redis Cluster has database 0 only"),
        ):
            with pytest.raises(SettingsError, match=message):
                await FrontierClient(RedisOptions(urls=urls)).open()
    # One that is away is no matter, as long as another answers.
    client = FrontierClient(RedisOptions(urls=(single.url, *cluster.urls)))
    await client.open()
    assert len(await client.servers()) == 3
    await client.close()
    with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{single.port}"):
        await FrontierClient(RedisOptions(urls=(single.url, other.url))).open()


async def test_one_url_without_a_cluster_of_urls_works_as_well(
    cluster: RedisCluster, cluster_name: str
) -> None:
    client = FrontierClient(RedisOptions(urls=cluster.urls[:1]))
    await client.open()
    shards = await spread_shards(client, cluster_name, SHARDS)
    assert len({one.run for one in await shards[0].master.stats()}) == 3
    await client.close()


async def test_a_slot_on_its_way_makes_its_task_wait_and_nothing_else(
    client: FrontierClient, cluster: RedisCluster, cluster_name: str
) -> None:
    """Never missing, never empty, never half a script: unavailable until all keys are there."""
    shards = await spread_shards(client, cluster_name, SHARDS)
    moving = shards[0]
    source = cluster.owner_of(moving.keys.meta)
    target = next(one for one in cluster.masters if one is not source)
    elsewhere = next(one for one in shards if cluster.owner_of(one.keys.meta) is not source)
    await elsewhere.adopted()
    owner = await moving.adopted()
    await moving.offer(*pages(8))
    held = (await claim(owner, 2)).claims
    before = await moving.look()
    slot = slot_of(moving.keys.meta)
    cluster.open_slot(slot, source, target)
    while cluster.move_keys(slot, source, target, count=1):
        with pytest.raises(FrontierUnavailable, match="slot"):
            await moving.master.stats()
        with pytest.raises(FrontierUnavailable, match="slot"):
            await moving.try_offer(*pages(9))
        with pytest.raises(FrontierUnavailable, match="slot"):
            await owner.settle(finished=[finished(one) for one in held])
        with pytest.raises(FrontierUnavailable, match=r"half moved|moving a slot"):
            await owner.current_run()
        assert isinstance(await elsewhere.try_offer(*pages(1)), Offered)
    cluster.close_slot(slot, source, target)

    # Another server, another run: what was decided under the former one is not written.
    assert await moving.try_offer(*pages(9)) is Refusal.RUN
    assert await owner.settle(finished=[finished(one) for one in held]) is Refusal.RUN
    after = await moving.look()
    assert (after.queues, after.in_flight) == (before.queues, before.in_flight)
    answer = await moving.adopt(owner)
    assert answer == Adopted(2, is_new_run=True)
    assert await commit(owner, held) == []
    await drain(owner)
    assert sorted((await moving.assert_sound()).results) == sorted(pages(8))
