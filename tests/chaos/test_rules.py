"""Rules that no schedule reaches: leases over changes of the leader, restores, idle channels.

Numbers are those of the table in README.md here.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from common.coord import Acquired, Coord, EtcdOptions, Session, connect
from common.frontier import FrontierClient, RedisOptions, Refusal, ShardState
from common.frontier.job import JobFrontier, MasterFence
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Adopted
from common.model.ids import JobId, NodeId, Revision, Task, Token
from common.model.job import JobSpec
from tests.support.servers import (
    RedisServer,
    start_etcd,
    start_etcd_cluster,
    stopping,
)
from tests.support.waiting import until

JOB = JobId("job")
ANNA, BERT = NodeId("anna"), NodeId("bert")
SPEC = JobSpec(shards=1)


@asynccontextmanager
async def frontier_on(server: RedisServer) -> AsyncIterator[FrontierClient]:
    client = FrontierClient(RedisOptions(urls=(server.url,)))
    await client.open()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def coord_on(*endpoints: str) -> AsyncIterator[Coord]:
    coord = await connect(EtcdOptions(endpoints=endpoints), cluster="rules", timeout_s=20)
    try:
        yield coord
    finally:
        await coord.close()


async def test_a_lease_outlives_its_time_over_a_change_of_the_leader_and_then_ends(
    tmp_path: Path,
) -> None:
    """T3, R14: etcd gives leases their whole time anew when its leader changes. A successor waits
    so much longer, never less, and its token is higher."""
    ttl_s = 4.0
    cluster = start_etcd_cluster(tmp_path)
    try:
        async with coord_on(*cluster.endpoints) as coord:
            session = await Session.open(coord.etcd, ttl_s=ttl_s)
            held = await coord.locks.acquire(session, "x", owner=ANNA)
            assert isinstance(held, Acquired)
            session._heartbeat.cancel()  # the owner is gone, as after kill -9
            last_beat = time.monotonic()
            await asyncio.sleep(ttl_s / 2)
            await asyncio.to_thread((await asyncio.to_thread(cluster.leader)).kill)
            follower = await Session.open(coord.etcd, ttl_s=30)

            async def acquired() -> Acquired | None:
                found = await coord.locks.acquire(follower, "x", owner=BERT)
                return found if isinstance(found, Acquired) else None

            taken = await until(acquired, within_s=3 * ttl_s + 15)
            waited = time.monotonic() - last_beat
            assert taken is not None
            assert taken.token > held.token
            assert waited >= ttl_s * 1.2, "it was not extended: then this test shows nothing"
            await session.close()
            await follower.close()
    finally:
        cluster.stop()


async def test_after_a_restore_of_etcd_lower_tokens_are_refused(
    tmp_path: Path, redis_server: RedisServer, cluster_name: str
) -> None:
    """T15, R6: etcd restored from an older copy gives tokens that were given before. The frontier
    has seen higher ones and lets nobody in: the job stands still instead of having two owners."""
    etcd = start_etcd(tmp_path / "etcd")
    copy = tmp_path / "copy"
    with stopping(etcd):
        async with frontier_on(redis_server) as client:
            master = JobFrontier(client, cluster=cluster_name, job=JOB, spec=SPEC)
            await master.create(fence=MasterFence(1, 1), state=ShardState.OPEN)

            async def adopted_under(token: Token) -> Adopted | Refusal:
                owner = TaskFrontier(
                    client, cluster=cluster_name, task=Task(JOB, 0), spec=SPEC, token=token
                )
                run = await client.current_run("any")
                return await owner.adopt(run, state=ShardState.OPEN, revision=Revision(1))

            async def acquired() -> Token:
                async with coord_on(etcd.endpoint) as coord:
                    session = await Session.open(coord.etcd, ttl_s=30)
                    found = await coord.locks.acquire(session, "tasks/job/0", owner=ANNA)
                    assert isinstance(found, Acquired)
                    await coord.locks.release("tasks/job/0", found.token)
                    await session.close()
                    return found.token

            first = await acquired()
            etcd.stop()
            shutil.copytree(etcd._data, copy)
            etcd.launch()
            await asyncio.to_thread(etcd.wait_ready)
            for _ in range(5):
                newest = await acquired()
            assert isinstance(await adopted_under(newest), Adopted)
            etcd.stop()
            shutil.rmtree(etcd._data)
            shutil.copytree(copy, etcd._data)
            etcd.launch()
            await asyncio.to_thread(etcd.wait_ready)
            again = await acquired()
            assert first < again < newest, "the restore did not bring tokens back"
            assert await adopted_under(again) is Refusal.STALE


async def test_terms_of_two_candidates_never_overlap_in_what_is_accepted(
    etcd_server: object, redis_server: RedisServer, cluster_name: str
) -> None:
    """T13: candidates that resign, die and go on unknowing, in 100 rounds by chance."""
    await _rounds(100, etcd_server.endpoint, redis_server, cluster_name)  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_terms_of_two_candidates_never_overlap_in_a_thousand_rounds(
    etcd_server: object, redis_server: RedisServer, cluster_name: str
) -> None:
    await _rounds(1000, etcd_server.endpoint, redis_server, cluster_name)  # type: ignore[attr-defined]


async def _rounds(count: int, endpoint: str, server: RedisServer, cluster: str) -> None:
    chance = random.Random("terms")
    seen: list[int] = []
    async with AsyncExitStack() as stack:
        coord = await connect(EtcdOptions(endpoints=(endpoint,)), cluster=cluster)
        stack.push_async_callback(coord.close)
        client = await stack.enter_async_context(frontier_on(server))
        shards = JobFrontier(client, cluster=cluster, job=JOB, spec=SPEC)
        await shards.create(fence=MasterFence(1, 1), state=ShardState.OPEN)
        former: list[int] = []
        for number in range(count):
            session = await Session.open(coord.etcd, ttl_s=20)
            term = await coord.election.campaign(session, node=(ANNA, BERT)[number % 2])
            seen.append(term)
            assert await shards.apply(ShardState.OPEN, fence=MasterFence(term, 1)) == [None]
            for zombie in chance.sample(former[-5:], min(2, len(former))):
                late = await shards.apply(ShardState.PAUSED, fence=MasterFence(zombie, 1))
                assert late == [Refusal.STALE]
            former.append(term)
            match chance.randrange(3):
                case 0:
                    await coord.election.resign(term)
                    await session.close()
                case 1:  # etcd drops it; the process goes on unknowing
                    await coord.etcd.revoke(session.lease)
                    session._heartbeat.cancel()
                case _:
                    await session.close()
        assert seen == sorted(set(seen)), "each term is above the one before"


@pytest.mark.slow
async def test_an_idle_client_is_not_told_to_calm_down(tmp_path: Path) -> None:
    """T16: a channel that pings too eagerly is closed by etcd (ENHANCE_YOUR_CALM) after a while."""
    etcd = start_etcd(tmp_path, options=["--log-level", "info"])
    with stopping(etcd):
        async with coord_on(etcd.endpoint) as coord:
            await asyncio.sleep(75)
            began = time.monotonic()
            await coord.etcd.get("x")
            assert time.monotonic() - began < 2.0
        log = etcd.log.read_text(errors="replace").lower()
        assert "too_many_pings" not in log
        assert "enhance_your_calm" not in log
