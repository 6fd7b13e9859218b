"""Offers: each URL is admitted once, none is skipped, whoever offers and however often."""

from __future__ import annotations

import asyncio
import random
import re
import struct
from collections import defaultdict

import pytest

from common.frontier import items
from common.frontier.offers import MAX_BATCH
from common.frontier.replies import Offered, Refusal, ShardState
from common.frontier.seen import (
    BUCKET_BYTES,
    SeenLayout,
    block_span,
    buckets_of,
    capacity,
    fingerprint,
)
from common.model.counters import is_balanced
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import FENCE, HOST, Shard, item_for, page, pages
from tests.support.servers import RedisServer

SEEN_MODES = ("exact", "bloom")


@pytest.mark.parametrize("seen", SEEN_MODES)
async def test_a_url_is_admitted_once_in_a_batch_and_across_batches(
    make_shard: MakeShard, seen: str
) -> None:
    shard = await make_shard(seen=seen).create()
    assert await shard.offer(page(1), page(2), page(1)) == Offered(2, 2)
    assert await shard.offer(page(2), page(3), page(1)) == Offered(1, 3)
    assert await shard.offer(page(1), page(2), page(3)) == Offered(0, 3)
    seen_now = await shard.assert_sound()
    assert seen_now.queues[HOST] == pages(4)[1:]


async def test_an_offer_of_known_urls_writes_nothing(
    make_shard: MakeShard, data_server: RedisServer
) -> None:
    """Nothing to sync to the disk, so most offers cost no write."""
    shard = await make_shard().create()
    await shard.offer(*pages(100))

    async def log_bytes() -> int:
        (info,) = await shard.client.commands([("INFO", "persistence")])
        return int(re.search(rb"aof_current_size:(\d+)", info)[1])  # type: ignore[index]

    before = await log_bytes()
    assert await shard.offer(*pages(100)) == Offered(0, 100)
    assert await log_bytes() == before


async def test_an_empty_offer_changes_nothing(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    assert await shard.offer() == Offered(0, 0)


async def test_urls_of_a_host_are_queued_in_the_order_offered(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    found = [page(number, host) for number in range(700) for host in (HOST, "http://b.example")]
    await shard.offer(*found)
    queues = (await shard.assert_sound()).queues
    assert queues[HOST] == pages(700)
    assert queues["http://b.example"] == pages(700, "http://b.example")


@pytest.mark.parametrize("seen", SEEN_MODES)
async def test_growing_layers_skip_nothing_and_admit_nothing_twice(
    make_shard: MakeShard, seen: str
) -> None:
    shard = await make_shard(seen=seen, shards=1).create()
    rng = random.Random(7)
    known: set[str] = set()
    admitted = 0
    while len(known) < 10_000:
        batch = [page(rng.randrange(12_500), f"http://h{rng.randrange(3)}.example")
                 for _ in range(MAX_BATCH * 2)]  # fmt: skip
        answer = await shard.offer(*batch)
        admitted += answer.admitted
        known.update(batch)
        assert answer.discovered == admitted
        assert admitted == len(known)  # mode bloom: one in a million may be skipped
    assert await shard.offer(*known) == Offered(0, len(known))
    stats = await shard.stats()
    assert stats.layers == 2
    assert int((await shard.look()).meta["inserted"]) <= len(known) - capacity(0)
    assert capacity(0) < len(known) < capacity(0) + capacity(1)
    assert stats.seen_estimate == pytest.approx(len(known), rel=0.05)
    assert sorted(url for queue in (await shard.assert_sound()).queues.values() for url in queue
                  ) == sorted(known)  # fmt: skip


async def test_an_offerer_that_knows_fewer_or_more_layers_is_told(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await shard.client.commands([("HSET", shard.keys.meta, "layers", 3)])
    await shard.offer(page(1))
    assert shard.offers._layers == [3]
    await shard.client.commands([("HSET", shard.keys.meta, "layers", 2)])
    assert await shard.offer(page(1), page(2)) == Offered(2, 3), "layer 2 is new: nothing in it"
    assert shard.offers._layers == [2]


async def test_urls_in_older_layers_are_found(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await shard.offer(*pages(50))
    for layers in (2, 3, 4, 5, 6):
        await shard.client.commands([("HSET", shard.keys.meta, "layers", layers)])
        new = page(1000 + layers)
        assert (await shard.offer(*pages(50), new)).admitted == 1
        assert (await shard.offer(new)).admitted == 0
    await shard.assert_sound()


async def test_a_false_hit_of_the_filter_is_what_loses_a_url(make_shard: MakeShard) -> None:
    """One whose every bit is set says "seen" to everything."""
    shard = await make_shard(seen="bloom").create()
    buckets = [
        shard.keys.filter(0, at) for at in range(buckets_of(0, "bloom", shard.spec.seen_rate))
    ]
    await shard.client.commands([("SET", name, b"\xff" * BUCKET_BYTES) for name in buckets])
    assert await shard.offer(*pages(300)) == Offered(0, 0)


async def test_a_filter_holds_the_bits_of_what_was_admitted_and_no_others(
    make_shard: MakeShard,
) -> None:
    """One bit too many is noticed by nobody: it only makes errors more frequent than stated."""
    shard = await make_shard(seen="bloom").create()
    layout = SeenLayout(shard.keys, mode="bloom", rate=shard.spec.seen_rate)
    expected: dict[str, bytearray] = defaultdict(lambda: bytearray(BUCKET_BYTES))
    batches = [pages(700), [*pages(1400)[600:], *pages(50, "http://b.example")]]
    known: set[str] = set()
    for layers, batch in enumerate(batches, 1):
        await shard.client.commands([("HSET", shard.keys.meta, "layers", layers)])
        assert (await shard.offer(*batch, *batch)).admitted == len({*batch} - known)
        for one in {*batch} - known:
            seen = fingerprint(one, "bloom")
            bucket = expected[layout.buckets(seen, layers)[-1]]
            _, *pairs = struct.unpack("<B" + 6 * "Bi", seen.bits)
            for byte, mask in zip(pairs[::2], pairs[1::2], strict=True):
                at = block_span(seen)[0] + byte - 1
                before = int.from_bytes(bucket[at : at + 4], "little")
                bucket[at : at + 4] = (before | mask & 0xFFFFFFFF).to_bytes(4, "little")
        known |= {*batch}
    (names,) = await shard.client.commands([("KEYS", shard.keys.meta.removesuffix("meta") + "b:*")])
    assert {name.decode() for name in names} == set(expected)
    found = await shard.client.commands([("GET", name) for name in expected])
    assert dict(zip(expected, found, strict=True)) == expected


async def test_mode_exact_knows_a_url_by_its_fingerprint_alone(make_shard: MakeShard) -> None:
    """Taking the buckets of an older layer away makes what is known there new again."""
    shard = await make_shard().create()
    await shard.offer(*pages(50))
    await shard.client.commands([("HSET", shard.keys.meta, "layers", 2)])
    assert (await shard.offer(*pages(50))).admitted == 0
    buckets = [shard.keys.fingerprints(0, bucket) for bucket in range(16)]
    await shard.client.commands([("DEL", *buckets)])
    assert (await shard.offer(*pages(50))).admitted == 50


async def test_fingerprints_stay_packed_at_full_load(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await shard.offer(*pages(capacity(0)))
    names = [shard.keys.fingerprints(0, bucket) for bucket in range(16)]
    encodings = await shard.client.commands([("OBJECT", "ENCODING", name) for name in names])
    assert set(encodings) == {b"intset"}
    assert (await shard.stats()).layers == 2


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (ShardState.SEALED, Refusal.RETRY),
        (ShardState.CLOSED, Refusal.CLOSED),
        (ShardState.CANCELLED, Refusal.CLOSED),
        (ShardState.PAUSED, Offered(1, 1)),
        (ShardState.SPENT, Offered(1, 1)),
    ],
)
async def test_what_an_offer_is_answered_depends_on_the_state(
    make_shard: MakeShard, state: ShardState, answer: object
) -> None:
    shard = await make_shard().create(state)
    assert await shard.try_offer(page(1)) == answer


async def test_offers_of_several_at_once_admit_each_url_once(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    others = [Shard(shard.client, shard.cluster, shard.spec) for _ in range(6)]
    rng = random.Random(3)
    answers = await asyncio.gather(*(other.offer(*rng.sample(pages(900), 700)) for other in others))
    total = (await shard.counters())["discovered"]
    assert sum(answer.admitted for answer in answers) == total
    seen = await shard.assert_sound()
    assert len(seen.queues[HOST]) == total


async def test_urls_and_hosts_with_odd_characters_come_out_as_they_went_in(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    odd = [
        "http://[2001:db8::1]:8080/",
        "http://[::ffff:1.2.3.4]/a?b=c#".rstrip("#"),
        "https://xn--bcher-kva.example/%E2%82%AC?q={x}&%0A=%00",
        "http://a-b_c.example/{job:1}:q:http://b.example",
        "http://1.2.3.4:65535/*?[a]^$;|\\'\"",
        "http://x.example/" + "y" * 8000,
    ]
    await shard.offer(*odd)
    seen = await shard.assert_sound()
    assert sorted(url for queue in seen.queues.values() for url in queue) == sorted(odd)
    owner = await shard.adopted()
    answer = await owner.claim(10, [(host, 0) for host, _ in (await owner.claim(0, [])).ahead])  # type: ignore[union-attr]
    seen = await shard.assert_sound()
    assert sorted(url for _, _, url in seen.in_flight.values()) == sorted(odd)
    assert len(answer.claims) == len(odd)  # type: ignore[union-attr]


async def test_referrer_and_depth_of_the_first_offer_stay(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    first = item_for(page(1), depth=2, referrer=f"{HOST}/from?x=1")
    await shard.offers.offer(0, [first])
    await shard.offers.offer(0, [item_for(page(1), depth=0)])
    (raw,) = await shard.client.commands([("LRANGE", shard.keys.queue(first.host), 0, -1)])
    assert [items.decode(first.host, one) for one in raw] == [first]


async def test_a_refused_offer_leaves_the_counters_alone(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    await shard.offer(page(1))
    await shard.master.apply(ShardState.SEALED, fence=FENCE)
    assert await shard.try_offer(page(2)) is Refusal.RETRY
    stats = await shard.stats()
    assert is_balanced(stats.counters)
    assert stats.counters["discovered"] == stats.seen_estimate == 1
