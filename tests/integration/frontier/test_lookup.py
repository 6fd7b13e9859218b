"""Finding one URL among many, wherever it is, without changing anything."""

from __future__ import annotations

import json
import time

import pytest

from common.frontier.lookup import Delayed, Ended, InFlight, Lookup, Queued
from common.frontier.replies import Claim
from common.frontier.settling import Finished
from common.model.records import Outcome
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import (
    JOB,
    Shard,
    again,
    claim,
    claimed_urls_of,
    page,
    pages,
)

MANY = 1300
"""More than the steps in which queues and records are read."""


def lookup_of(shard: Shard) -> Lookup:
    return Lookup(shard.client, cluster=shard.cluster, job=JOB, spec=shard.spec)


def fetched(one: Claim) -> Finished:
    record = {
        "url": claimed_urls_of([one])[0], "final_url": "", "status": 200, "outcome": "fetched",
        "depth": 0, "referrer": None, "fetched_at": "2026-01-01T00:00:00.000Z", "worker": "w",
        "token": 10,
    }  # fmt: skip
    return Finished(one.number, one.host, 0, 0, Outcome.FETCHED, json.dumps(record).encode())


@pytest.mark.parametrize("seen", ["exact", "bloom"])
async def test_a_url_is_found_on_every_station_of_its_way(make_shard: MakeShard, seen: str) -> None:
    shard = await make_shard(per_host=50, seen=seen).create()
    owner = await shard.adopted()
    lookup = lookup_of(shard)
    assert not await lookup.is_seen(page(0))
    await shard.offer(*pages(MANY))
    before = await shard.look()
    assert all([await lookup.is_seen(one) for one in (page(0), page(700), page(MANY - 1))])
    assert not await lookup.is_seen(page(MANY))
    for number in (0, 700, MANY - 1):
        place = await lookup.find(page(number))
        assert isinstance(place, Queued)
        assert (place.item.url, place.before) == (page(number), number)
        assert place.ready_at_ms is not None
        assert abs(place.ready_at_ms - before.now_ms) < 60_000
    first, second, *_ = (await claim(owner, 5)).claims
    flying = await lookup.find(page(0))
    assert isinstance(flying, InFlight)
    assert (flying.claim, flying.token, flying.item.url) == (first.number, 10, page(0))
    assert flying.since_ms is not None
    assert abs(flying.since_ms - time.time() * 1000) < 60_000
    await owner.settle(retries=[again(first, after_ms=30_000)], finished=[fetched(second)])
    delayed = await lookup.find(page(0))
    assert isinstance(delayed, Delayed)
    assert delayed.item.attempt == 2
    assert 0 < delayed.until_ms - time.time() * 1000 < 60_000
    ended = await lookup.find(page(1))
    assert isinstance(ended, Ended)
    assert ended.record.outcome is Outcome.FETCHED
    await shard.assert_sound()


async def test_a_record_is_found_among_many_and_missed_once_it_was_trimmed(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=1000).create()
    owner = await shard.adopted()
    await shard.offer(*pages(MANY))
    while claims := (await claim(owner, 500)).claims:
        await owner.settle(finished=[fetched(one) for one in claims])
    lookup = lookup_of(shard)
    for number in (0, 600, MANY - 1):
        place = await lookup.find(page(number))
        assert isinstance(place, Ended)
        assert place.record.url == page(number)
    await shard.client.commands([("XTRIM", shard.keys.results, "MAXLEN", 0)])
    assert await lookup.find(page(0)) is None
    assert await lookup.is_seen(page(0))


async def test_a_staged_seed_is_found_before_it_is_offered(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await shard.master.stage(0, pages(3))
    lookup = lookup_of(shard)
    assert await lookup.is_staged(page(2))
    assert not await lookup.is_staged(page(3))
    assert not await lookup.is_in_scope(page(9))
    await shard.master.offer_seeds(pages(3))
    assert await lookup.is_in_scope(page(9))
