"""Settings for one host: they hold at the next claim, for every owner, and lose nothing."""

from __future__ import annotations

import asyncio

import pytest

from common.frontier.hosts import Hosts, HostView
from common.frontier.job import MasterFence
from common.frontier.replies import Claimed, Refusal, ShardState
from common.model.ids import HostKey, Revision
from common.model.records import Outcome
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    FENCE,
    HOST,
    JOB,
    Shard,
    again,
    claim,
    claim_within,
    claimed_urls,
    commit,
    looked,
    page,
    pages,
)

OTHER = HostKey("http://b.example")
REVISION = Revision(FENCE.revision)


def hosts_of(shard: Shard) -> Hosts:
    return Hosts(shard.client, cluster=shard.cluster, job=JOB, spec=shard.spec)


async def views(shard: Shard) -> dict[HostKey, HostView]:
    return {view.host: view async for view in hosts_of(shard).views()}


async def test_a_host_that_is_asked_all_the_time_is_in_every_listing(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=1).create()
    owner = await shard.adopted()
    await shard.offer(*pages(300))

    async def work_off() -> None:
        left = 300
        while left:
            claims = (await claim(owner, 1)).claims
            await commit(owner, claims)
            left -= len(claims)

    working, listings = asyncio.create_task(work_off()), 0
    while True:
        found = await views(shard)
        if working.done():
            break
        assert HOST in found
        listings += 1
    await working
    assert listings > 20


async def test_a_blocked_host_is_not_claimed_by_anyone_until_it_is_let_go(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=10).create()
    owner, hosts = await shard.adopted(), hosts_of(shard)
    await shard.offer(*pages(3), *pages(3, OTHER))
    assert await hosts.change(HOST, "block", revision=REVISION) is None
    answer = await claim(owner, 10)
    assert sorted(claimed_urls(answer)) == pages(3, OTHER)
    await commit(owner, answer.claims)
    # What comes later, by whomever, waits as well; a successor is bound by it too.
    await shard.offer(*pages(5))
    successor = await shard.adopted(11)
    for _ in range(3):
        assert (await claim(successor, 10)).claims == []
    view = (await views(shard))[HOST]
    assert (view.queued, view.is_blocked, view.ready_at_ms) == (5, True, None)
    await shard.assert_sound()
    assert await hosts.change(HOST, "unblock", revision=REVISION) is None
    assert sorted(claimed_urls(await claim(successor, 10))) == pages(5)
    await shard.assert_sound()


async def test_a_host_that_is_let_go_still_rests_since_its_last_request(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(delay=0.3).create()
    owner, hosts = await shard.adopted(), hosts_of(shard)
    await shard.offer(*pages(2))
    (one,) = (await claim(owner)).claims
    await hosts.change(HOST, "block", revision=REVISION)
    before = await shard.look()
    await commit(owner, [one], ago_ms=0, delay_ms=300)
    await hosts.change(HOST, "unblock", revision=REVISION)
    answer = await claim_within(owner)
    assert claimed_urls(answer) == [page(1)]
    assert (await shard.look()).now_ms - before.now_ms >= 300


@pytest.mark.parametrize("state", [ShardState.CANCELLED, ShardState.SPENT])
async def test_what_a_blocked_host_has_is_dropped_with_the_rest(
    make_shard: MakeShard, state: ShardState
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(*pages(3))
    await hosts_of(shard).change(HOST, "block", revision=REVISION)
    assert (await claim(owner)).claims == []
    await shard.master.apply(state, fence=FENCE)
    assert len((await claim(owner, 10)).claims) == 3


async def test_an_owner_is_told_the_delay_set_for_a_host(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(page(1), page(1, OTHER))
    assert (await looked(owner)).delays == {}
    await hosts_of(shard).change(OTHER, 2500, revision=REVISION)
    answer = await looked(owner)
    assert isinstance(answer, Claimed)
    assert answer.delays == {OTHER: 2500}
    assert (await views(shard))[OTHER].delay_ms == 2500


async def test_hosts_are_listed_with_what_waits_and_what_went_wrong(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=4).create()
    owner = await shard.adopted()
    await shard.offer(*pages(6))
    first, second, third, _ = (await claim(owner)).claims
    await owner.settle(retries=[again(first, after_ms=60_000)])
    await commit(owner, [second], outcome=Outcome.FAILED)
    await commit(owner, [third])
    view = (await views(shard))[HOST]
    assert (view.queued, view.delayed, view.in_flight, view.errors) == (2, 1, 1, 1)
    assert view.ready_at_ms is not None
    assert not view.is_blocked


async def test_a_job_that_is_over_or_changed_since_takes_no_settings(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    hosts = hosts_of(shard)
    await shard.master.apply(ShardState.PAUSED, fence=MasterFence(FENCE.term, REVISION + 1))
    assert await hosts.change(HOST, "block", revision=REVISION) is Refusal.STALE
    later = Revision(REVISION + 1)
    await shard.master.apply(ShardState.CLOSED, fence=MasterFence(FENCE.term, later))
    assert await hosts.change(HOST, 5, revision=later) is Refusal.CLOSED
    assert (await views(shard)) == {}
