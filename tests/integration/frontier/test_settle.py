"""Settling claims: commit, retry, promote, release; each repeatable, none finishing a URL twice."""

from __future__ import annotations

import json
import time

import pytest

from common.frontier import items
from common.frontier.settling import Finished, Settled
from common.model.records import Outcome
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    HOST,
    again,
    back,
    claim,
    claim_within,
    claimed_urls,
    claimed_urls_of,
    commit,
    finished,
    looked,
    page,
    pages,
)

pytestmark = pytest.mark.on_cluster

OTHER = "http://b.example"


async def test_a_commit_writes_the_record_and_moves_the_counter(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=10).create()
    owner = await shard.adopted()
    await shard.offer(*pages(len(Outcome)))
    held = (await claim(owner)).claims
    answer = await owner.settle(
        finished=[
            finished(one, outcome=outcome) for one, outcome in zip(held, Outcome, strict=True)
        ],
        filtered={"deny: x": 4},
    )
    assert answer == Settled([])
    seen = await shard.assert_sound()
    assert seen.results == pages(len(Outcome))
    assert {name: seen.meta[name] for name in Outcome} == dict.fromkeys(Outcome, "1")
    assert (seen.meta["filtered"], seen.meta["in_flight"]) == ("4", "0")


async def test_results_are_read_from_the_start_and_onwards(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=5).create()
    owner = await shard.adopted()
    await shard.offer(*pages(5))
    await commit(owner, (await claim(owner)).claims)
    first = await shard.master.results(0, after="0-0", count=3)
    rest = await shard.master.results(0, after=first[-1][0], count=100)
    assert [json.loads(raw)["url"] for _, raw in first + rest] == pages(5)
    assert await shard.master.results(0, after="0-0", count=3) == first
    assert await shard.master.results(0, after=rest[-1][0], count=3) == []


async def test_a_commit_repeated_after_a_lost_reply_changes_nothing(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=3).create()
    owner = await shard.adopted()
    await shard.offer(*pages(6))
    held = (await claim(owner)).claims
    done = [finished(one, outcome=Outcome.DEAD, letter=one.item) for one in held]
    assert await owner.settle(finished=done, filtered={"deny: x": 2}) == Settled([])
    before = await shard.assert_sound()
    assert await owner.settle(finished=done, filtered={"deny: x": 2}) == Settled(
        [one.number for one in held]
    )
    after = await shard.assert_sound()
    assert after.results == before.results
    assert after.meta == before.meta
    letters = [one async for _, page in shard.letters.pages() for one in page]
    assert sorted(one.item.url for one in letters) == claimed_urls_of(held)


async def test_a_claim_repeated_within_one_commit_counts_once(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(page(1))
    (only,) = (await claim(owner)).claims
    assert await owner.settle(finished=[finished(only), finished(only)]) == Settled([only.number])
    assert (await shard.assert_sound()).results == [page(1)]


async def test_an_unknown_claim_is_gone_and_writes_nothing(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(page(1))
    await claim(owner)
    stranger = Finished(7, HOST, 0, 0, Outcome.FETCHED, b"{}")
    assert await owner.settle(finished=[stranger]) == Settled([7])
    assert (await shard.assert_sound()).results == []


async def test_links_refused_are_counted_also_without_a_page(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    assert await owner.settle(filtered={"deny: x": 3}) == Settled([])
    assert (await shard.counters())["filtered"] == 3


async def test_a_retry_comes_back_later_at_the_end_with_its_next_attempt(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(*pages(2))
    (first,) = (await claim(owner)).claims
    began = time.monotonic()
    assert await owner.settle(retries=[again(first, after_ms=80)]) == Settled([])
    seen = await shard.assert_sound()
    assert seen.delayed == [page(0)]
    second = await claim_within(owner)
    assert claimed_urls(second) == [page(1)]
    await commit(owner, second.claims)
    third = await claim_within(owner)
    assert time.monotonic() - began >= 0.08
    assert claimed_urls(third) == [page(0)]
    assert items.decode(third.claims[0].host, third.claims[0].item).attempt == 2


async def test_the_wait_reaches_to_the_first_delayed_url(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(page(1))
    (only,) = (await claim(owner)).claims
    await owner.settle(retries=[again(only, after_ms=20_000)])
    answer = await looked(owner)
    assert answer.delayed == []
    assert 15_000 < answer.wait_ms <= 20_000


async def test_a_promotion_repeated_moves_nothing(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(page(1), page(1, OTHER))
    held = (await claim(owner)).claims
    await owner.settle(retries=[again(one, after_ms=0) for one in held])
    members = (await looked(owner)).delayed
    assert await owner.promote(members) == 2
    assert await owner.promote(members) == 0
    seen = await shard.assert_sound()
    assert seen.queues == {HOST: [page(1)], OTHER: [page(1, OTHER)]}


async def test_a_promotion_to_a_busy_host_waits_for_its_slot(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(*pages(2))
    (first,) = (await claim(owner)).claims
    await owner.settle(retries=[again(first, after_ms=0)])
    (second,) = (await claim(owner)).claims
    await owner.promote((await looked(owner)).delayed)
    await shard.assert_sound()
    assert (await claim(owner)).claims == []
    await commit(owner, [second])
    assert claimed_urls(await claim(owner)) == [page(0)]


async def test_released_claims_go_to_the_front_in_their_order(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=3).create()
    owner = await shard.adopted()
    await shard.offer(*pages(5))
    held = (await claim(owner)).claims
    assert await owner.settle(releases=[back(one) for one in held]) == Settled([])
    assert (await shard.assert_sound()).queues[HOST] == pages(5)


async def test_retry_and_release_repeated_find_their_claims_gone(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=2).create()
    owner = await shard.adopted()
    await shard.offer(*pages(2))
    one, two = (await claim(owner)).claims
    for gone in ([], [one.number, two.number]):
        answer = await owner.settle(retries=[again(one, after_ms=9_000)], releases=[back(two)])
        assert answer == Settled(gone)
    seen = await shard.assert_sound()
    assert (seen.delayed, seen.queues) == ([page(0)], {HOST: [page(1)]})


@pytest.mark.parametrize("how", ["commit", "retry", "release"])
async def test_each_end_of_a_request_sets_the_hosts_next_time(
    make_shard: MakeShard, how: str
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(*pages(3))
    (one,) = (await claim(owner)).claims
    match how:
        case "commit":
            await owner.settle(finished=[finished(one, delay_ms=30_000, ago_ms=1_000)])
        case "retry":
            await owner.settle(retries=[again(one, after_ms=1, delay_ms=30_000, ago_ms=1_000)])
        case _:
            await owner.settle(releases=[back(one, delay_ms=30_000, ago_ms=1_000)])
    ((host, wait_ms),) = (await looked(owner)).ahead
    assert host == HOST
    assert 25_000 < wait_ms <= 29_001
    await shard.assert_sound()


async def test_large_batches_and_records_pass(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=1000).create()
    owner = await shard.adopted()
    await shard.offer(*pages(1000))
    held = (await claim(owner, 1000)).claims
    assert len(held) == 1000
    big = json.dumps({"url": "x", "title": "t" * 20_000}).encode()
    answer = await owner.settle(
        finished=[Finished(one.number, one.host, 0, 0, Outcome.FETCHED, big) for one in held[:500]],
        releases=[back(one) for one in held[500:]],
    )
    assert answer == Settled([])
    counters = await shard.counters()
    assert (counters["fetched"], counters["queued"], counters["in_flight"]) == (500, 500, 0)
