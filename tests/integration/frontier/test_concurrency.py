"""Many offerers and changing owners at once: each URL ends as exactly one result."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from common.frontier.replies import Claimed
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import Shard, claim, commit, page

URLS = 5_000
OFFERERS = 8
HOSTS = 40


def _urls() -> list[str]:
    return [page(number, f"http://h{number % HOSTS}.example") for number in range(URLS)]


async def _offer_all(shard: Shard, share: list[str], rng: random.Random) -> None:
    other = Shard(shard.client, shard.cluster, shard.spec)
    while share:
        size = rng.randrange(1, 400)
        batch, share = share[:size], share[size:]
        await other.offer(*batch, *rng.choices(_urls(), k=30))


async def _own_for_a_while(shard: Shard, token: int, rng: random.Random) -> bool:
    """Crawl as one owner, and leave claims behind; return whether all is done."""
    owner = await shard.adopted(token)
    await owner.recover([], dead_below=token)
    for _ in range(rng.randrange(5, 40)):
        answer = await claim(owner, 64)
        held = answer.claims
        rng.shuffle(held)
        kept = held if rng.random() < 0.7 else held[: len(held) // 2]
        if kept:
            await commit(owner, kept)
        if rng.random() < 0.1:
            await commit(owner, kept)
    done = (await shard.counters())["fetched"]
    return done == URLS


async def test_offerers_and_changing_owners_make_one_result_of_each_url(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard(per_host=64).create()
    rng = random.Random(11)
    urls = _urls()
    shares = []
    for _ in range(OFFERERS):
        share = urls[:]
        rng.shuffle(share)
        shares.append(share[: URLS // 2])
    shares[0] = urls[:]

    async def own() -> int:
        token = 10
        while not await _own_for_a_while(shard, token, rng):
            token += 1
        return token

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for share in shares:
            group.create_task(_offer_all(shard, share, rng))
        last = group.create_task(own())
    assert last.result() > 11, "there was no takeover"
    seen = await shard.assert_sound()
    assert Counter(seen.results) == Counter(urls)
    assert (seen.queues, seen.in_flight, seen.slots) == ({}, {}, {})


async def test_two_owners_at_once_never_both_settle_a_url(make_shard: MakeShard) -> None:
    """The former owner goes on as if nothing had happened; every answer it gets is a refusal."""
    shard = await make_shard(per_host=64).create()
    await shard.offer(*_urls()[:400])
    former = await shard.adopted(10)
    held = (await claim(former, 64)).claims
    successor = await shard.adopted(11)
    await successor.recover([], dead_below=11)

    async def haunt() -> None:
        for one in held:
            answer = await former.claim(5, [(one.host, 0)])
            assert not isinstance(answer, Claimed)
            await former.free([(one.number, 0)])

    async def work() -> None:
        while (answer := await claim(successor, 16)).claims:
            await commit(successor, answer.claims)

    await asyncio.gather(haunt(), work())
    seen = await shard.assert_sound()
    assert Counter(seen.results) == Counter(_urls()[:400])
