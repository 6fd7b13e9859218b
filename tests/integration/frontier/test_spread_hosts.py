"""A host whose URLs lie in several shards: settings, listing, look-up and its exact page budget."""

from __future__ import annotations

import random

import msgspec

from common.frontier.hosts import Hosts
from common.frontier.job import MasterFence
from common.frontier.ledger import Entry, Ledger, Spent
from common.frontier.lookup import Lookup, Queued
from common.frontier.offers import shard_of_url
from common.frontier.replies import Offered, Refusal, ShardState
from common.model.ids import Revision, Token
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import FENCE, HOST, JOB, Shard, claim, item_for, page, pages

REVISION = Revision(FENCE.revision)
SHARDS = 4


async def spread(make_shard: MakeShard, **options: object) -> list[Shard]:
    """Return a new job's shards, with 40 pages of one host offered to them."""
    first = await make_shard(shard_by="url", shards=SHARDS, **options).create()
    shards = [Shard(first.client, first.cluster, first.spec, number=n) for n in range(SHARDS)]
    groups = first.offers.by_shard([item_for(one) for one in pages(40)])
    assert set(range(SHARDS)) == set(groups)
    for number, found in groups.items():
        assert isinstance(await first.offers.offer(number, found), Offered)
    return shards


async def test_a_setting_holds_in_every_shard_and_the_host_is_listed_once(
    make_shard: MakeShard,
) -> None:
    shards = await spread(make_shard)
    first = shards[0]
    hosts = Hosts(first.client, cluster=first.cluster, job=JOB, spec=first.spec)
    assert await hosts.change(HOST, "block", revision=REVISION) is None
    assert await hosts.change(HOST, 250, revision=REVISION) is None
    for shard in shards:
        assert [] == (await claim(await shard.adopted(), 5)).claims
    (view,) = [view async for view in hosts.views()]
    assert (HOST, None, 40, True, 250) == (
        view.host, view.shard, view.queued, view.is_blocked, view.delay_ms,
    )  # fmt: skip
    assert await hosts.change(HOST, "unblock", revision=REVISION) is None
    taken = [await claim(await shard.adopted(11), 5) for shard in shards]
    (view,) = [view async for view in hosts.views()]
    assert sum(len(one.claims) for one in taken) == view.in_flight > 0
    await first.master.apply(ShardState.OPEN, fence=MasterFence(6, 60))
    assert await hosts.change(HOST, "block", revision=REVISION) is Refusal.STALE


async def test_a_url_is_found_in_its_own_shard(make_shard: MakeShard) -> None:
    first = (await spread(make_shard))[0]
    lookup = Lookup(first.client, cluster=first.cluster, job=JOB, spec=first.spec)
    for number in range(40):
        assert await lookup.is_seen(page(number))
        assert isinstance(await lookup.find(page(number)), Queued)
    by_host = msgspec.structs.replace(first.spec, shard_by="host")
    assert 1 < len({shard_of_url(one, first.spec) for one in pages(40)})
    assert 1 == len({shard_of_url(one, by_host) for one in pages(40)})


async def ledger_of(make_shard: MakeShard, limit: int) -> Ledger:
    shard = await make_shard(shard_by="url", shards=SHARDS, max_pages_per_host=limit).create()
    return Ledger(shard.client, cluster=shard.cluster, job=JOB, spec=shard.spec)


async def test_a_budget_is_full_while_it_may_come_free_and_spent_when_it_cannot(
    make_shard: MakeShard,
) -> None:
    ledger, token = await ledger_of(make_shard, 2), Token(10)
    assert await ledger.enter(HOST, page(1), token=token) is Entry.ENTERED
    assert await ledger.enter(HOST, page(1), token=token) is Entry.ENTERED
    assert await ledger.enter(HOST, page(2), token=token) is Entry.ENTERED
    assert await ledger.enter(HOST, page(3), token=token) is Entry.FULL
    await ledger.settle([Spent(HOST, page(1), is_page=False)], token=token)
    assert await ledger.enter(HOST, page(3), token=token) is Entry.ENTERED
    done = [Spent(HOST, page(2), is_page=True), Spent(HOST, page(3), is_page=True)]
    await ledger.settle(done, token=token)
    assert await ledger.enter(HOST, page(1), token=token) is Entry.SPENT
    assert await ledger.enter(HOST, page(2), token=token) is Entry.ENTERED


async def test_a_former_owner_gives_no_budget_free(make_shard: MakeShard) -> None:
    """Else its late word on a page that was taken over would let one page too many in."""
    ledger = await ledger_of(make_shard, 1)
    assert await ledger.enter(HOST, page(1), token=Token(10)) is Entry.ENTERED
    assert await ledger.enter(HOST, page(1), token=Token(20)) is Entry.ENTERED
    await ledger.settle([Spent(HOST, page(1), is_page=False)], token=Token(10))
    assert await ledger.enter(HOST, page(2), token=Token(15)) is Entry.FULL
    assert await ledger.enter(HOST, page(1), token=Token(10)) is Entry.FULL
    await ledger.settle([Spent(HOST, page(1), is_page=True)], token=Token(20))
    assert await ledger.enter(HOST, page(2), token=Token(15)) is Entry.SPENT


async def test_a_ledger_of_a_job_that_is_gone_is_not_made(make_shard: MakeShard) -> None:
    shard = make_shard(shard_by="url", shards=SHARDS, max_pages_per_host=1)
    ledger = Ledger(shard.client, cluster=shard.cluster, job=JOB, spec=shard.spec)
    assert await ledger.enter(HOST, page(1), token=Token(10)) is Refusal.MISSING


async def test_random_histories_spend_a_budget_exactly(make_shard: MakeShard) -> None:
    """Owners enter, settle, end without a word and are followed by others, in any order."""
    rng = random.Random(7)
    ledger, limit = await ledger_of(make_shard, 5), 5
    is_page = {page(n): rng.random() < 0.6 for n in range(30)}
    token, waiting, flying, ended = 10, list(is_page), {}, {}
    while waiting or flying:
        match rng.choice(["enter", "enter", "settle", "die"]):
            case "enter" if waiting:
                url = waiting.pop(0)
                match await ledger.enter(HOST, url, token=Token(token)):
                    case Entry.ENTERED:
                        flying[url] = token
                    case Entry.FULL:
                        assert flying or ended
                        waiting.append(url)
                    case Entry.SPENT:
                        assert limit == sum(ended.values())
                        ended[url] = False
            case "settle" if flying:
                url = rng.choice(list(flying))
                spent = Spent(HOST, url, is_page=is_page[url])
                await ledger.settle([spent], token=Token(flying.pop(url)))
                if rng.random() < 0.2:  # its commit was refused: the next owner does it again
                    waiting.append(url)
                    token += 1
                else:
                    ended[url] = is_page[url]
            case "die":
                token += 1
                waiting += flying
                flying = {}
    assert limit == sum(ended.values()), "exactly as many pages as allowed"
