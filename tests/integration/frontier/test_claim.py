"""Claims: pace, slots, fairness, order, what to name next and when."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from common.frontier.owner import LOOK_AHEAD
from common.frontier.replies import Claimed, ShardState
from common.frontier.settling import Settled
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    FENCE,
    HOST,
    back,
    claim,
    claim_within,
    claimed_urls,
    commit,
    drain,
    finished,
    looked,
    page,
    pages,
)

OTHER = "http://b.example"


async def test_a_look_ahead_names_hosts_and_takes_nothing(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    assert await looked(owner) == Claimed(ShardState.OPEN, [], [], [], -1, {})
    await shard.offer(page(1), page(1, OTHER))
    answer = await looked(owner)
    assert sorted(answer.ahead) == [(HOST, 0), (OTHER, 0)]
    assert (answer.claims, answer.wait_ms) == ([], 0)


async def test_claims_come_in_the_order_of_the_queue_and_are_in_flight(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=8).create()
    owner = await shard.adopted(12)
    await shard.offer(*pages(5))
    answer = await claim(owner, 3)
    assert claimed_urls(answer) == pages(3)
    assert all(one.rule == "" for one in answer.claims)
    seen = await shard.assert_sound()
    assert {token for token, _, _ in seen.in_flight.values()} == {12}
    assert claimed_urls(await claim(owner, 10)) == pages(5)[3:]


async def test_with_one_request_at_a_time_a_host_waits_for_its_end_and_then_one_delay(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(delay=0.08).create()
    owner = await shard.adopted()
    await shard.offer(*pages(2))
    (first,) = (await claim(owner)).claims
    answer = await claim(owner)
    assert (answer.claims, answer.ahead) == ([], []), "its slot is in use"
    ended = time.monotonic()
    await commit(owner, [first], delay_ms=80)
    second = await claim_within(owner)
    assert time.monotonic() - ended >= 0.08
    assert claimed_urls(second) == [page(1)]


async def test_the_delay_counts_from_the_end_of_the_response_not_from_the_commit(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(delay=20).create()
    owner = await shard.adopted()
    await shard.offer(*pages(2))
    (first,) = (await claim(owner, delay_ms=0)).claims
    await commit(owner, [first], delay_ms=20_000, ago_ms=19_000)
    assert 0 < (await looked(owner)).ahead[0][1] <= 1_001


async def test_a_host_is_claimed_ahead_of_its_time_by_who_says_so_and_no_earlier(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(delay=20).create()
    owner = await shard.adopted()
    await shard.offer(*pages(3))
    (first,) = (await claim(owner, delay_ms=0)).claims
    await commit(owner, [first], delay_ms=20_000)
    ((_, due_ms),) = (await looked(owner)).ahead

    async def ahead(lead_ms: int) -> Claimed:
        answer = await owner.claim(10, [(HOST, 20_000)], leads_ms={HOST: lead_ms})
        assert isinstance(answer, Claimed)
        return answer

    for too_short_ms in (0, due_ms - 5_000):
        assert (await ahead(too_short_ms)).claims == []
    early = await ahead(due_ms)
    assert claimed_urls(early) == [page(1)]
    # Its next time is a delay after the one that it was due at.
    assert await owner.settle(releases=[back(early.claims[0])]) == Settled([])
    ((_, next_ms),) = (await looked(owner)).ahead
    assert 20_000 + due_ms - 5_000 < next_ms <= 20_000 + due_ms + 2


async def test_a_claim_that_sent_nothing_costs_no_delay_beyond_its_own(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(*pages(2))
    (first,) = (await claim(owner)).claims
    assert await owner.settle(releases=[back(first, delay_ms=60_000)]) == Settled([])
    assert claimed_urls(await claim(owner)) == [page(0)]


async def test_a_host_has_as_many_slots_as_it_was_given(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=3).create()
    owner = await shard.adopted()
    await shard.offer(*pages(9))
    held = (await claim(owner)).claims
    assert len(held) == 3
    assert (await claim(owner)).claims == []
    await commit(owner, held[:2])
    assert len((await claim(owner)).claims) == 2
    await shard.assert_sound()


async def test_without_delay_a_host_gives_all_its_slots_in_one_claim(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=32).create()
    owner = await shard.adopted()
    await shard.offer(*pages(100))
    assert len((await claim(owner, 64)).claims) == 32


async def test_with_delay_and_several_slots_starts_are_a_delay_apart(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=3, delay=0.06).create()
    owner = await shard.adopted()
    await shard.offer(*pages(4))
    starts = []
    for _ in range(3):
        answer = await claim_within(owner)
        starts.append(time.monotonic())
        assert len(answer.claims) == 1
    # Claims are seen late at most, never early, so a sum is what can be asserted.
    assert starts[2] - starts[0] >= 0.06
    assert (await claim(owner)).claims == []


async def test_above_one_request_at_a_time_the_end_of_a_response_does_not_push_the_next_start(
    make_shard: MakeShard,
) -> None:
    """Ends that come faster than the delay must not push a host's turn away for ever."""
    shard = await make_shard(per_host=4, delay=30).create()
    owner = await shard.adopted()
    await shard.offer(*pages(3))
    (first,) = (await claim(owner)).claims
    next_start = (await shard.look()).pace
    await asyncio.sleep(0.005)
    await owner.free([(first.number, 0)])
    await commit(owner, [first])
    assert (await shard.assert_sound()).pace == next_start


async def test_hosts_share_a_claim_fairly(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=50).create()
    owner = await shard.adopted()
    hosts = [f"http://h{number}.example" for number in range(4)]
    await shard.offer(*(page(number, host) for host in hosts for number in range(50)))
    taken = Counter(one.host for one in (await claim(owner, 20)).claims)
    assert taken == dict.fromkeys(hosts, 5)


async def test_every_host_has_its_turn_where_there_are_more_than_a_look_ahead(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    hosts = [f"http://h{number}.example" for number in range(3 * LOOK_AHEAD)]
    await shard.offer(*(page(number, host) for host in hosts for number in range(2)))
    asked: Counter[str] = Counter()
    while len(asked) < len(hosts):
        answer = await claim(owner, 16)
        asked.update(one.host for one in answer.claims)
        assert max(asked.values()) == 1, "a host had a second turn before all had their first"
        await commit(owner, answer.claims)


async def test_the_wait_is_until_the_next_host_delayed_url_or_slot(
    make_shard: MakeShard, short_hold: int
) -> None:
    shard = await make_shard(timeout=20, delay=3).create()
    owner = await shard.adopted()
    await shard.offer(page(1), page(2))
    await claim(owner)
    slot_ends = (await looked(owner)).wait_ms
    assert 15_000 < slot_ends <= 20_000 + short_hold


@pytest.mark.parametrize("state", [ShardState.PAUSED, ShardState.SEALED, ShardState.CLOSED])
async def test_nothing_is_claimed_unless_the_shard_is_open(
    make_shard: MakeShard, state: ShardState
) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(*pages(2))
    await shard.master.apply(state, fence=FENCE)
    assert await owner.claim(5, [(HOST, 0)]) == Claimed(state, [], [], [], -1, {})
    await shard.master.apply(ShardState.OPEN, fence=FENCE)
    assert claimed_urls(await claim(owner)) == [page(0)]


async def test_a_host_without_urls_leaves_the_look_ahead(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(page(1))
    (only,) = (await claim(owner)).claims
    await owner.free([(only.number, 0)])
    assert await claim(owner)
    assert (await looked(owner)).ahead == []
    await commit(owner, [only])
    await shard.assert_sound()


async def test_a_pause_the_host_asked_for_holds_although_its_queue_was_empty(
    make_shard: MakeShard,
) -> None:
    """The host was ready again (slot freed) before its pause came with the settlement."""
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(page(1))
    (only,) = (await claim(owner)).claims
    await owner.free([(only.number, 0)])
    await commit(owner, [only], delay_ms=60_000)
    await shard.offer(page(2))
    assert (await claim(owner)).claims == []
    assert (await looked(owner)).ahead[0][1] > 55_000


async def test_a_slot_whose_request_is_surely_over_is_free_one_delay_later(
    make_shard: MakeShard, short_hold: int
) -> None:
    shard = await make_shard(timeout=0.1, delay=1).create()  # long beside how late a test may look
    owner = await shard.adopted()
    await shard.offer(*pages(2))
    began = time.monotonic()
    await claim(owner)
    await claim_within(owner)
    assert time.monotonic() - began >= (short_hold + 100 + 1000) / 1000
    await shard.assert_sound()


async def test_a_clock_that_was_set_back_stops_no_host(make_shard: MakeShard) -> None:
    """An hour earlier the same times are still "due", and the next ones follow as always."""
    hour_ms = 3_600_000
    shard = await make_shard(delay=0.05).create()
    owner = await shard.adopted()
    await shard.offer(*pages(3))
    await commit(owner, (await claim(owner)).claims, delay_ms=50)
    seen = await shard.look()
    moved = [("ZADD", shard.keys.ready, int(at) + hour_ms, host) for host, at in seen.ready.items()]
    moved += [("ZADD", shard.keys.pace, int(at) + hour_ms, host) for host, at in seen.pace.items()]
    clock = int(seen.meta["clock"]) + hour_ms
    await shard.client.commands([*moved, ("HSET", shard.keys.meta, "clock", clock)])

    began = time.monotonic()
    assert (await looked(owner)).wait_ms < 5_000
    second = await claim_within(owner)
    ended = time.monotonic()
    await commit(owner, second.claims, delay_ms=50)
    await commit(owner, (await claim_within(owner)).claims, delay_ms=50)
    assert time.monotonic() - ended >= 0.05
    assert time.monotonic() - began < 30


async def test_keys_of_hosts_that_are_done_do_not_stay(make_shard: MakeShard) -> None:
    shard = await make_shard(delay=0.001).create()
    owner = await shard.adopted()
    await shard.offer(*(page(1, f"http://h{number}.example") for number in range(200)))
    await drain(owner)
    await shard.client.commands([("ZADD", shard.keys.pace, 1, "http://long.ago")])
    await claim(owner)
    seen = await shard.assert_sound()
    assert len(seen.results) == 200
    assert (seen.queues, seen.slots, seen.busy, seen.in_flight) == ({}, {}, {}, {})
    assert "http://long.ago" not in seen.pace
    assert seen.ready == {}


async def test_finishing_a_claim_of_another_host_is_not_mixed_up(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    await shard.offer(*pages(2), *pages(2, OTHER))
    held = {one.host: one for one in (await claim(owner)).claims}
    assert set(held) == {HOST, OTHER}
    await owner.settle(finished=[finished(held[HOST])], releases=[back(held[OTHER])])  # type: ignore[index]
    seen = await shard.assert_sound()
    assert seen.queues == {HOST: [page(1)], OTHER: pages(2, OTHER)}


async def test_a_claim_may_use_the_slots_of_responses_that_ended_before_their_commit(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=2).create()
    await shard.offer(*pages(5))
    owner = await shard.adopted()
    first = await claim(owner)
    assert 2 == len(first.claims)
    assert [] == (await claim(owner)).claims
    done = first.claims[0]
    answer = await owner.claim(10, [(HOST, 0)], ended=[(done.number, 0)])
    assert isinstance(answer, Claimed)
    assert 1 == len(answer.claims)
    seen = await shard.assert_sound()
    assert 3 == len(seen.in_flight)
    # The same again frees nothing, and the commit of a claim without slot takes nobody else's.
    again = await owner.claim(10, [(HOST, 0)], ended=[(done.number, 0)])
    assert isinstance(again, Claimed)
    assert [] == again.claims
    assert [] == await commit(owner, [done])
    assert [] == (await claim(owner)).claims
    await shard.assert_sound()
