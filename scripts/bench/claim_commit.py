#!/usr/bin/env python3
"""What a page costs the server: claiming it, offering its links, committing it.

usage: claim_commit.py [--pages N] [--hosts N] [--fsync no] ...

Everything goes through the product's own frontier, in batches of 16 pages as a worker has them:

- pages a CPU second of the server's main thread with 40 links a page, 4 of them new, as when no
  cache helps; and with 8 links left, as when the worker's seen cache drops known ones;
- the same 40 links with the calls of scrapy-redis 0.9, which keeps no claim that could be lost: a
  request popped from a sorted set, a round trip for each link and for each that is new, the item;
- bytes a queued URL: URLs of 73 bytes, 50 a host, whole (queue, ready, host's keys), without the
  seen-set;
- claims with many hosts queued: the time a claim takes the server (from its own slow log);
- takeover: all claims in flight of a dead owner back in their queues, and the longest single call.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_server import BenchServer, bench_server
from seen_set import JOB, PER_HOST, item_of, seen_bytes, sha1

from common.frontier.items import Item
from common.frontier.job import JobFrontier, MasterFence
from common.frontier.keys import TaskKeys
from common.frontier.offers import Offers
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Adopted, Claimed, Offered, ShardState
from common.frontier.settling import Finished, Settled
from common.model.ids import HostKey, JobId, Task, Token
from common.model.job import JobSpec
from common.model.records import Outcome
from tests.support.arguments import Parser, program, whole

BATCH = 16
LINKS, NEW, LEFT = 40, 4, 8
RECORD = b'{"url":"' + b"x" * 200 + b'"}'


class Rig:
    """One shard of a fresh job, its offers and an owner."""

    def __init__(self, server: BenchServer, spec: JobSpec) -> None:
        self.server = server
        self.spec = spec
        self.keys = TaskKeys("c", Task(JOB, 0))
        self.job = JobFrontier(server.client, cluster="c", job=JOB, spec=spec)
        self.offers = Offers(server.client, cluster="c", job=JOB, spec=spec)
        self.owner = self.owner_of(10)

    def owner_of(self, token: int) -> TaskFrontier:
        task = Task(JobId(JOB), 0)
        return TaskFrontier(
            self.server.client, cluster="c", task=task, spec=self.spec, token=Token(token)
        )

    async def begin(self) -> None:
        await self.server.do("FLUSHALL")
        await self.job.create(fence=MasterFence(1, 1), state=ShardState.OPEN)
        await self.adopt(self.owner)

    async def adopt(self, owner: TaskFrontier) -> None:
        run = await self.server.client.current_run("any")
        answer = await owner.adopt(run, state=ShardState.OPEN, revision=1)
        assert isinstance(answer, Adopted), answer

    async def offer(self, numbers: list[int]) -> None:
        items: list[Item] = [item_of(number) for number in numbers]
        for start in range(0, len(items), 2000):
            answer = await self.offers.offer(0, items[start : start + 2000])
            assert isinstance(answer, Offered), answer

    async def due(self, hosts: list[HostKey]) -> list[HostKey]:
        if hosts:
            return hosts
        answer = await self.owner.claim(0, [])
        assert isinstance(answer, Claimed), answer
        return [host for host, wait_ms in answer.ahead if wait_ms == 0]


async def pages_a_cpu_second(rig: Rig, *, pages: int, links: int) -> float:
    """Return the rate of claim, offer and commit; links beyond the new ones are known."""
    await rig.begin()
    rng = random.Random(1)
    known = max(pages, 2000)
    await rig.offer(list(range(known)))
    fresh, done, hosts = known, 0, list[HostKey]()
    began = rig.server.cpu_s()
    while done < pages:
        hosts = await rig.due(hosts)
        answer = await rig.owner.claim(BATCH, [(host, 0) for host in hosts[:BATCH]])
        assert isinstance(answer, Claimed), answer
        hosts = [host for host, wait_ms in answer.ahead if wait_ms == 0]
        found: list[int] = []
        for _ in answer.claims:
            first = rng.randrange(known // PER_HOST) * PER_HOST
            found += [first + rng.randrange(PER_HOST) for _ in range(links - NEW)]
            found += range(fresh, fresh + NEW)
            fresh += NEW
        await rig.offer(list(dict.fromkeys(found)))
        finished = [
            Finished(one.number, one.host, 0, 0, Outcome.FETCHED, RECORD) for one in answer.claims
        ]
        settled = await rig.owner.settle(finished=finished)
        assert settled == Settled([]), settled
        done += len(answer.claims)
    return done / (rig.server.cpu_s() - began)


async def pages_a_cpu_second_as_scrapy_redis(server: BenchServer, *, pages: int) -> float:
    """Return the rate of pop, filter, push and item of scrapy-redis, with links as above."""
    await server.do("FLUSHALL")
    rng = random.Random(1)
    known = max(pages, 2000)
    for number in range(known):
        await server.client.commands(
            [("ZADD", "requests", 0, request_of(number)), ("SADD", "dupefilter", sha1(number))]
        )
    fresh = known
    began = server.cpu_s()
    for _ in range(pages):
        await server.client.commands(
            [("MULTI",), ("ZRANGE", "requests", 0, 0), ("ZREMRANGEBYRANK", "requests", 0, 0),
             ("EXEC",)]
        )  # fmt: skip
        first = rng.randrange(known // PER_HOST) * PER_HOST
        found = [first + rng.randrange(PER_HOST) for _ in range(LINKS - NEW)]
        for number in (*dict.fromkeys(found), *range(fresh, fresh + NEW)):
            if await server.do("SADD", "dupefilter", sha1(number)):
                await server.do("ZADD", "requests", 0, request_of(number))
        fresh += NEW
        await server.do("RPUSH", "items", RECORD)
    return pages / (server.cpu_s() - began)


def request_of(number: int) -> bytes:
    """Return something as long as a pickled request."""
    return item_of(number).url.encode().ljust(400)


async def bytes_a_queued_url(rig: Rig, *, urls: int) -> float:
    await rig.begin()
    empty = await rig.server.used_bytes()
    await rig.offer(list(range(urls)))
    await seen_bytes(rig.server, rig.keys)
    return (await rig.server.used_bytes() - empty) / urls


async def claim_times_us(rig: Rig, *, hosts: int, claims: int) -> list[int]:
    """Return how long each of many claims took the server, with this many hosts queued."""
    await rig.begin()
    for start in range(0, hosts, 2000):
        batch = [item_of(number * PER_HOST) for number in range(start, min(start + 2000, hosts))]
        assert isinstance(await rig.offers.offer(0, batch), Offered)
    await rig.server.do("CONFIG", "SET", "slowlog-log-slower-than", 0)
    await rig.server.do("CONFIG", "SET", "slowlog-max-len", claims + 10)
    due: list[HostKey] = []
    for _ in range(claims):
        if not due:
            await rig.server.do("SLOWLOG", "LEN")
        due = await rig.due(due)
        answer = await rig.owner.claim(BATCH, [(host, 1000) for host in due[:BATCH]])
        assert isinstance(answer, Claimed), answer
        due = [host for host, wait_ms in answer.ahead if wait_ms == 0]
    entries = await rig.server.do("SLOWLOG", "GET", claims)
    await rig.server.do("CONFIG", "SET", "slowlog-log-slower-than", -1)
    return sorted(entry[2] for entry in entries if entry[3][0] == b"EVALSHA")


async def takeover(rig: Rig, *, urls: int) -> tuple[float, float, int]:
    """Return seconds, CPU seconds and the longest call (us) of a takeover."""
    await rig.begin()
    await rig.offer(list(range(urls)))
    taken, hosts = 0, list[HostKey]()
    while taken < urls:
        hosts = await rig.due(hosts)
        answer = await rig.owner.claim(512, [(host, 0) for host in hosts])
        assert isinstance(answer, Claimed), answer
        hosts = [host for host, wait_ms in answer.ahead if wait_ms == 0]
        taken += len(answer.claims)
    successor = rig.owner_of(11)
    await rig.adopt(successor)
    await rig.server.do("SLOWLOG", "RESET")
    await rig.server.do("CONFIG", "SET", "slowlog-log-slower-than", 1000)
    began, cpu = time.monotonic(), rig.server.cpu_s()
    assert await successor.recover((), dead_below=11) == urls
    seconds, cpu = time.monotonic() - began, rig.server.cpu_s() - cpu
    entries = await rig.server.do("SLOWLOG", "GET", 100)
    await rig.server.do("CONFIG", "SET", "slowlog-log-slower-than", -1)
    return seconds, cpu, max((entry[2] for entry in entries), default=1000)


def verdict(what: str, figure: float, *, unit: str, least: float = 0, most: float = 1e99) -> None:
    limit = f"at least {least:g}" if least else f"at most {most:g}"
    word = "ok" if least <= figure <= most else "MISSED"
    print(f"{what}: {figure:.4g} {unit} ({limit}): {word}", flush=True)


async def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--pages", type=whole(), default=4000)
    parser.add_argument("--queued", type=whole(), default=100_000, help="URLs, to weigh the queue")
    parser.add_argument("--hosts", type=whole(), default=100_000, help="queued, to time claims")
    parser.add_argument("--claims", type=whole(), default=500)
    parser.add_argument("--in-flight", type=whole(), default=100_000, help="URLs taken over")
    parser.add_argument("--fsync", choices=("no", "everysec", "always"), default="no")
    parser.add_argument("--server", type=program, help="program to run")
    chosen = parser.parse_args()
    async with bench_server(fsync=chosen.fsync, program=chosen.server) as server:
        exact = Rig(server, JobSpec(shards=1, delay=0, per_host=1024))
        rate = await pages_a_cpu_second(exact, pages=chosen.pages, links=LINKS)
        verdict(f"claim and commit, {LINKS} links", rate, unit="pages a CPU second", least=6000)
        other = await pages_a_cpu_second_as_scrapy_redis(server, pages=chosen.pages // 4)
        print(f"... with the calls of scrapy-redis: {other:.4g}; ours is {rate / other:.1f}x")
        rate = await pages_a_cpu_second(exact, pages=chosen.pages, links=LEFT)
        verdict(f"claim and commit, {LEFT} links", rate, unit="pages a CPU second", least=20_000)
        size = await bytes_a_queued_url(exact, urls=chosen.queued)
        verdict("a queued URL", size, unit="B", most=70)
        times = await claim_times_us(
            Rig(server, JobSpec(shards=1, delay=1)), hosts=chosen.hosts, claims=chosen.claims
        )
        p99 = times[len(times) * 99 // 100] / 1000
        verdict(f"claim with {chosen.hosts} hosts, p99", p99, unit="ms", most=2)
        seconds, cpu, longest = await takeover(exact, urls=chosen.in_flight)
        verdict(f"takeover of {chosen.in_flight} URLs", seconds, unit="s", most=1)
        verdict("... CPU of the server", cpu, unit="s", most=1)
        verdict("... longest call", longest / 1000, unit="ms", most=10)


if __name__ == "__main__":
    asyncio.run(main())
