#!/usr/bin/env python3
"""What remembering a URL costs: ours, exact and bloom, beside what others do, in one run.

usage: seen_set.py [--urls N] [--batch 256] [--shards N] [--rounds N] [--only NAME ...] [--fsync no]

Each variant first takes N new URLs, then as many again of which 90 % are known (a crawl's mix), and
is charged the CPU time of the server's main thread. Ours also queues what is new, fences, counts
and keeps a HyperLogLog, in calls of at most 128; the others only remember. The mix is the figure
compared:

- ``sadd``: SADD of the SHA-1, pipelined, the least that a set can do with an answer for each URL;
- ``sadd_round_trips``: the same, one round trip a URL, as scrapy-redis does it;
- ``setbit_lua``: a Bloom filter of the rate of ours by k SETBITs a URL in Lua.

A filter is begun whole when the one before is full, so that bytes a URL depend on N: with 117,000
URLs and a shard of its own three layers are full at the end, with 9,200,000 and 20 shards four.

Also told: bytes a URL of the seen-set alone, URLs falsely skipped, and for bloom the rate that the
server's own bits give to a URL never offered (the mean over all blocks), beside the stated one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_server import BenchServer, bench_server

from common.frontier.items import Item
from common.frontier.job import JobFrontier, MasterFence
from common.frontier.keys import TaskKeys
from common.frontier.offers import Offers
from common.frontier.replies import Offered, ShardState
from common.frontier.seen import (
    BITS_A_WORD,
    BLOCK_BYTES,
    BUCKET_BLOCKS,
    PART_WORDS,
    WORDS,
    SeenLayout,
    estimated_rate,
)  # fmt: skip
from common.model.ids import HostKey, JobId, Task
from common.model.job import JobSpec
from tests.support.arguments import Parser, program, real, whole

JOB = JobId("bench")
PER_HOST = 50
RUN = 10
TARGETS = {
    ("exact", "sadd"): 0.25, ("bloom", "sadd"): 0.25,
    ("exact", "sadd_round_trips"): 8, ("bloom", "sadd_round_trips"): 8,
    ("exact", "setbit_lua"): 3, ("bloom", "setbit_lua"): 3,
}  # fmt: skip
VARIANTS = ("exact", "bloom", "sadd", "sadd_round_trips", "setbit_lua")
BYTES_TARGET = {"exact": 11.0, "bloom": 6.0}

SETBIT_LUA = """
local m, k, out = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
for n = 3, #ARGV, 2 do
  local a, b, new = tonumber(ARGV[n]), tonumber(ARGV[n + 1]), 0
  for i = 0, k - 1 do
    if redis.call('SETBIT', KEYS[1], (a + i * b) % m, 1) == 0 then new = 1 end
  end
  out[#out + 1] = new
end
return out
"""


def item_of(number: int) -> Item:
    """Return URL ``number``: 73 bytes, 50 URLs a host."""
    host = f"http://host-{number // PER_HOST:08d}.example"
    path = f"/articles/{number:09d}"
    return Item(HostKey(host), path + "x" * (73 - len(host) - len(path)), 1, None)


class Figure(NamedTuple):
    """What a variant did in one round."""

    new: float
    """URLs a CPU second, all of them new."""
    mix: float
    """The same, 90 % of them known."""
    bytes_a_url: float
    skipped: int
    """URLs that were new and were said to be known."""


Take = Callable[[Sequence[int]], Awaitable[int]]
"""Remembers URLs; returns how many were new."""


async def measure(
    server: BenchServer, take: Take, *, urls: int, batch: int, known_share: float, seed: int
) -> tuple[float, float, int]:
    """Return URLs a CPU second for new ones and for the mix, and how many were skipped."""
    rng = random.Random(seed)
    fresh = urls
    mix: list[int] = []
    while len(mix) < urls:
        # The links of a page lead to few hosts: so many in a row of one host.
        first = rng.randrange(urls // PER_HOST) * PER_HOST
        for _ in range(RUN):
            if rng.random() < known_share:
                mix.append(first + rng.randrange(PER_HOST))
            else:
                mix.append(fresh)
                fresh += 1
    began, admitted = server.cpu_s(), 0
    for start in range(0, urls, batch):
        admitted += await take(range(start, min(start + batch, urls)))
    middle = server.cpu_s()
    for start in range(0, len(mix), batch):
        admitted += await take(mix[start : start + batch])
    ended = server.cpu_s()
    return urls / (middle - began), len(mix) / (ended - middle), fresh - admitted


async def ours(server: BenchServer, spec: JobSpec, **how: float) -> Figure:
    client = server.client
    await server.do("FLUSHALL")
    job = JobFrontier(client, cluster="c", job=JOB, spec=spec)
    await job.create(fence=MasterFence(1, 1), state=ShardState.OPEN)
    offers = Offers(client, cluster="c", job=JOB, spec=spec)

    async def take(numbers: Sequence[int]) -> int:
        admitted = 0
        for shard, found in offers.by_shard([item_of(number) for number in numbers]).items():
            answer = await offers.offer(shard, found)
            assert isinstance(answer, Offered), answer
            admitted += answer.admitted
        return admitted

    new, mix, skipped = await measure(server, take, **how)  # type: ignore[arg-type]
    discovered = sum(stats.counters["discovered"] for stats in await job.stats())
    shards = [TaskKeys("c", Task(JOB, shard)) for shard in range(spec.shards)]
    if spec.seen == "bloom":
        await _report_rate(server, spec, shards[0])
    size = sum([await seen_bytes(server, keys) for keys in shards]) / discovered
    return Figure(new, mix, size, skipped)


async def _report_rate(server: BenchServer, spec: JobSpec, keys: TaskKeys) -> None:
    """Print a shard's rate of false "seen" that follows from every bit the server holds."""
    layout = SeenLayout(keys, mode="bloom", rate=spec.seen_rate)
    layers, inserted = map(int, await server.do("HMGET", keys.meta, "layers", "inserted"))
    right = 1.0
    for layer in range(layers):
        rates: list[float] = []
        for number in range(layout.count(layer)):
            raw = await server.do("GET", layout.bucket(layer, number)) or b""
            rates.append(_bucket_rate(raw))
        right *= 1 - math.fsum(rates) / layout.count(layer)
    estimated = estimated_rate(spec.seen_rate, layers=layers, inserted=inserted)
    figures = {"stated": spec.seen_rate, "estimated": estimated, "measured": 1 - right}
    shown = {name: f"{figure:.2e}" for name, figure in figures.items()}
    print(json.dumps({"rate": shown, "layers": layers}), flush=True)


def _bucket_rate(raw: bytes) -> float:
    """Return the chance that a URL of this bucket, hashed at random, finds all its bits set."""
    part, hits = 4 * PART_WORDS, []
    for block in range(0, len(raw), BLOCK_BYTES):
        chance = 1.0
        for at in range(block, block + WORDS * part, part):
            words = [raw[word : word + 4] for word in range(at, at + part, 4)]
            ones = [int.from_bytes(word).bit_count() for word in words]
            chance *= sum((one / 32) ** BITS_A_WORD for one in ones) / PART_WORDS
        hits.append(chance)
    return math.fsum(hits) / BUCKET_BLOCKS


async def seen_bytes(server: BenchServer, keys: TaskKeys) -> int:
    """Delete the keys of the seen-set, and return what memory that gave back."""
    stem = keys.meta.removesuffix("meta")
    names = [name for kind in "bf" for name in await server.do("KEYS", f"{stem}{kind}:*")]
    before = await server.used_bytes()
    for start in range(0, len(names), 500):
        await server.do("DEL", *names[start : start + 500])
    await server.do("DEL", keys.hll)
    return before - await server.used_bytes()


def sha1(number: int) -> str:
    """Return what scrapy-redis would remember of a URL."""
    return hashlib.sha1(item_of(number).url.encode(), usedforsecurity=False).hexdigest()


async def sadd(server: BenchServer, **how: float) -> Figure:
    await server.do("FLUSHALL")
    empty = await server.used_bytes()

    async def take(numbers: Sequence[int]) -> int:
        commands = [("SADD", "dupefilter", sha1(number)) for number in numbers]
        return sum(await server.client.commands(commands))

    new, mix, skipped = await measure(server, take, **how)  # type: ignore[arg-type]
    count = await server.do("SCARD", "dupefilter")
    return Figure(new, mix, (await server.used_bytes() - empty) / count, skipped)


async def sadd_round_trips(server: BenchServer, **how: float) -> Figure:
    await server.do("FLUSHALL")
    empty = await server.used_bytes()

    async def take(numbers: Sequence[int]) -> int:
        return sum([await server.do("SADD", "dupefilter", sha1(number)) for number in numbers])

    how["urls"] = min(how["urls"], 20_000)
    new, mix, skipped = await measure(server, take, **how)  # type: ignore[arg-type]
    count = await server.do("SCARD", "dupefilter")
    return Figure(new, mix, (await server.used_bytes() - empty) / count, skipped)


async def setbit_lua(server: BenchServer, rate: float, **how: float) -> Figure:
    await server.do("FLUSHALL")
    empty = await server.used_bytes()
    script = await server.do("SCRIPT", "LOAD", SETBIT_LUA)
    how["urls"] = min(how["urls"], 50_000)
    bits = math.ceil(how["urls"] * 1.2 * -math.log(rate) / math.log(2) ** 2)
    hashes = round(-math.log2(rate))

    async def take(numbers: Sequence[int]) -> int:
        args: list[int] = []
        for number in numbers:
            digest = hashlib.sha1(item_of(number).url.encode(), usedforsecurity=False).digest()
            args += (int.from_bytes(digest[:4]), int.from_bytes(digest[4:8]))
        return sum(await server.do("EVALSHA", script, 1, "bloom", bits, hashes, *args))

    new, mix, skipped = await measure(server, take, **how)  # type: ignore[arg-type]
    return Figure(new, mix, (await server.used_bytes() - empty) / how["urls"] / 1.1, skipped)


async def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--urls", type=whole(PER_HOST), default=117_000, help="1.1 times as many fill 3 layers"
    )
    parser.add_argument("--batch", type=whole(), default=256)
    parser.add_argument("--shards", type=whole(), default=1, help="of ours")
    parser.add_argument("--only", action="append", choices=VARIANTS, help="again for more")
    parser.add_argument("--known", type=real(0, 0.99), default=0.9, help="share of the mix")
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--fsync", choices=("no", "everysec", "always"), default="no")
    parser.add_argument("--server", type=program, help="program to run")
    chosen = parser.parse_args()
    how = {"urls": chosen.urls, "batch": chosen.batch, "known_share": chosen.known}
    variants: dict[str, Callable[..., Awaitable[Figure]]] = {
        "exact": partial(ours, spec=JobSpec(shards=chosen.shards, seen="exact")),
        "bloom": partial(ours, spec=JobSpec(shards=chosen.shards, seen="bloom")),
        "sadd": sadd,
        "sadd_round_trips": sadd_round_trips,
        "setbit_lua": partial(setbit_lua, rate=1e-6),
    }
    if chosen.only:
        variants = {name: variants[name] for name in chosen.only}
    figures: dict[str, list[Figure]] = {name: [] for name in variants}
    async with bench_server(fsync=chosen.fsync, program=chosen.server) as server:
        for turn in range(chosen.rounds):
            for name, run in variants.items():
                figure = await run(server, seed=turn, **how)
                figures[name].append(figure)
                shown = {key: round(value, 2) for key, value in figure._asdict().items()}
                print(json.dumps({"round": turn, "variant": name, **shown}), flush=True)
    report(figures)


def report(figures: dict[str, list[Figure]]) -> None:
    for name, rounds in figures.items():
        mix = statistics.median(one.mix for one in rounds)
        size = statistics.median(one.bytes_a_url for one in rounds)
        skipped = sum(one.skipped for one in rounds)
        print(f"{name}: {mix / 1000:.0f}k URLs a CPU second, {size:.1f} B a URL, {skipped} skipped")
    for (name, other), target in TARGETS.items():
        if not {name, other} <= set(figures):
            continue
        ratio = statistics.median(
            a.mix / b.mix for a, b in zip(figures[name], figures[other], strict=True)
        )
        verdict = "ok" if ratio >= target else "MISSED"
        print(f"{name} is {ratio:.2f}x {other} (at least {target}): {verdict}")
    for name, limit in BYTES_TARGET.items():
        if name not in figures:
            continue
        size = statistics.median(one.bytes_a_url for one in figures[name])
        verdict = "ok" if size <= limit else "MISSED"
        print(f"{name} takes {size:.2f} B a URL (at most {limit:g}): {verdict}")
    if "exact" in figures:
        skipped = sum(one.skipped for one in figures["exact"])
        print(f"exact skipped {skipped} new URLs (0): {'ok' if skipped == 0 else 'MISSED'}")


if __name__ == "__main__":
    asyncio.run(main())
