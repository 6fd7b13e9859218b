"""Takeover, lost claims, and the requests of former owners that are still on the wire."""

from __future__ import annotations

import asyncio
import time

import pytest

from common.frontier import items
from common.frontier.owner import MAX_OWNERS, SUSPECT_OWNERS
from common.frontier.replies import Claim
from common.frontier.settling import Settled
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    HOST,
    Shard,
    claim,
    claim_within,
    claimed_urls,
    commit,
    finished,
    looked,
    page,
    pages,
)

pytestmark = pytest.mark.on_cluster

OTHER = "http://b.example"


def _owners(claims: list[Claim]) -> dict[str, int]:
    found = [items.decode(one.host, one.item) for one in claims]
    return {item.url: item.owners for item in found}


async def test_a_takeover_requeues_all_and_counts_the_owners_that_were_lost(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=3).create()
    await shard.offer(*pages(3), page(1, OTHER))
    held = (await claim(await shard.adopted(10))).claims
    for token in (11, 12):
        owner = await shard.adopted(token)
        assert await owner.recover([], dead_below=0) == 4
        # The former owner's requests have ended with it.
        await owner.free([(one.number, 0) for one in held])
        await shard.assert_sound()
        held = (await claim(owner)).claims
        assert _owners(held) == dict.fromkeys([*pages(3), page(1, OTHER)], token - 10)


async def test_owners_make_a_suspect_and_only_what_is_written_for_it_more(
    make_shard: MakeShard,
) -> None:
    """Whoever is in flight beside a page that ends its owners must not die of it."""
    shard = await make_shard(per_host=2).create()
    await shard.offer(*pages(2))
    owner = await shard.adopted(10)
    first, second = (await claim(owner)).claims
    for token in range(11, 20):
        owner = await shard.adopted(token)
        await owner.recover([], dead_below=0)
        await owner.free([(first.number, 0), (second.number, 0)])
        first, second = (await claim(owner)).claims
    assert _owners([first, second]) == dict.fromkeys(pages(2), SUSPECT_OWNERS)
    tried = items.decode(first.host, first.item)
    before = (await shard.look()).slots[first.number]
    await asyncio.sleep(0.01)  # slots are counted in whole milliseconds
    assert await owner.count_owners(first.number, tried._replace(owners=MAX_OWNERS))
    await shard.assert_sound()
    assert (await shard.look()).slots[first.number] > before  # it may be sent from now on again
    successor = await shard.adopted(20)
    assert not await owner.count_owners(second.number, tried)  # it has the task no more
    await successor.recover([], dead_below=0)
    await successor.free([(first.number, 0), (second.number, 0)])
    found = (await claim(successor)).claims
    assert _owners(found) == {tried.url: MAX_OWNERS, page(1): SUSPECT_OWNERS}
    assert not await successor.count_owners(first.number, tried)  # a claim that is gone
    await successor.free([(found[0].number, 0)])
    assert not await successor.count_owners(found[0].number, tried)  # others may use its host
    final = await shard.adopted(21)
    await final.recover([], dead_below=21)  # ended on purpose while it was tried alone
    await final.free([(one.number, 0) for one in found])
    assert _owners((await claim(final)).claims) == dict.fromkeys(pages(2), SUSPECT_OWNERS)


async def test_owners_ended_on_purpose_are_not_counted(make_shard: MakeShard) -> None:
    """Stopping the same crawl again and again must not make dead letters of innocent pages."""
    shard = await make_shard(per_host=3).create()
    await shard.offer(*pages(3))
    await claim(await shard.adopted(10))
    owner = await shard.adopted(11)
    assert await owner.recover([], dead_below=11) == 3
    assert _owners((await claim(owner)).claims) == dict.fromkeys(pages(3), 0)


async def test_a_takeover_of_many_claims_goes_in_bounded_calls(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=700).create()
    await shard.offer(*pages(700))
    await claim(await shard.adopted(10), 700)
    successor = await shard.adopted(11)
    assert await successor.recover([], dead_below=11) == 700
    assert await successor.recover([], dead_below=11) == 0
    assert len((await shard.assert_sound()).queues[HOST]) == 700


async def test_what_a_former_owner_finishes_after_the_takeover_is_not_counted(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    await shard.offer(page(1))
    former = await shard.adopted(10)
    (held,) = (await claim(former)).claims
    successor = await shard.adopted(11)
    await successor.recover([], dead_below=0)
    await former.settle(finished=[finished(held)])
    assert await successor.settle(finished=[finished(held)]) == Settled([held.number])
    assert (await shard.assert_sound()).results == []


async def test_a_successor_cannot_settle_what_its_predecessor_claimed(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    await shard.offer(page(1))
    (held,) = (await claim(await shard.adopted(10))).claims
    successor = await shard.adopted(11)
    assert await successor.settle(finished=[finished(held)]) == Settled([held.number])
    assert (await shard.assert_sound()).results == []


async def test_the_slot_of_a_former_owner_stays_until_its_request_is_over_and_then_one_delay(
    make_shard: MakeShard, short_hold: int
) -> None:
    shard = await make_shard(delay=1, timeout=0.1).create()  # long beside how late a test may look
    await shard.offer(*pages(2))
    began = time.monotonic()
    await claim(await shard.adopted(10))
    successor = await shard.adopted(11)
    assert await successor.recover([], dead_below=0) == 1
    await shard.assert_sound()
    assert (await claim(successor)).claims == []
    assert claimed_urls(await claim_within(successor)) == [page(0)]
    assert time.monotonic() - began >= (short_hold + 100 + 1000) / 1000


async def test_beside_a_former_owners_request_the_free_slots_wait_for_its_last_start(
    make_shard: MakeShard, short_hold: int
) -> None:
    """With several slots the successor goes on, a delay after the ghost may have been sent."""
    shard = await make_shard(delay=0.06, timeout=60, per_host=2).create()
    await shard.offer(*pages(3))
    began = time.monotonic()
    await claim(await shard.adopted(10))
    successor = await shard.adopted(11)
    await successor.recover([], dead_below=0)
    (mine,) = (await claim_within(successor)).claims
    assert time.monotonic() - began >= (short_hold + 60) / 1000
    seen = await shard.assert_sound()
    assert seen.busy == {HOST: 2}
    await commit(successor, [mine])
    assert len((await claim_within(successor)).claims) == 1


async def test_a_former_owner_frees_its_slots_and_the_delay_counts_from_its_response(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(delay=0.05, timeout=60).create()
    await shard.offer(page(1))
    former = await shard.adopted(10)
    (held,) = (await claim(former)).claims
    successor = await shard.adopted(11)
    await successor.recover([], dead_below=0)
    assert (await claim(successor)).claims == []
    ended = time.monotonic()
    await former.free([(held.number, 0)])
    await former.free([(held.number, 0)])
    assert claimed_urls(await claim_within(successor)) == [page(1)]
    assert time.monotonic() - ended >= 0.05
    await shard.assert_sound()


async def test_freeing_does_not_touch_the_slot_of_another_claim(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=2).create()
    await shard.offer(*pages(2))
    owner = await shard.adopted()
    one, two = (await claim(owner)).claims
    await owner.free([(one.number, 0), (one.number, 0), (12345, 0)])
    seen = await shard.assert_sound()
    assert (set(seen.slots), seen.busy) == ({two.number}, {HOST: 1})


async def test_slots_of_processes_known_dead_are_free_after_one_delay(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(delay=0.05, timeout=60).create()
    await shard.offer(page(1))
    await claim(await shard.adopted(10))
    successor = await shard.adopted(11)
    began = time.monotonic()
    assert await successor.recover([], dead_below=11) == 1
    assert claimed_urls(await claim_within(successor)) == [page(1)]
    assert time.monotonic() - began >= 0.05


async def _lose_a_claim(shard: Shard, token: int) -> tuple[list[Claim], list[Claim]]:
    """Return what an owner holds and what it claimed without getting the answer."""
    owner = await shard.adopted(token)
    held = (await claim(owner, 2)).claims
    lost = (await claim(owner, 2)).claims
    return held, lost


async def test_claims_whose_answer_was_lost_are_found_and_held_ones_are_kept(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=4, delay=0).create()
    await shard.offer(*pages(4))
    held, lost = await _lose_a_claim(shard, 10)
    owner = await shard.adopted(10)
    assert await owner.recover({one.number for one in held}, dead_below=0) == 2
    seen = await shard.assert_sound()
    assert set(seen.slots) == {one.number for one in held}, "a lost claim was never sent"
    assert await commit(owner, held) == []
    again = (await claim(owner)).claims
    assert _owners(again) == dict.fromkeys(pages(4)[2:], 0), "no owner was lost"
    assert await commit(owner, lost) == [one.number for one in lost]


async def test_recovering_leaves_claims_made_since_the_adoption_alone(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=4).create()
    await shard.offer(*pages(2))
    owner = await shard.adopted()
    held = (await claim(owner)).claims
    assert await owner.recover([], dead_below=0) == 0
    assert await commit(owner, held) == []


async def test_recovering_twice_requeues_once(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=4).create()
    await shard.offer(*pages(4))
    await _lose_a_claim(shard, 10)
    owner = await shard.adopted(11)
    assert await owner.recover([], dead_below=0) == 4
    assert await owner.recover([], dead_below=0) == 0
    assert (await shard.counters())["queued"] == 4


async def test_slots_of_claims_long_requeued_expire(make_shard: MakeShard, short_hold: int) -> None:
    """The ghost of a ghost: two owners later its slot still ends by itself."""
    shard = await make_shard(delay=0, timeout=0.1).create()
    await shard.offer(page(1))
    await claim(await shard.adopted(10))
    await (await shard.adopted(11)).recover([], dead_below=0)
    successor = await shard.adopted(12)
    await successor.recover([], dead_below=0)
    assert (await looked(successor)).wait_ms <= short_hold + 100
    assert claimed_urls(await claim_within(successor)) == [page(1)]
    await shard.assert_sound()
