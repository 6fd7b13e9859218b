"""Spacing and concurrency hold over owners that are replaced with requests on the wire."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from dataclasses import dataclass, field

import pytest

from common.frontier.owner import TaskFrontier
from common.frontier.replies import Claim, Claimed
from common.frontier.settling import Release, Settled
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import Shard, back, page

HOSTS = ("http://a.example", "http://b.example")
DELAY_S = 0.03
TIMEOUT_S = 0.1
SECONDS = 1.2
CLOCKS_S = 0.001
"""Two clocks of one machine, monotonic and wall, may drift apart by this within a test."""


@dataclass
class _Site:
    """What the hosts saw: start and end of each request."""

    requests: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def concurrency(self, host: str) -> int:
        seen = self.requests[host]
        return max(sum(one[0] <= start < one[1] for one in seen) for start, _ in seen)

    def gaps_from_end(self, host: str) -> list[float]:
        return [two[0] - one[1] for one, two in itertools.pairwise(sorted(self.requests[host]))]

    def gaps_from_start(self, host: str) -> list[float]:
        return [two[0] - one[0] for one, two in itertools.pairwise(sorted(self.requests[host]))]


class _Owner:
    """Works as a worker does, a moment too long; then it ends its requests, or is killed."""

    def __init__(self, shard: Shard, site: _Site, frontier: TaskFrontier, seed: int) -> None:
        self.shard, self.site, self.frontier = shard, site, frontier
        self.rng = random.Random(seed)
        self.hold_s = 0.04
        self.next_start: dict[str, float] = {}
        self.requests: set[asyncio.Task[None]] = set()
        self.tells = self.rng.random() < 0.6
        """Whether it lives to say when its last responses ended."""

    async def work(self) -> None:
        while True:
            sent_at = time.monotonic()
            ahead = await self.frontier.claim(0, [])
            if not isinstance(ahead, Claimed):
                return
            due = [(host, int(DELAY_S * 1000)) for host, wait_ms in ahead.ahead if wait_ms == 0]
            sent_at = time.monotonic()
            answer = await self.frontier.claim(8, due)
            if not isinstance(answer, Claimed):
                return
            for one in answer.claims:
                self.requests.add(asyncio.create_task(self.request(one, sent_at + self.hold_s)))
            await asyncio.sleep(0.002)

    async def request(self, one: Claim, send_before: float) -> None:
        await asyncio.sleep(self.rng.uniform(0, 1.2) * self.hold_s)
        started = time.monotonic()
        while started < (turn := self.next_start.get(one.host, 0)):
            await asyncio.sleep(turn - started)
            started = time.monotonic()
        if started > send_before:
            await self.settle(back(one))
            return
        self.next_start[one.host] = started + DELAY_S
        await asyncio.sleep(self.rng.uniform(0, 0.8) * TIMEOUT_S)
        ended = min(time.monotonic(), started + TIMEOUT_S)
        self.site.requests.setdefault(one.host, []).append((started, ended))
        is_one = self.shard.spec.per_host == 1
        self.next_start[one.host] = max(self.next_start[one.host], ended + DELAY_S if is_one else 0)
        await asyncio.sleep(self.rng.uniform(0, 0.01))
        ago_ms = int((time.monotonic() - ended) * 1000)
        delay_ms = int(DELAY_S * 1000) if is_one else 0
        if not await self.settle(back(one, ago_ms=ago_ms, delay_ms=delay_ms)) and self.tells:
            await self.frontier.free([(one.number, int((time.monotonic() - ended) * 1000))])

    async def settle(self, release: Release) -> bool:
        return isinstance(await self.frontier.settle(releases=[release]), Settled)


@pytest.mark.parametrize("per_host", [1, 3])
async def test_no_host_is_asked_too_soon_or_too_often_while_owners_change(
    make_shard: MakeShard, short_hold: int, per_host: int
) -> None:
    shard = await make_shard(delay=DELAY_S, timeout=TIMEOUT_S, per_host=per_host).create()
    await shard.offer(*(page(number, host) for host in HOSTS for number in range(12)))
    site, rng = _Site(), random.Random(per_host)
    owners: list[_Owner] = []
    ends = time.monotonic() + SECONDS
    working: list[asyncio.Task[None]] = []
    for token in itertools.count(10):
        frontier = await shard.adopted(token)
        await frontier.recover([], dead_below=0)
        owners.append(_Owner(shard, site, frontier, token))
        working.append(asyncio.create_task(owners[-1].work()))
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        late_s = time.monotonic() - ends
        are_asked = all(len(site.requests.get(host, ())) > 2 for host in HOSTS)
        if late_s > 0 and (are_asked or late_s > 60):
            break
    await shard.adopted(token + 1)
    await asyncio.gather(*working)
    await asyncio.gather(*(one for owner in owners for one in owner.requests))

    await shard.assert_sound()
    assert len(owners) > 2
    for host in HOSTS:
        assert len(site.requests[host]) > 2
        assert site.concurrency(host) <= per_host
        gaps = site.gaps_from_end(host) if per_host == 1 else site.gaps_from_start(host)
        assert min(gaps) >= DELAY_S - CLOCKS_S


def test_the_judge_notices_requests_that_are_too_close() -> None:
    site = _Site({"h": [(0.0, 1.0), (0.5, 0.6), (1.02, 2.0)]})
    assert site.concurrency("h") == 2
    assert min(site.gaps_from_end("h")) < 0
    assert min(site.gaps_from_start("h")) == 0.5
