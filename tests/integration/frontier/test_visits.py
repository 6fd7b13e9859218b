"""Pages visited again: due once, under the owner's token, with one record at any moment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from common.frontier import audit, items
from common.frontier.job import MasterFence
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Adopted, Claim, Refusal, ShardState
from common.frontier.results import ResultGroup
from common.frontier.settling import Settled
from common.frontier.visits import Outdated, Recalled, Waiting, decode_known, waiting
from common.model.ids import Revision
from common.model.records import Outcome
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    FENCE,
    JOB,
    Shard,
    again,
    back,
    claim,
    claimed_urls,
    finished,
    page,
    pages,
)

HOUR = 3600.0
LATER_MS = 3_600_000


async def end(
    owner: TaskFrontier,
    claims: Sequence[Claim],
    outcome: Outcome = Outcome.FETCHED,
    *,
    after_ms: int = 0,
    letter: bool = False,
) -> None:
    """End visits; the next ones are due after a while."""
    done = [
        finished(one, outcome=outcome, visit_after_ms=after_ms, letter=one.item if letter else b"")
        for one in claims
    ]
    assert await owner.settle(finished=done) == Settled([])


async def visited(shard: Shard, count: int, **how: object) -> TaskFrontier:
    """Return an owner all of whose URLs have been visited once."""
    owner = await shard.adopted()
    await shard.offer(*pages(count))
    await end(owner, (await claim(owner, count)).claims, **how)  # type: ignore[arg-type]
    return owner


async def differences(shard: Shard) -> dict[str, tuple[int, int]]:
    (one,) = await audit.held(shard.client, cluster=shard.cluster, job=JOB, shards=[0])
    return one.differences


@pytest.fixture
async def shard(make_shard: MakeShard) -> Shard:
    return await make_shard(per_host=8, recrawl=HOUR).create()


async def test_what_is_due_is_queued_once_and_keeps_its_record_until_the_next(
    shard: Shard,
) -> None:
    owner = await visited(shard, 2)
    (first, _) = await shard.master.results(0, after="0-0", count=10)
    assert isinstance(await shard.recall(), Recalled)
    again = await shard.recall()
    assert again == Recalled(0, -1), "the same once more"
    seen = await shard.assert_sound()
    assert (seen.meta["queued"], seen.meta["fetched"], seen.meta["revisiting"]) == ("2", "0", "2")
    assert sorted(seen.results) == pages(2)
    assert await differences(shard) == {}
    claims = (await claim(owner)).claims
    known = decode_known(items.decode(claims[0].host, claims[0].item).known)
    assert known.visits == 1
    await end(owner, claims, Outcome.NOT_MODIFIED, after_ms=LATER_MS)
    seen = await shard.assert_sound()
    assert (seen.meta["not_modified"], seen.meta["revisits"]) == ("2", "2")
    assert sorted(seen.results) == pages(2)
    records = await shard.master.results(0, after="0-0", count=10)
    assert first[0] not in [entry for entry, _ in records], "the new one is in its place"
    left = await shard.recall()
    assert isinstance(left, Recalled)
    assert 0 == left.moved < left.wait_ms <= LATER_MS
    look = await waiting(shard.client, cluster=shard.cluster, job=JOB, shards=[0])
    assert look.pages == 2
    assert look.next_at_ms is not None
    assert await differences(shard) == {}


async def test_only_the_owner_recalls_and_only_by_the_newest_record_of_the_job(
    shard: Shard,
) -> None:
    await visited(shard, 1)
    await shard.adopted(11)
    assert await shard.recall(10) is Refusal.STALE
    newer = MasterFence(FENCE.term, FENCE.revision + 1)
    await shard.master.apply(ShardState.OPEN, fence=newer)
    assert await shard.recall(11) == Outdated()
    run = await shard.client.current_run(shard.keys.meta)
    other = await shard.due(11).recall(run="another", revision=Revision(99))
    assert other is Refusal.RUN
    assert run
    assert (await shard.counters())["fetched"] == 1
    assert await shard.recall(11, revision=newer.revision) == Recalled(1, -1)


async def test_a_spent_shard_that_was_set_back_recalls_nothing_by_an_older_record(
    shard: Shard,
) -> None:
    """The server came back as it was before the shard was told that the job is closed."""
    owner = await visited(shard, 1)
    await shard.master.apply(ShardState.SPENT, fence=FENCE)
    await shard.client.commands([("HSET", shard.keys.meta, "run", "before")])
    adopted = await shard.adopt(owner, revision=FENCE.revision + 1)
    assert isinstance(adopted, Adopted)
    assert (await shard.stats()).state is ShardState.SPENT
    assert await shard.recall() == Outdated()


@pytest.mark.parametrize("state", [ShardState.PAUSED, ShardState.CANCELLED, ShardState.SEALED])
async def test_nothing_comes_back_while_nothing_may_be_fetched(
    shard: Shard, state: ShardState
) -> None:
    await visited(shard, 1)
    if state is ShardState.SEALED:
        assert await shard.master.seal(await shard.master.stats(), fence=FENCE)
    else:
        await shard.master.apply(state, fence=FENCE)
    assert Recalled(0, -1, is_held=True) == await shard.recall()
    assert (await shard.counters())["fetched"] == 1


async def test_a_shard_refilled_by_visits_since_it_was_seen_is_not_sealed(shard: Shard) -> None:
    owner = await visited(shard, 1)
    seen = await shard.master.stats()
    await shard.recall()
    await end(owner, (await claim(owner)).claims, after_ms=LATER_MS)
    assert not await shard.master.seal(seen, fence=FENCE)
    assert await shard.master.seal(await shard.master.stats(), fence=FENCE)


async def test_a_visit_of_a_cancelled_job_leaves_the_record_of_the_one_before(
    shard: Shard,
) -> None:
    owner = await visited(shard, 3)
    await shard.recall()
    await shard.offer(page(9))
    await shard.master.apply(ShardState.CANCELLED, fence=FENCE)
    claims = (await claim(owner)).claims
    assert {one.rule for one in claims} == {"cancelled"}
    await end(owner, claims, Outcome.DROPPED)
    counted = await shard.counters()
    assert (counted["fetched"], counted["dropped"], counted["revisiting"]) == (3, 1, 0)
    assert sorted(await shard.records()) == sorted([*pages(3), page(9)])
    assert await differences(shard) == {}


async def test_a_dead_page_is_tried_again_by_its_visit_or_by_hand_but_not_twice(
    shard: Shard,
) -> None:
    owner = await visited(shard, 2, outcome=Outcome.DEAD, letter=True, after_ms=LATER_MS)
    found = [one async for _, some in shard.letters.pages() for one in some]
    revision = Revision(FENCE.revision)
    assert await shard.letters.put_back(0, found[:1], revision=revision) == 1
    seen = await shard.assert_sound()
    assert (len(seen.due), len(seen.visited), len(seen.results)) == (1, 1, 1)
    assert await differences(shard) == {}
    await end(owner, (await claim(owner)).claims, Outcome.DEAD, letter=True)
    await shard.client.commands([("ZADD", shard.keys.due, 0, one) for one in seen.due])
    assert await shard.recall() == Recalled(2, -1)
    assert await shard.letters.put_back(0, found, revision=revision) == 0
    assert (await shard.assert_sound()).letters == 0
    claims = (await claim(owner)).claims
    assert sorted(claimed_urls_of_both(claims)) == pages(2)
    await end(owner, claims)
    assert await differences(shard) == {}


def claimed_urls_of_both(claims: Sequence[Claim]) -> list[str]:
    return [items.decode(one.host, one.item).url for one in claims]


async def test_what_was_trimmed_is_missing_until_its_next_visit(shard: Shard) -> None:
    group = ResultGroup(
        shard.client, cluster=shard.cluster, job=JOB, shards=1, group="g", reader="r"
    )
    await group.enrol()
    owner = await visited(shard, 2)
    given = await group.new(0, count=10)
    await group.acknowledge(0, [one.entry for one in given])
    assert await group.trim(0) == 2
    assert await differences(shard) == {}
    await shard.recall()
    assert await differences(shard) == {}
    claims = (await claim(owner)).claims
    await end(owner, claims[:1], after_ms=LATER_MS)
    assert await differences(shard) == {}
    assert (await shard.stats()).trimmed == 1
    assert len(await group.new(0, count=10)) == 1, "each group gets the new record"
    await end(owner, claims[1:], after_ms=-1)
    assert await differences(shard) == {}
    look = await waiting(shard.client, cluster=shard.cluster, job=JOB, shards=[0])
    assert look == Waiting(1, look.next_at_ms), "one is gone and not visited again"


async def test_visits_again_use_up_no_page_of_the_budgets(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=8, recrawl=HOUR, max_pages=2, max_pages_per_host=2).create()
    assert await shard.master.grant(0, 2, fence=FENCE) == 2
    owner = await visited(shard, 2)
    await shard.offer(page(7))
    await shard.recall()
    await shard.offer(page(8))
    await shard.master.apply(ShardState.SPENT, fence=FENCE)
    assert (await shard.stats()).paid == 2
    rules: dict[str, str] = {}
    for _ in range(3):
        answer = await claim(owner)
        rules |= dict(zip(claimed_urls(answer), [one.rule for one in answer.claims], strict=True))
        for one in answer.claims:
            await end(owner, [one], Outcome.DROPPED if one.rule else Outcome.FETCHED)
    assert rules == {page(0): "", page(1): "", page(7): "max_pages", page(8): "max_pages"}
    counted = await shard.counters()
    assert (counted["fetched"], counted["dropped"], counted["revisits"]) == (2, 2, 2)
    stats = await shard.stats()
    assert (stats.paid, stats.paid_in_flight) == (0, 0)
    assert await shard.master.grant(0, -5, fence=FENCE) == 0, "nothing of it is unused"


async def test_visits_that_are_given_back_or_taken_over_stay_paid_for(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=8, recrawl=HOUR, max_pages=3).create()
    assert await shard.master.grant(0, 3, fence=FENCE) == 3
    owner = await visited(shard, 3)
    await shard.recall()
    first, second, _ = (await claim(owner)).claims
    assert ((await shard.stats()).paid, (await shard.stats()).paid_in_flight) == (3, 3)
    await owner.settle(retries=[again(first, after_ms=0)], releases=[back(second)])
    assert (await shard.stats()).paid_in_flight == 1
    successor = await shard.adopted(11)
    assert await successor.recover([], dead_below=0) == 1
    stats = await shard.stats()
    assert (stats.paid, stats.paid_in_flight) == (3, 0)
    assert await shard.master.grant(0, -3, fence=FENCE) == 0, "nothing of it is unused"
