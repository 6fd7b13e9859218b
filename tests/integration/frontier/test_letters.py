"""Dead letters put back: counted right, recorded once, and never under a finished job."""

from __future__ import annotations

import json

import pytest

from common.frontier import audit, items
from common.frontier.job import MasterFence
from common.frontier.letters import DeadLetter
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Claim, Refusal, ShardState
from common.frontier.results import ResultGroup
from common.frontier.settling import Finished
from common.model.ids import Revision
from common.model.records import Outcome
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    FENCE,
    JOB,
    Shard,
    claim,
    claimed_urls,
    commit,
    drain,
    page,
    pages,
)

REVISION = Revision(FENCE.revision)


async def letters(shard: Shard) -> list[DeadLetter]:
    return [one async for _, found in shard.letters.pages() for one in found]


def given_up(one: Claim) -> Finished:
    known = items.decode(one.host, one.item)
    record = {
        "url": known.url, "status": 503, "attempt": 4, "fetched_at": "2026-01-01T00:00:00.000Z",
        "error": {"code": "server_error", "message": "the server answered 503"},
    }  # fmt: skip
    letter = items.encode(known._replace(owners=5))
    return Finished(one.number, one.host, 0, 0, Outcome.DEAD, json.dumps(record).encode(), letter)


async def with_dead(shard: Shard, count: int) -> TaskFrontier:
    """Return an owner of the shard all of whose URLs have died."""
    owner = await shard.adopted()
    await shard.offer(*pages(count))
    await owner.settle(finished=[given_up(one) for one in (await claim(owner, count)).claims])
    return owner


async def test_a_letter_says_what_happened(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=3).create()
    await with_dead(shard, 3)
    found = await letters(shard)
    assert sorted(one.item.url for one in found) == pages(3)
    assert {(one.code, one.status, one.attempts) for one in found} == {("server_error", 503, 4)}
    assert {one.message for one in found} == {"the server answered 503"}


async def test_letters_put_back_are_tried_anew_and_end_as_one_record_each(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=3).create()
    owner = await with_dead(shard, 3)
    found = await letters(shard)
    assert await shard.letters.put_back(0, found[:2], revision=REVISION) == 2
    seen = await shard.assert_sound()
    assert (seen.meta["dead"], seen.meta["queued"], seen.meta["discovered"]) == ("1", "2", "3")
    assert seen.results == [found[2].item.url], "a URL that is waiting again has no record"
    # The same call again, its first answer lost: nothing is queued twice.
    assert await shard.letters.put_back(0, found, revision=REVISION) == 1
    answer = await claim(owner, 10)
    assert sorted(claimed_urls(answer)) == pages(3)
    fresh = [items.decode(one.host, one.item) for one in answer.claims]
    assert {(item.attempt, item.owners) for item in fresh} == {(1, 0)}
    await commit(owner, answer.claims)
    await shard.assert_sound()
    assert sorted(await shard.records()) == pages(3)
    assert await letters(shard) == []


async def test_a_letter_whose_record_was_trimmed_is_missing_no_more_once_it_is_put_back(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=3).create()
    group = ResultGroup(
        shard.client, cluster=shard.cluster, job=JOB, shards=1, group="g", reader="r"
    )
    await group.enrol()
    owner = await with_dead(shard, 3)
    given = await group.new(0, count=10)
    await group.acknowledge(0, [one.entry for one in given[:2]])
    assert await group.trim(0) == 2
    assert await shard.letters.put_back(0, await letters(shard), revision=REVISION) == 3
    assert (await shard.stats()).trimmed == 0
    await shard.assert_sound()
    await commit(owner, (await claim(owner, 10)).claims)
    await shard.assert_sound()
    (held,) = await audit.held(shard.client, cluster=shard.cluster, job=JOB, shards=[0])
    assert held.differences == {}


@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        (ShardState.SEALED, Refusal.RETRY),
        (ShardState.SPENT, Refusal.CLOSED),
        (ShardState.CANCELLED, Refusal.CLOSED),
        (ShardState.CLOSED, Refusal.CLOSED),
    ],
)
async def test_nothing_is_put_back_where_it_would_not_be_fetched(
    make_shard: MakeShard, state: ShardState, refusal: Refusal
) -> None:
    shard = await make_shard().create()
    await with_dead(shard, 1)
    await shard.master.apply(state, fence=FENCE)
    found = await letters(shard)
    assert await shard.letters.put_back(0, found, revision=REVISION) is refusal
    assert await letters(shard) == found


async def test_a_decision_on_an_older_job_record_puts_nothing_back(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await with_dead(shard, 1)
    later = MasterFence(FENCE.term, FENCE.revision + 1)
    await shard.master.apply(ShardState.OPEN, fence=later)
    found = await letters(shard)
    assert await shard.letters.put_back(0, found, revision=REVISION) is Refusal.STALE


async def test_a_shard_that_was_refilled_since_it_was_seen_is_not_sealed(
    make_shard: MakeShard,
) -> None:
    """Back, fetched and ended again between two looks: only ``refilled`` tells."""
    shard = await make_shard().create()
    owner = await with_dead(shard, 1)
    seen = await shard.master.stats()
    assert await shard.letters.put_back(0, await letters(shard), revision=REVISION) == 1
    (one,) = (await claim(owner)).claims
    await owner.settle(finished=[given_up(one)])
    now = await shard.master.stats()
    assert now[0].counters == seen[0].counters
    assert not await shard.master.seal(seen, fence=FENCE)
    assert await shard.master.seal(now, fence=FENCE)


async def test_a_restarted_servers_shard_waits_for_its_owner(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await with_dead(shard, 1)
    found = await letters(shard)
    await shard.client.commands([("HSET", shard.keys.meta, "run", "another")])
    assert await shard.letters.put_back(0, found, revision=REVISION) is Refusal.RUN
    await drain(await shard.adopted(11))
    assert await shard.records() == [page(0)]
