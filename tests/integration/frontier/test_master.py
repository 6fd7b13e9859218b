"""What the master does to shards: fenced by term and revision, in whatever order it arrives."""

from __future__ import annotations

import asyncio

import pytest

from common.frontier.job import UNLIMITED, MasterFence
from common.frontier.owner import item_of
from common.frontier.replies import Offered, Refusal, ShardState
from common.frontier.settling import Settled
from common.model.ids import HostKey
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    FENCE,
    Shard,
    again,
    claim,
    commit,
    drain,
    looked,
    page,
    pages,
)

LATER = MasterFence(FENCE.term, FENCE.revision + 1)
NEXT_TERM = MasterFence(FENCE.term + 1, FENCE.revision)


async def _every_answer(shard: Shard, fence: MasterFence) -> set[object]:
    """Return what each script of the master is answered under a fence."""
    master = shard.master
    look = await master.stats()
    answers: set[object] = {
        *await master.create(fence=fence, state=ShardState.OPEN),
        *await master.apply(ShardState.OPEN, fence=fence),
        await master.unstage(99, fence=fence),
        await master.seal(look, fence=fence),
    }
    granted = await master.grant(0, 1, fence=fence)
    return answers | ({granted} if isinstance(granted, Refusal) else set())


@pytest.mark.parametrize("newer", [LATER, NEXT_TERM], ids=["revision", "term"])
async def test_an_older_fence_is_refused_everywhere_once_a_newer_was_seen(
    make_shard: MakeShard, newer: MasterFence
) -> None:
    shard = await make_shard(max_pages=5).create()
    assert Refusal.STALE not in await _every_answer(shard, FENCE)
    await shard.master.apply(ShardState.PAUSED, fence=newer)
    assert await _every_answer(shard, FENCE) == {Refusal.STALE, False}
    stats = await shard.stats()
    assert (stats.state, stats.grant) == (ShardState.PAUSED, 1)


async def test_a_newer_term_with_an_older_revision_is_refused(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    fence = MasterFence(FENCE.term + 1, FENCE.revision - 1)
    assert await shard.master.apply(ShardState.PAUSED, fence=fence) == [Refusal.STALE]
    assert await shard.master.apply(ShardState.PAUSED, fence=FENCE) == [None]


async def test_the_command_line_is_compared_by_revision_alone(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    fence = MasterFence(0, FENCE.revision)
    assert await shard.master.apply(ShardState.PAUSED, fence=fence) == [None]
    stale = MasterFence(0, FENCE.revision - 1)
    assert await shard.master.apply(ShardState.OPEN, fence=stale) == [Refusal.STALE]
    assert await shard.master.apply(ShardState.OPEN, fence=FENCE) == [None], "term 0 raises none"


async def test_an_owner_that_adopts_raises_no_fence_of_the_master(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await shard.adopted(10**9)
    assert await shard.master.apply(ShardState.PAUSED, fence=FENCE) == [None]


async def test_missing_shards_are_made_by_create_only(make_shard: MakeShard) -> None:
    shard = make_shard()
    assert await shard.master.apply(ShardState.OPEN, fence=FENCE) == [Refusal.MISSING]
    assert await shard.master.grant(0, 5, fence=FENCE) is Refusal.MISSING
    assert await shard.master.unstage(1, fence=FENCE) is Refusal.MISSING
    assert await shard.master.offer_seeds([page(1)]) is Refusal.MISSING
    stats = await shard.stats()
    assert (stats.exists, stats.state, stats.is_empty) == (False, None, False)
    await shard.create(ShardState.PAUSED)
    assert (await shard.stats()).state is ShardState.PAUSED


async def test_creating_again_keeps_what_is_there(make_shard: MakeShard) -> None:
    shard = await make_shard(max_pages=9, shards=3).create(ShardState.PAUSED)
    await shard.master.grant(0, 4, fence=FENCE)
    await shard.offers.offer(0, [])
    await shard.offer(page(1))
    answers = await shard.master.create(fence=LATER, state=ShardState.OPEN)
    assert answers == [None] * 3
    stats = await shard.master.stats()
    assert {one.state for one in stats} == {ShardState.OPEN}
    assert (stats[0].grant, stats[0].counters["discovered"]) == (4, 1)


async def test_the_grant_of_a_job_without_budget_is_exact_and_never_ends(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(*pages(3))
    await drain(owner)
    stats = await shard.stats()
    assert stats.grant == UNLIMITED == 2**53 - 1
    assert stats.counters["fetched"] == 3


async def test_a_grant_decided_on_an_older_look_changes_nothing(make_shard: MakeShard) -> None:
    """A call whose reply was lost may still arrive, after the master looked and decided again."""
    shard = await make_shard(max_pages=100).create()
    assert await shard.master.grant(0, 5, fence=FENCE, seen=0) == 5
    assert await shard.master.grant(0, 5, fence=FENCE, seen=0) == 0
    assert await shard.master.grant(0, -2, fence=FENCE, seen=5) == -2
    assert (await shard.stats()).grant == 3


# ------------------------------------------------------------------------------------------ sealing


async def test_empty_shards_are_sealed_and_offers_must_wait(make_shard: MakeShard) -> None:
    shard = await make_shard(shards=3).create()
    owner = await shard.adopted()
    await shard.offer(page(1))
    await drain(owner)
    assert await shard.master.seal(await shard.master.stats(), fence=FENCE)
    assert await shard.try_offer(page(2)) is Refusal.RETRY
    assert await shard.try_offer(page(1)) is Refusal.RETRY, "also one that would change nothing"
    assert await owner.settle(filtered={"deny: x": 1}) == Settled([])
    await shard.master.apply(ShardState.OPEN, fence=FENCE)
    assert await shard.try_offer(page(2)) == Offered(1, 2)


@pytest.mark.parametrize("left", ["queued", "in_flight", "delayed", "staged"])
async def test_a_shard_with_work_left_is_not_sealed(make_shard: MakeShard, left: str) -> None:
    shard = await make_shard(shards=2).create()
    owner = await shard.adopted()
    if left == "staged":
        await shard.master.stage(1, [page(1)])
    else:
        await shard.offer(page(1))
    if left in ("in_flight", "delayed"):
        held = (await claim(owner)).claims
        if left == "delayed":
            await owner.settle(retries=[again(one, after_ms=60_000) for one in held])
    stats = await shard.master.stats()
    assert not stats[0].is_empty
    assert not await shard.master.seal(stats, fence=FENCE)
    assert (await shard.stats()).state is ShardState.OPEN


async def test_a_shard_that_moved_since_it_was_seen_is_not_sealed(make_shard: MakeShard) -> None:
    shard = await make_shard(shards=2).create()
    owner = await shard.adopted()
    stats = await shard.master.stats()
    await shard.offer(page(1))
    await drain(owner)
    assert not await shard.master.seal(stats, fence=FENCE)
    assert (await shard.stats()).state is ShardState.OPEN


@pytest.mark.parametrize(
    "state", [ShardState.PAUSED, ShardState.CANCELLED, ShardState.CLOSED, ShardState.SEALED]
)
async def test_only_an_open_or_spent_shard_is_sealed(
    make_shard: MakeShard, state: ShardState
) -> None:
    shard = await make_shard().create(state)
    assert not await shard.master.seal(await shard.master.stats(), fence=FENCE)
    await shard.master.apply(ShardState.SPENT, fence=FENCE)
    assert await shard.master.seal(await shard.master.stats(), fence=FENCE)


async def test_shards_seen_on_another_server_run_are_not_taken_for_sealed(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(shards=2).create()
    await shard.client.commands([("HSET", shard.keys.meta, "run", "an-older-run")])
    assert not await shard.master.seal(await shard.master.stats(), fence=FENCE)


async def test_one_full_shard_leaves_the_others_open_to_be_opened_again(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(shards=3).create()
    stats = await shard.master.stats()
    await shard.offers.offer(2, [])
    late = Shard(shard.client, shard.cluster, shard.spec, number=2)
    await late.offer(page(1))
    assert not await shard.master.seal(stats, fence=FENCE)
    assert await shard.master.apply(ShardState.OPEN, fence=FENCE) == [None] * 3
    assert await shard.try_offer(page(1)) == Offered(1, 1)


async def test_offers_race_with_a_seal_and_either_one_or_the_other_wins(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    for number in range(20):
        stats = await shard.master.stats()
        sealed, answer = await asyncio.gather(
            shard.master.seal(stats, fence=FENCE), shard.try_offer(page(number))
        )
        assert not (sealed and isinstance(answer, Offered))
        await shard.master.apply(ShardState.OPEN, fence=FENCE)
        await shard.try_offer(page(number))
        await drain(await shard.adopted(10 + number))


# ------------------------------------------------------------------------------------ seeds, stats


async def test_staged_chunks_are_kept_by_number_and_deleted_by_number(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(shards=2).create()
    for number in (2, 0, 1):
        await shard.master.stage(number, pages(3, f"http://s{number}.example"))
    await shard.master.stage(1, [page(9)])
    assert (await shard.stats()).staged == 3
    chunks = dict(await shard.master.staged(limit=10))
    assert chunks[1] == [page(9)]
    assert set(chunks) == {0, 1, 2}
    for _ in range(2):
        assert await shard.master.unstage(1, fence=FENCE) is None
    assert set(dict(await shard.master.staged(limit=10))) == {0, 2}
    assert len(await shard.master.staged()) == 1


async def test_all_of_many_staged_chunks_are_found(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    for number in range(300):
        await shard.master.stage(number, [page(number)])
    found = []
    while chunks := await shard.master.staged(limit=7):
        for number, urls in chunks:
            found += urls
            await shard.master.unstage(number, fence=FENCE)
    assert sorted(found) == sorted(pages(300))


async def test_seeds_reach_their_shards_and_wait_while_one_is_sealed(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(shards=4).create()
    seeds = [f"http://s{number}.example/" for number in range(12)]
    assert await shard.master.offer_seeds(seeds) is None
    assert await shard.master.offer_seeds(seeds) is None, "again is harmless"
    stats = await shard.master.stats()
    assert sum(one.counters["discovered"] for one in stats) == 12
    assert all(one.counters["discovered"] < 12 for one in stats)
    await shard.master.apply(ShardState.SEALED, fence=FENCE)
    assert await shard.master.offer_seeds(seeds) is Refusal.RETRY
    await shard.master.apply(ShardState.CLOSED, fence=FENCE)
    assert await shard.master.offer_seeds(seeds) is Refusal.CLOSED


async def test_seeds_have_depth_zero_and_no_referrer(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await shard.master.offer_seeds([page(1)])
    owner = await shard.adopted()
    (one,) = (await claim(owner)).claims
    assert item_of(one)[:4] == (HostKey("http://a.example"), "/p1", 0, None)


async def test_a_look_at_a_shard_tells_all_of_it(make_shard: MakeShard) -> None:
    shard = await make_shard(max_pages=8, per_host=2).create()
    owner = await shard.adopted(17)
    await shard.offer(*pages(3))
    await shard.master.grant(0, 8, fence=FENCE)
    await commit(owner, (await claim(owner, 1)).claims)
    await claim(owner, 1)
    stats = await shard.stats()
    assert (stats.shard, stats.exists, stats.state, stats.token, stats.grant) == (
        0, True, ShardState.OPEN, 17, 8,
    )  # fmt: skip
    assert stats.run == shard.client.known_run(shard.keys.meta)
    waiting = {name: stats.counters[name] for name in ("queued", "in_flight", "fetched")}
    assert waiting == {"queued": 1, "in_flight": 1, "fetched": 1}
    assert (stats.seen_estimate, stats.layers, stats.is_empty) == (3, 1, False)
    assert (await looked(owner)).wait_ms == 0
