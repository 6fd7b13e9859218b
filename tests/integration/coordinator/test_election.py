"""Who is master, who takes over, and what a master that lost its term still does: nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import aiohttp
import pytest
from structlog.testing import capture_logs

import coordinator
from common.coord.wire import Delete
from common.frontier import MasterFence, ShardState
from common.model.errors import CoordUnavailable, FrontierUnavailable, RefusedError
from common.model.ids import NodeId, Token
from common.model.job import JobState
from common.runtime.settings import Settings
from tests.integration.coordinator.rig import LEASE_TTL_S, Master, Rig
from tests.support.servers import EtcdServer, RedisServer, free_ports
from tests.support.tcpproxy import TcpProxy
from tests.support.waiting import until, until_true


def seen(logs: Sequence[Mapping[str, object]]) -> list[tuple[object, object]]:
    return [(entry["event"], entry.get("node")) for entry in logs]


async def until_elected(logs: Sequence[Mapping[str, object]], name: str) -> None:
    """Wait until a master knows that it is one: in etcd it is so a moment earlier."""
    await until_true(lambda: ("master.elected", name) in seen(logs), within_s=60)


async def until_active(rig: Rig, *names: str) -> str:
    async def who() -> str | None:
        active = await rig.active_master()
        return active if active in names else None

    found = await until(who, within_s=3 * LEASE_TTL_S + 5)
    assert found is not None
    return found


async def test_one_of_two_masters_is_active_and_the_other_follows_when_it_leaves(rig: Rig) -> None:
    first = rig.master("m1")
    await until_active(rig, "m1")
    rig.master("m2")

    async def both_listed() -> bool:
        states = {view.info.id: view.info.state for view in await rig.coord.members.list()}
        return states == {"m1": "active", "m2": "standby"}

    await until(both_listed)
    began = time.monotonic()
    await first.end()
    await until_active(rig, "m2")
    assert time.monotonic() - began < LEASE_TTL_S

    left = {view.info.id: view.info.state for view in await rig.coord.members.list()}
    assert left == {"m1": "offline", "m2": "active"}


async def test_work_goes_on_under_the_next_master(rig: Rig) -> None:
    first = rig.master("m1")
    worker = await rig.worker({})
    worker.gate.clear()
    await rig.submit([f"http://h{number}.test/" for number in range(30)])
    await rig.until_state(JobState.RUNNING)
    await until_true(lambda: len(worker.owned) == 4)
    version, before = await rig.coord.assignments.load()
    await first.end()

    rig.master("m2")
    await until_active(rig, "m2")
    worker.gate.set()
    await rig.until_state(JobState.FINISHED)
    assert len(worker.fetched) == 30
    assert version >= 1
    assert before


async def test_a_master_whose_lease_is_revoked_demotes_itself_and_is_a_candidate_again(
    rig: Rig,
) -> None:
    with capture_logs() as logs:
        rig.master("m1")
        await until_elected(logs, "m1")
        old = await rig.coord.election.leader()
        assert old is not None
        found = await rig.coord.etcd.get(rig.coord.keys.election)
        assert found is not None
        await rig.coord.etcd.revoke(found.lease)

        async def is_new_term() -> bool:
            leader = await rig.coord.election.leader()
            return leader is not None and leader.term > old.term

        await until(is_new_term)
    demoted = [entry for entry in logs if entry["event"] == "master.demoted"]
    assert [entry["term"] for entry in demoted] == [old.term]


async def test_a_lone_master_whose_election_is_broken_by_hand_is_elected_anew(rig: Rig) -> None:
    """Also when it has nothing to write, which would tell it."""
    rig.master("m1")
    await until_active(rig, "m1")
    leader = await rig.coord.election.leader()
    assert leader is not None
    await asyncio.sleep(1)  # until all is quiet
    assert await rig.coord.locks.release("master", Token(leader.term))

    async def is_elected_anew() -> bool:
        now = await rig.coord.election.leader()
        return now is not None and now.term > leader.term

    await until(is_elected_anew)


async def test_a_stale_masters_publication_is_refused_and_it_demotes_itself(rig: Rig) -> None:
    """Its session is fine: the refused write tells it, or its look at the election."""
    await rig.worker({}, "w1")
    await rig.submit(["http://a.test/"], state=JobState.PAUSED)
    with capture_logs() as logs:
        rig.master("m1")
        await until_elected(logs, "m1")
        old = await rig.coord.election.leader()
        assert old is not None
        await rig.coord.etcd.txn(compare=(), success=[Delete(rig.coord.keys.election)])
        await rig.worker({}, "w2")  # a change that asks for a new assignment

        async def is_new_term() -> bool:
            leader = await rig.coord.election.leader()
            return leader is not None and leader.term > old.term

        await until(is_new_term)
    demoted = [entry for entry in logs if entry["event"] == "master.demoted"]
    assert [entry["term"] for entry in demoted] == [old.term]
    assert f"term {old.term} is over" in demoted[0]["reason"]


async def test_a_master_cut_off_from_etcd_stops_before_another_takes_over(
    rig: Rig, etcd_server: EtcdServer
) -> None:
    async with TcpProxy(etcd_server.endpoint) as proxy:
        settings = Settings(
            etcd_endpoints=(proxy.endpoint,),
            redis_urls=rig.settings.redis_urls,
            cluster=rig.settings.cluster,
        )
        with capture_logs() as logs:
            cut_off = Master(settings, "m1", LEASE_TTL_S)
            rig.masters.append(cut_off)
            await until_elected(logs, "m1")
            rig.master("m2")
            proxy.is_refusing = True
            await proxy.cut()
            await until_active(rig, "m2")
            await until_true(lambda: ("master.elected", "m2") in seen(logs))
            events = seen(logs)
            assert events.index(("master.demoted", "m1")) < events.index(("master.elected", "m2"))
        proxy.is_refusing = False

        async def is_back() -> bool:
            nodes = {view.info.id: view.info.state for view in await rig.coord.members.list()}
            return nodes.get("m1") == "standby"

        await until(is_back, within_s=60)
        await cut_off.end()


async def test_a_new_master_raises_its_fence_so_that_the_old_one_can_change_nothing(
    rig: Rig,
) -> None:
    first = rig.master("m1")
    stored = await rig.submit(["http://a.test/"])
    await rig.until_state(JobState.RUNNING)
    await rig.until_shards("open")
    old = await rig.coord.election.leader()
    assert old is not None
    await first.end()
    rig.master("m2")
    await until_active(rig, "m2")
    frontier = rig.frontier("job", stored.job.spec)
    revision = (await rig.job()).revision

    async def is_fenced() -> bool:
        refusals = await frontier.apply(ShardState.OPEN, fence=MasterFence(old.term, revision))
        return set(refusals) == {"STALE"}

    await until(is_fenced)


async def test_a_new_master_undoes_the_seals_a_dead_one_left(rig: Rig) -> None:
    first = rig.master("m1")
    stored = await rig.submit([], keep_open=True)
    await rig.until_state(JobState.RUNNING)
    await rig.until_shards("open")
    leader = await rig.coord.election.leader()
    assert leader is not None
    await first.end()
    frontier = rig.frontier("job", stored.job.spec)
    fence = MasterFence(leader.term, (await rig.job()).revision)
    assert await frontier.seal(await frontier.stats(), fence=fence)
    assert await rig.shard_states() == {"sealed"}

    rig.master("m2")
    await rig.until_shards("open")


async def test_seeds_whose_master_died_between_offer_and_unstaging_are_offered_again(
    rig: Rig,
) -> None:
    first = rig.master("m1")
    seeds = [f"http://h{number}.test/" for number in range(50)]
    stored = await rig.submit([], keep_open=True)
    await rig.until_state(JobState.RUNNING)
    await rig.until_shards("open")
    await first.end()
    # What a master leaves behind that is killed after the offers, before it deletes the chunk.
    frontier = rig.frontier("job", stored.job.spec)
    await frontier.stage(0, seeds)
    assert await frontier.offer_seeds(seeds) is None

    rig.master("m2")

    async def is_unstaged() -> bool:
        return sum(one.staged for one in await frontier.stats()) == 0

    await until(is_unstaged)
    assert (await rig.counters())["discovered"] == 50
    worker = await rig.worker({})
    await rig.change("job", keep_open=False)
    await rig.until_state(JobState.FINISHED)
    assert sorted(worker.fetched) == sorted(seeds)


async def test_two_masters_of_one_name_are_refused(rig: Rig) -> None:
    rig.master("m1")
    await until_active(rig, "m1")
    with pytest.raises(RefusedError, match="m1 is alive"):
        await rig.master("m1").task


async def test_a_master_that_cannot_reach_etcd_says_so_within_seconds(rig: Rig) -> None:
    (port,) = free_ports(1)
    settings = Settings(
        etcd_endpoints=(f"127.0.0.1:{port}",), redis_urls=rig.settings.redis_urls, cluster="c"
    )
    began = time.monotonic()
    with pytest.raises(CoordUnavailable, match=str(port)):
        await Master(settings, "m1", LEASE_TTL_S).task
    assert time.monotonic() - began < 20


async def test_a_master_that_cannot_reach_redis_at_its_start_says_so(rig: Rig) -> None:
    (port,) = free_ports(1)
    settings = Settings(
        etcd_endpoints=rig.settings.etcd_endpoints,
        redis_urls=(f"redis://127.0.0.1:{port}/0",),
        cluster="c",
    )
    with pytest.raises(FrontierUnavailable, match=str(port)):
        await Master(settings, "m1", LEASE_TTL_S).task


async def test_redis_away_for_a_while_ends_no_term(rig: Rig, own_redis: RedisServer) -> None:
    settings = Settings(
        etcd_endpoints=rig.settings.etcd_endpoints,
        redis_urls=(own_redis.url,),
        cluster=rig.settings.cluster,
    )
    async with Rig.open(
        rig.settings.etcd_endpoints[0], own_redis.url, cluster=settings.cluster
    ) as here:
        here.master("m1")
        worker = await here.worker({})
        worker.gate.clear()
        await here.submit([f"http://h{number}.test/" for number in range(10)])
        await here.until_state(JobState.RUNNING)
        before = await here.coord.election.leader()
        with capture_logs() as logs:
            await asyncio.to_thread(own_redis.kill)
            await until_true(lambda: any(entry["event"] == "master.hindered" for entry in logs))
            # etcd's half goes on meanwhile: a worker that joins gets its share.
            second = await here.worker({}, "w2")

            async def is_assigned() -> bool:
                _, assigned = await here.coord.assignments.load()
                return NodeId("w2") in assigned and bool(assigned[NodeId("w2")].tasks)

            await until(is_assigned)
            await asyncio.to_thread(own_redis.restart)
        worker.gate.set()
        await here.until_state(JobState.FINISHED, within_s=30)
        assert len({*worker.fetched, *second.fetched}) == 10
        assert (await here.counters())["fetched"] == 10
        assert await here.coord.election.leader() == before


async def test_a_master_long_without_redis_lets_another_candidate_try(
    rig: Rig, redis_server: RedisServer
) -> None:
    """A master whose own way to Redis was broken stayed master, and no job ended, though a standby
    could reach it. Alone it stays: nobody could do better."""
    async with TcpProxy(redis_server.url.partition("//")[2].partition("/")[0]) as proxy:
        settings = Settings(
            etcd_endpoints=rig.settings.etcd_endpoints,
            redis_urls=(f"redis://{proxy.endpoint}/0",),
            cluster=rig.settings.cluster,
        )
        rig.masters.append(Master(settings, "m1", 2.0))
        await until_active(rig, "m1")
        worker = await rig.worker({})
        worker.gate.clear()
        await rig.submit([f"http://h{number}.test/" for number in range(3)])
        await rig.until_state(JobState.RUNNING)
        proxy.is_refusing = True
        await proxy.cut()
        await asyncio.sleep(3 * 2.0 + 2.0)
        assert await rig.active_master() == "m1"
        rig.master("m2")
        await until_active(rig, "m2")
        worker.gate.set()
        await rig.until_state(JobState.FINISHED, within_s=30)


async def test_health_and_metrics_tell_whether_a_master_is_active(rig: Rig) -> None:
    (port,) = free_ports(1)
    stop = asyncio.Event()
    running = asyncio.create_task(
        coordinator.run(
            rig.settings,
            node_id="m1",
            lease_ttl_s=LEASE_TTL_S,
            http=f"127.0.0.1:{port}",
            stop=stop,
        )
    )
    await until_active(rig, "m1")
    leader = await rig.coord.election.leader()
    assert leader is not None
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as web:

        async def health() -> bool:
            async with web.get("/health") as answer:
                told = await answer.json()
                return bool(told["ok"] and told["state"] == "active")

        await until(health)
        async with web.get("/metrics") as answer:
            assert f"crawlctl_master_term {float(leader.term)}" in await answer.text()
    stop.set()
    await running
