"""Who may act on a shard: tokens, server runs, existence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from common.frontier import FrontierClient, RedisOptions
from common.frontier.job import MasterFence
from common.frontier.lookup import Lookup
from common.frontier.replies import Adopted, Claimed, Refusal, ShardState
from common.frontier.scripts import Call
from common.frontier.settling import Settled
from common.model.errors import ScriptBug
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    HOST,
    JOB,
    Shard,
    again,
    back,
    claim,
    claimed_urls,
    commit,
    finished,
    page,
    pages,
)
from tests.support.servers import RedisServer

pytestmark = pytest.mark.on_cluster


async def test_a_newer_token_shuts_the_older_one_out_of_every_script(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=4).create()
    oldest = await shard.adopted(9)
    await shard.offer(*pages(4))
    await claim(oldest, 1)
    older = await shard.adopted(10)
    held = (await claim(older)).claims
    await shard.adopted(11)

    assert await shard.adopt(older) is Refusal.STALE
    assert await older.claim(1, []) is Refusal.STALE
    assert await older.promote([b"http://a.example\nx"]) is Refusal.STALE
    assert await older.recover([], dead_below=0) is Refusal.STALE
    assert await older.settle(finished=[finished(held[0])]) is Refusal.STALE
    assert await older.settle(retries=[again(held[0], after_ms=0)]) is Refusal.STALE
    assert await older.settle(releases=[back(held[0])]) is Refusal.STALE
    assert await older.settle(filtered={"deny: x": 3}) is Refusal.STALE
    seen = await shard.assert_sound()
    assert (len(seen.in_flight), seen.results, seen.meta["filtered"]) == (4, [], "0")


async def test_any_script_of_a_newer_owner_raises_the_fence(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    older, newer = await shard.adopted(10), shard.owner(11)
    assert await newer.settle(filtered={"deny: x": 1}) == Settled([])
    assert await older.settle(filtered={"deny: x": 1}) is Refusal.STALE
    assert (await shard.stats()).token == 11


async def test_a_missing_shard_is_refused_to_everyone_and_made_by_no_one(
    make_shard: MakeShard,
) -> None:
    shard = make_shard()
    owner = shard.owner(10)
    assert await shard.adopt(owner) is Refusal.MISSING
    assert await owner.claim(1, []) is Refusal.MISSING
    assert await owner.recover([], dead_below=0) == 0
    assert await owner.promote([b"http://a.example\nx"]) is Refusal.MISSING
    assert await owner.settle(filtered={"deny: x": 1}) is Refusal.MISSING
    await owner.free([(1, 0)])
    assert await shard.try_offer(page(1)) is Refusal.MISSING
    (names,) = await shard.client.commands([("KEYS", f"crawlctl:{shard.cluster}:*")])
    assert names == []


async def test_a_shard_of_another_layout_is_refused_to_everyone_and_left_as_it_is(
    make_shard: MakeShard,
) -> None:
    """P16: what its fields mean is for the version that made it to say."""
    shard = await make_shard().create()
    owner = await shard.adopted(10)
    await shard.offer(page(1))
    lookup = Lookup(shard.client, cluster=shard.cluster, job=JOB, spec=shard.spec)
    await shard.client.commands([("HSET", shard.keys.meta, "version", "0")])
    (before,) = await shard.client.commands([("HGETALL", shard.keys.meta)])
    for attempt in (
        lambda: shard.adopt(shard.owner(11)),
        lambda: owner.claim(1, [(HOST, 0)]),
        lambda: owner.promote([b"http://a.example\nx"]),
        lambda: owner.settle(filtered={"deny: x": 1}),
        lambda: shard.try_offer(page(2)),
        lambda: shard.master.apply(ShardState.PAUSED, fence=MasterFence(99, 99)),
        lambda: shard.master.grant(0, 5, fence=MasterFence(99, 99)),
        lambda: lookup.is_seen(page(1)),
    ):
        with pytest.raises(ScriptBug, match="another version of crawlctl"):
            await attempt()
    (after,) = await shard.client.commands([("HGETALL", shard.keys.meta)])
    assert after == before


async def test_a_closed_shard_is_not_adopted_and_takes_no_offers(make_shard: MakeShard) -> None:
    shard = await make_shard().create(ShardState.CLOSED)
    assert await shard.adopt(shard.owner(10)) is Refusal.CLOSED
    assert await shard.try_offer(page(1)) is Refusal.CLOSED


async def test_adopting_again_under_the_same_run_keeps_the_state(make_shard: MakeShard) -> None:
    shard = await make_shard().create(ShardState.PAUSED)
    owner = shard.owner(10)
    assert await shard.adopt(owner) == Adopted(0, is_new_run=False)
    assert await shard.adopt(owner) == Adopted(0, is_new_run=False)
    assert (await shard.stats()).state is ShardState.PAUSED


async def test_nobody_claims_before_adopting(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await shard.offer(page(1))
    assert await shard.owner(10).claim(1, []) is Refusal.RUN


async def _forget_run(shard: Shard) -> None:
    """Make the shard look as if it was adopted before a restart of the server."""
    await shard.client.commands([("HSET", shard.keys.meta, "run", "an-older-run")])


async def test_after_a_restart_every_script_says_run_until_the_shard_is_adopted(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted(10)
    await shard.offer(*pages(2))
    held = (await claim(owner, 1)).claims
    await _forget_run(shard)

    assert await owner.claim(1, []) is Refusal.RUN
    assert await owner.settle(finished=[finished(held[0])]) is Refusal.RUN
    assert await owner.settle(retries=[again(held[0], after_ms=0)]) is Refusal.RUN
    assert await owner.settle(releases=[back(held[0])]) is Refusal.RUN
    assert await owner.promote([b"http://a.example\nx"]) is Refusal.RUN
    assert await shard.try_offer(page(9)) is Refusal.RUN
    assert await shard.adopt(owner) == Adopted(1, is_new_run=True)
    assert await commit(owner, held) == []
    await shard.offer(page(9))


@pytest.mark.parametrize(
    ("before", "by_etcd", "revision", "after"),
    [
        (ShardState.SEALED, ShardState.OPEN, 50, ShardState.OPEN),
        (ShardState.OPEN, ShardState.PAUSED, 51, ShardState.PAUSED),
        (ShardState.OPEN, ShardState.PAUSED, 49, ShardState.OPEN),
        (ShardState.SPENT, ShardState.OPEN, 50, ShardState.SPENT),
    ],
)
async def test_on_a_new_run_the_state_by_etcd_is_applied_again(
    make_shard: MakeShard,
    before: ShardState,
    by_etcd: ShardState,
    revision: int,
    after: ShardState,
) -> None:
    shard = await make_shard().create(before)
    await _forget_run(shard)
    await shard.adopt(shard.owner(10), state=by_etcd, revision=revision)
    assert (await shard.stats()).state is after


@pytest.mark.one_server
async def test_on_a_new_run_of_a_durable_server_hosts_need_no_rest(make_shard: MakeShard) -> None:
    """Their last times are kept with everything else that was acknowledged."""
    shard = await make_shard(delay=30).create()
    assert shard.client.is_durable
    await _forget_run(shard)
    owner = await shard.adopted(10)
    await shard.offer(page(1))
    assert len((await claim(owner, 1)).claims) == 1


async def test_on_a_new_run_that_may_have_lost_times_hosts_rest_for_one_delay(
    make_shard: MakeShard, data_server: RedisServer
) -> None:
    shard = await make_shard(delay=30).create()
    await shard.client.commands([("CONFIG", "SET", "appendfsync", "everysec")])
    everysec = FrontierClient(RedisOptions(urls=(data_server.url,)))
    try:
        await everysec.open()
    finally:
        await shard.client.commands([("CONFIG", "SET", "appendfsync", "always")])
    shard.client = everysec
    await _forget_run(shard)
    owner = await shard.adopted(10)
    await shard.offer(page(1))
    answer = await owner.claim(5, [(HOST, 30_000)])
    assert isinstance(answer, Claimed)
    assert (answer.claims, answer.ahead[0][0]) == ([], HOST)
    assert 29_000 < answer.wait_ms <= 30_000
    await everysec.close()


async def test_claim_numbers_are_not_used_again_after_the_server_went_back(
    make_shard: MakeShard,
) -> None:
    """A server that lost its last second must not name another URL as the old one was named."""
    shard = await make_shard(per_host=2).create()
    owner = await shard.adopted(10)
    before = (await shard.look()).meta
    await shard.offer(*pages(3))
    (lost,) = (await claim(owner, 1)).claims
    await shard.client.commands(
        [("HSET", shard.keys.meta, "claims", before["claims"], "run", "an-older-run")]
    )
    await shard.adopt(owner)
    (new,) = (await claim(owner, 1)).claims
    assert new.number > lost.number


async def test_a_claim_that_arrives_late_takes_nothing(make_shard: MakeShard) -> None:
    """A claim given up by its owner may still be on its way to the server."""
    shard = await make_shard().create()
    owner = await shard.adopted(10)
    await shard.offer(page(1))
    late = shard.owner(10)
    late._adoption = owner._adoption
    await shard.adopt(owner)
    assert await late.claim(1, [(HOST, 0)]) is Refusal.RUN
    assert claimed_urls(await claim(owner)) == [page(1)]


async def test_a_claim_whose_owner_adopts_anew_before_it_is_answered_counts_as_lost(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted(10)
    await shard.offer(*pages(2))
    call = shard.client.call

    async def adopt_first(calls: Sequence[Call]) -> list[Any]:
        replies = await call(calls)
        if calls[0].script == "claim":
            await shard.adopt(owner)
        return replies

    shard.client.call = adopt_first  # type: ignore[method-assign]
    assert await owner.claim(1, [(HOST, 0)]) is Refusal.RUN
    shard.client.call = call  # type: ignore[method-assign]
    assert await owner.recover([], dead_below=0) == 1
    assert isinstance(await owner.claim(1, []), Claimed)
    await shard.assert_sound()
