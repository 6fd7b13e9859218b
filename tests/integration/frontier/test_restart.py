"""The server dies or stands still: what it acknowledged stays, nobody acts on what it forgot."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.frontier import FrontierClient, RedisOptions, link
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Adopted, Claim, Claimed, Offered, Refusal, ShardState
from common.frontier.settling import Settled
from common.model.errors import FrontierUnavailable
from common.model.job import JobSpec
from tests.integration.frontier.conftest import Starter
from tests.integration.frontier.shard import (
    HOST,
    Shard,
    claim,
    commit,
    drain,
    finished,
    page,
    pages,
)
from tests.support.servers import RedisServer, stopping


@pytest.fixture
def server(start_server: Starter, tmp_path: Path) -> Iterator[RedisServer]:
    server = start_server(tmp_path)
    with stopping(server):
        yield server


@pytest.fixture
async def shard(server: RedisServer, cluster_name: str) -> AsyncIterator[Shard]:
    client = FrontierClient(RedisOptions(urls=(server.url,)))
    await client.open()
    yield await Shard(client, cluster_name, JobSpec(shards=1, delay=0, per_host=32)).create()
    await client.close()


def _kill_and_restart(server: RedisServer) -> None:
    server.kill()
    server.launch()
    server.wait_ready()


class _Crawl:
    """Offers and commits until the server goes away; remembers what was acknowledged."""

    def __init__(self, shard: Shard, owner: TaskFrontier, seed: int) -> None:
        self.shard = shard
        self.owner = owner
        self.rng = random.Random(seed)
        self.offered: set[str] = set()
        self.committed: set[str] = set()
        self.held: dict[int, Claim] = {}

    async def offer(self, name: str) -> None:
        other = Shard(self.shard.client, self.shard.cluster, self.shard.spec)
        for number in range(10_000):
            found = [page(number * 20 + at, f"http://{name}{at % 3}.example") for at in range(20)]
            assert isinstance(await other.try_offer(*found), Offered)
            self.offered.update(found)

    async def work(self) -> None:
        while True:
            answer = await claim(self.owner, 32)
            self.held |= {one.number: one for one in answer.claims}
            batch = [one for one in self.held.values() if self.rng.random() < 0.8]
            done = await self.owner.settle(finished=[finished(one) for one in batch])
            assert done == Settled([])
            for one in batch:
                del self.held[one.number]
            self.committed.update(finished(one).record.decode()[9:-2] for one in batch)


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    shard: Shard, server: RedisServer
) -> None:
    owner = await shard.adopted(10)
    crawl = _Crawl(shard, owner, seed=5)
    tasks = [asyncio.create_task(crawl.offer(name)) for name in ("x", "y", "z")]
    tasks.append(asyncio.create_task(crawl.work()))
    while len(crawl.committed) < 300:
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks), [task.exception() for task in tasks]
    await asyncio.to_thread(_kill_and_restart, server)
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        # Whoever connected to the new run is told so; the others got no answer.
        assert isinstance(ended, FrontierUnavailable | AssertionError), ended

    seen = await shard.assert_sound()
    known = {*seen.results, *(url for _, _, url in seen.in_flight.values())}
    known.update(url for queue in seen.queues.values() for url in queue)
    assert crawl.offered <= known
    assert crawl.committed <= set(seen.results)

    assert await shard.try_offer(page(1)) is Refusal.RUN
    assert await owner.claim(1, []) is Refusal.RUN
    assert await owner.settle(filtered={"deny: x": 1}) is Refusal.RUN
    assert isinstance(await shard.adopt(owner), Adopted)
    await owner.recover(set(crawl.held), dead_below=0)
    await commit(owner, list(crawl.held.values()))
    await shard.offer(*crawl.offered)
    await drain(owner)
    seen = await shard.assert_sound()
    assert set(Counter(seen.results).values()) == {1}
    assert set(seen.results) == known | crawl.offered


async def test_an_owner_that_verified_before_the_restart_adopts_again(
    shard: Shard, server: RedisServer
) -> None:
    owner = shard.owner(10)
    old_run = await shard.client.current_run(shard.keys.meta)
    await asyncio.to_thread(_kill_and_restart, server)
    with pytest.raises(FrontierUnavailable):
        await shard.client.current_run(shard.keys.meta)
    await owner.adopt(old_run, state=ShardState.OPEN, revision=50)
    assert await owner.claim(1, []) is Refusal.RUN
    assert await shard.client.current_run(shard.keys.meta) != old_run
    assert await shard.adopt(owner) == Adopted(0, is_new_run=True)
    assert isinstance(await owner.claim(1, []), Claimed)


async def test_one_failed_call_is_all_that_a_restart_costs(
    shard: Shard, server: RedisServer
) -> None:
    await asyncio.gather(*(shard.stats() for _ in range(4)))
    await asyncio.to_thread(_kill_and_restart, server)
    with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{server.port} is unreachable"):
        await shard.stats()
    assert (await shard.stats()).exists


async def test_a_claim_that_a_standing_server_carries_out_later_is_recovered(
    shard: Shard, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner gave the call up; the server found it in its socket when it went on."""
    owner = await shard.adopted(10)
    await shard.offer(*pages(3))
    monkeypatch.setattr(link, "CALL_TIMEOUT_S", 0.2)
    server.pause()
    with pytest.raises(FrontierUnavailable, match="no answer in time"):
        await owner.claim(2, [(HOST, 0)])
    monkeypatch.setattr(link, "CALL_TIMEOUT_S", 10.0)
    server.resume()
    assert await shard.adopt(owner) == Adopted(2, is_new_run=False)
    assert await owner.recover([], dead_below=0) == 2
    await drain(owner)
    seen = await shard.assert_sound()
    assert sorted(seen.results) == pages(3)


async def test_a_loading_or_stopped_server_is_unavailable(
    shard: Shard, server: RedisServer
) -> None:
    server.kill()
    for _ in range(2):
        with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{server.port}"):
            await shard.stats()
    await asyncio.to_thread(_kill_and_restart, server)
    assert (await shard.stats()).exists
