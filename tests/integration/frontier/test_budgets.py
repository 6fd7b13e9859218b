"""Page budgets of the job and of a host are exact, and what is over them is dropped, not lost."""

from __future__ import annotations

import pytest

from common.frontier.replies import ShardState
from common.model.records import Outcome
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    FENCE,
    HOST,
    Shard,
    again,
    back,
    claim,
    commit,
    finished,
    looked,
    page,
    pages,
)

pytestmark = pytest.mark.on_cluster

OTHER = "http://b.example"


async def test_a_shard_claims_no_more_pages_than_it_was_granted(make_shard: MakeShard) -> None:
    shard = await make_shard(max_pages=10, per_host=50).create()
    owner = await shard.adopted()
    await shard.offer(*pages(20), *pages(20, OTHER))
    assert (await claim(owner, 50)).claims == []
    assert await shard.master.grant(0, 7, fence=FENCE) == 7
    held = (await claim(owner, 50)).claims
    assert len(held) == 7
    assert (await claim(owner, 50)).claims == []
    await commit(owner, held[:3])
    assert (await claim(owner, 50)).claims == [], "a fetched page is used up"
    await owner.settle(finished=[finished(held[3], outcome=Outcome.REDIRECTED)])
    assert len((await claim(owner, 50)).claims) == 1, "a redirect is no page"
    await shard.assert_sound()


async def test_without_grant_the_owner_is_not_called_back_at_once(make_shard: MakeShard) -> None:
    """Due hosts that cannot be claimed must not make the owner spin."""
    shard = await make_shard(max_pages=10).create()
    owner = await shard.adopted()
    await shard.offer(*pages(3))
    answer = await looked(owner)
    assert (answer.ahead, answer.wait_ms) == ([], -1)
    await shard.master.grant(0, 1, fence=FENCE)
    assert (await looked(owner)).ahead == [(HOST, 0)]


async def test_only_unused_grant_is_taken_back(make_shard: MakeShard) -> None:
    shard = await make_shard(max_pages=100, per_host=50).create()
    owner = await shard.adopted()
    await shard.offer(*pages(6))
    await shard.master.grant(0, 10, fence=FENCE)
    held = (await claim(owner, 4)).claims
    await commit(owner, held[:2])
    await owner.settle(finished=[finished(held[2], outcome=Outcome.NOT_MODIFIED)])
    # 10 granted, 2 fetched, 1 not modified, 1 in flight
    assert await shard.master.grant(0, -50, fence=FENCE) == -6
    assert await shard.master.grant(0, -50, fence=FENCE) == 0
    assert (await shard.stats()).grant == 4
    assert (await claim(owner, 4)).claims == []


@pytest.mark.parametrize(
    ("state", "rule"), [(ShardState.SPENT, "max_pages"), (ShardState.CANCELLED, "cancelled")]
)
async def test_a_spent_or_cancelled_shard_gives_everything_out_to_be_dropped(
    make_shard: MakeShard, state: ShardState, rule: str
) -> None:
    shard = await make_shard(delay=60, per_host=1).create()
    owner = await shard.adopted()
    await shard.offer(*pages(5), *pages(3, OTHER))
    held = (await claim(owner)).claims
    await shard.master.apply(state, fence=FENCE)
    dropped = []
    while (answer := await claim(owner, 2)).claims:
        assert {one.rule for one in answer.claims} == {rule}
        await owner.settle(
            finished=[finished(one, outcome=Outcome.DROPPED, ago_ms=-1) for one in answer.claims]
        )
        dropped += answer.claims
    # The hosts with a request on the wire come back when it is over.
    await commit(owner, held)
    while (answer := await claim(owner, 2)).claims:
        await owner.settle(
            finished=[finished(one, outcome=Outcome.DROPPED, ago_ms=-1) for one in answer.claims]
        )
        dropped += answer.claims
    assert len(dropped) == 6
    seen = await shard.assert_sound()
    assert seen.meta["dropped"] == "6"
    assert (await shard.stats()).is_empty


async def test_delayed_urls_of_a_spent_shard_are_due_at_once(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(page(1))
    (only,) = (await claim(owner)).claims
    await owner.settle(retries=[again(only, after_ms=60_000)])
    assert (await looked(owner)).delayed == []
    await shard.master.apply(ShardState.SPENT, fence=FENCE)
    members = (await looked(owner)).delayed
    assert await owner.promote(members) == 1
    assert [one.rule for one in (await claim(owner)).claims] == ["max_pages"]


async def _pages_limited(make_shard: MakeShard, limit: int) -> Shard:
    return await make_shard(max_pages_per_host=limit, per_host=4).create()


async def test_pages_a_host_are_exact_and_the_rest_is_dropped(make_shard: MakeShard) -> None:
    shard = await _pages_limited(make_shard, 5)
    owner = await shard.adopted()
    await shard.offer(*pages(9), *pages(2, OTHER))
    fetched: dict[str, int] = {}
    for _ in range(20):
        for one in (await claim(owner, 20)).claims:
            page_outcome = Outcome.NOT_MODIFIED if one.number % 2 else Outcome.FETCHED
            outcome = Outcome.DROPPED if one.rule else page_outcome
            assert one.rule in ("", "max_pages_per_host")
            fetched[one.host] = fetched.get(one.host, 0) + (not one.rule)
            await owner.settle(finished=[finished(one, outcome=outcome)])
            await shard.assert_sound()
    assert fetched == {HOST: 5, OTHER: 2}
    counters = await shard.counters()
    assert (counters["fetched"] + counters["not_modified"], counters["dropped"]) == (7, 4)
    assert counters["queued"] == 0


async def test_pages_a_host_are_exact_although_slots_are_freed_before_the_commit(
    make_shard: MakeShard,
) -> None:
    """A response that has ended is still a page that will be committed."""
    shard = await _pages_limited(make_shard, 2)
    owner = await shard.adopted()
    await shard.offer(*pages(6))
    held = (await claim(owner)).claims
    assert len(held) == 2
    await owner.free([(one.number, 0) for one in held])
    assert (await claim(owner)).claims == []
    await shard.assert_sound()
    await commit(owner, held)
    assert {one.rule for one in (await claim(owner)).claims} == {"max_pages_per_host"}


async def test_a_host_whose_last_pages_are_in_flight_does_not_call_the_owner_back(
    make_shard: MakeShard,
) -> None:
    shard = await _pages_limited(make_shard, 2)
    owner = await shard.adopted()
    await shard.offer(*pages(6))
    held = (await claim(owner)).claims
    assert (await claim(owner)).claims == []
    assert (await looked(owner)).ahead == []
    await owner.settle(releases=[back(held[0])])
    await shard.assert_sound()
    assert len((await claim(owner)).claims) == 1, "one page is open again"
    await owner.settle(finished=[finished(held[1], outcome=Outcome.FAILED)])
    assert len((await claim(owner)).claims) == 1


async def test_a_takeover_brings_back_a_host_whose_last_pages_were_in_flight(
    make_shard: MakeShard,
) -> None:
    shard = await _pages_limited(make_shard, 2)
    owner = await shard.adopted(10)
    await shard.offer(*pages(6))
    await claim(owner)
    assert (await claim(owner)).claims == []
    successor = await shard.adopted(11)
    assert await successor.recover([], dead_below=0) == 2
    await shard.assert_sound()
    assert len((await claim(successor)).claims) == 2
    await shard.assert_sound()
