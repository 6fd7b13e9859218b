"""One job's shards in the hands of a test: who acts on them, and what is always true of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from common.frontier import items, visits
from common.frontier.client import FrontierClient
from common.frontier.items import Item
from common.frontier.job import JobFrontier, MasterFence
from common.frontier.keys import TaskKeys
from common.frontier.letters import DeadLetters
from common.frontier.offers import Offers
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Adopted, Claim, Claimed, Offered, Refusal, ShardState
from common.frontier.server import ServerInfo
from common.frontier.settling import Finished, Release, Retry, Settled
from common.frontier.shard_stats import ShardStats
from common.model import counters
from common.model.errors import FrontierUnavailable
from common.model.ids import HostKey, JobId, Revision, Task, Token
from common.model.job import JobSpec
from common.model.records import Outcome
from common.web import url as urls
from tests.support.waiting import until

JOB = JobId("job-1")
FENCE = MasterFence(5, 50)
HOST = HostKey("http://a.example")
DEADLINE_S = 5.0


class Shard:
    """Shard ``number`` of a job (and the job's other shards, where it has some)."""

    def __init__(
        self, client: FrontierClient, cluster: str, spec: JobSpec, *, number: int = 0
    ) -> None:
        self.client = client
        self.cluster = cluster
        self.spec = spec
        self.number = number
        self.keys = TaskKeys(cluster, Task(JOB, number))
        self.master = JobFrontier(client, cluster=cluster, job=JOB, spec=spec)
        self.offers = Offers(client, cluster=cluster, job=JOB, spec=spec)
        self.letters = DeadLetters(client, cluster=cluster, job=JOB, spec=spec)

    async def create(self, state: ShardState = ShardState.OPEN) -> Shard:
        assert await self.master.create(fence=FENCE, state=state) == [None] * self.spec.shards
        return self

    def owner(self, token: int) -> TaskFrontier:
        return TaskFrontier(
            self.client,
            cluster=self.cluster,
            task=Task(JOB, self.number),
            spec=self.spec,
            token=Token(token),
        )

    async def adopt(
        self, owner: TaskFrontier, *, revision: int = 50, state: ShardState = ShardState.OPEN
    ) -> Adopted | Refusal:
        return await owner.adopt(await owner.current_run(), state=state, revision=revision)

    async def adopted(self, token: int = 10) -> TaskFrontier:
        """Return an owner that has adopted the shard.

        As a worker does, it asks again where the store is not fit to answer: for a moment a node
        of a Redis Cluster that was just formed may not know who serves what.
        """
        owner = self.owner(token)

        async def answer() -> Adopted | Refusal | None:
            try:
                return await self.adopt(owner)
            except FrontierUnavailable:
                return None

        assert isinstance(await until(answer, within_s=10), Adopted)
        return owner

    def due(self, token: int) -> visits.DueVisits:
        return visits.DueVisits(
            self.client,
            cluster=self.cluster,
            task=Task(JOB, self.number),
            spec=self.spec,
            token=Token(token),
        )

    async def recall(
        self, token: int = 10, *, revision: int = FENCE.revision
    ) -> visits.Recalled | visits.Outdated | Refusal:
        """Queue what is due, as an owner does."""
        run = await self.client.current_run(self.keys.meta)
        return await self.due(token).recall(run=run, revision=Revision(revision))

    async def offer(self, *found: str) -> Offered:
        answer = await self.try_offer(*found)
        assert isinstance(answer, Offered), answer
        return answer

    async def try_offer(self, *found: str) -> Offered | Refusal:
        return await self.offers.offer(self.number, [item_for(one) for one in found])

    async def stats(self) -> ShardStats:
        return (await self.master.stats())[self.number]

    async def counters(self) -> dict[str, int]:
        return (await self.stats()).counters

    async def records(self) -> list[str]:
        """Return the URLs of the results, in order."""
        entries = await self.master.results(self.number, after="0-0", count=100_000)
        return [json.loads(record)["url"] for _, record in entries]

    async def look(self) -> Look:
        return await look(self.client, self.keys)

    async def assert_sound(self) -> Look:
        seen = await self.look()
        assert_sound(seen, self.spec)
        return seen


def item_for(one: str, *, depth: int = 0, referrer: str | None = None) -> Item:
    return Item(urls.host_key(one), urls.path_of(one), depth, referrer)


def page(number: int, host: str = HOST) -> str:
    return f"{host}/p{number}"


def pages(count: int, host: str = HOST) -> list[str]:
    return [page(number, host) for number in range(count)]


def claimed_urls(answer: Claimed) -> list[str]:
    return claimed_urls_of(answer.claims)


def claimed_urls_of(claims: Sequence[Claim]) -> list[str]:
    return [items.decode(claim.host, claim.item).url for claim in claims]


async def claim(
    owner: TaskFrontier, want: int = 10, *, delay_ms: int | None = None, host: str | None = None
) -> Claimed:
    """Claim as a worker does: look ahead, then name the hosts that are due."""
    ahead = await looked(owner)
    due = [
        (name, delay_ms if delay_ms is not None else int(owner._spec.delay * 1000))
        for name, wait_ms in ahead.ahead
        if wait_ms == 0 and host in (None, name)
    ]
    answer = await owner.claim(want, due)
    assert isinstance(answer, Claimed), answer
    return answer


async def looked(owner: TaskFrontier) -> Claimed:
    answer = await owner.claim(0, [])
    assert isinstance(answer, Claimed), answer
    return answer


async def claim_within(
    owner: TaskFrontier, want: int = 10, *, delay_ms: int | None = None
) -> Claimed:
    """Claim until something comes, as long as a test may wait."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        answer = await claim(owner, want, delay_ms=delay_ms)
        if answer.claims:
            return answer
        assert time.monotonic() < deadline, "nothing was claimed in time"
        if answer.delayed:
            await owner.promote(answer.delayed)
        else:
            await asyncio.sleep(max(0, min(answer.wait_ms, 20)) / 1000)


def finished(
    one: Claim,
    *,
    ago_ms: int = 0,
    delay_ms: int = 0,
    outcome: Outcome = Outcome.FETCHED,
    letter: bytes = b"",
    visit_after_ms: int | None = None,
) -> Finished:
    """Return what ends a claim; with ``visit_after_ms`` in a job whose pages are visited again."""
    record = json.dumps({"url": items.decode(one.host, one.item).url}).encode()
    visit = b"" if visit_after_ms is None else next_visit(one, outcome, after_ms=visit_after_ms)
    return Finished(one.number, one.host, ago_ms, delay_ms, outcome, record, letter, visit)


def next_visit(one: Claim, outcome: Outcome, *, after_ms: int) -> bytes:
    """Return what a worker says of the next visit."""
    item = items.decode(one.host, one.item)
    if outcome is Outcome.DROPPED and not item.known:
        return b""
    ended = visits.decode_known(item.known).visits if item.known else 0
    known = visits.encode_known(visits.Known(visits=ended + 1, interval_s=1.0))
    is_paid = item.is_paid or outcome in (Outcome.FETCHED, Outcome.NOT_MODIFIED)
    again = item._replace(attempt=1, owners=0, known=known, is_paid=is_paid)
    return visits.next_visit(item.url, after_ms=after_ms, item=items.encode(again))


def again(one: Claim, *, after_ms: int, ago_ms: int = 0, delay_ms: int = 0) -> Retry:
    known = items.decode(one.host, one.item)
    item = items.encode(known._replace(attempt=known.attempt + 1))
    return Retry(one.number, one.host, ago_ms, delay_ms, after_ms, item)


def back(one: Claim, *, ago_ms: int = -1, delay_ms: int = 0) -> Release:
    return Release(one.number, one.host, ago_ms, delay_ms)


async def commit(owner: TaskFrontier, claims: Sequence[Claim], **how: object) -> list[int]:
    """Commit claims as fetched; return those that were gone."""
    answer = await owner.settle(finished=[finished(one, **how) for one in claims])  # type: ignore[arg-type]
    assert isinstance(answer, Settled), answer
    return answer.gone


async def drain(owner: TaskFrontier) -> None:
    """Claim and commit everything there is."""
    deadline = time.monotonic() + 30
    while True:
        answer = await claim(owner, 64)
        if answer.claims:
            await commit(owner, answer.claims)
        elif answer.delayed:
            await owner.promote(answer.delayed)
        elif answer.wait_ms < 0:
            return
        assert time.monotonic() < deadline


async def server_info(client: FrontierClient) -> ServerInfo:
    """Return what the only server says of itself."""
    (info,) = (await client.infos()).values()
    assert isinstance(info, ServerInfo)
    return info


class Look(NamedTuple):
    """Everything a shard holds but its seen-set."""

    now_ms: int
    meta: dict[str, str]
    queues: dict[str, list[str]]
    """Host -> URLs, in order."""
    ready: dict[str, float]
    pace: dict[str, float]
    slots: dict[int, float]
    slot: dict[int, tuple[str, str, str]]
    """Claim -> token, delay, host."""
    busy: dict[str, int]
    in_flight: dict[int, tuple[int, str, str]]
    """Claim -> token, host, URL."""
    delayed: list[str]
    results: list[str]
    due: list[bytes]
    """Marks of pages that wait for their next visit."""
    visited: dict[bytes, visits.Visited]
    letters: int
    """Dead ones."""


async def look(client: FrontierClient, keys: TaskKeys) -> Look:
    prefix = keys.queue(HostKey(""))
    (names,) = await client.commands([("KEYS", prefix + "*")])
    commands: list[tuple[str | bytes | int | float, ...]] = [
        ("HGETALL", keys.meta), ("ZRANGE", keys.ready, 0, -1, "WITHSCORES"),
        ("ZRANGE", keys.pace, 0, -1, "WITHSCORES"), ("ZRANGE", keys.slots, 0, -1, "WITHSCORES"),
        ("HGETALL", keys.slot), ("HGETALL", keys.busy), ("HGETALL", keys.in_flight),
        ("ZRANGE", keys.delayed, 0, -1), ("XRANGE", keys.results, "-", "+"),
        ("ZRANGE", keys.due, 0, -1), ("HGETALL", keys.visited), ("HLEN", keys.dead),
    ]  # fmt: skip
    commands += [("LRANGE", name, 0, -1) for name in names]
    (now_ms,) = await client.times_ms([keys.meta])
    (
        meta,
        ready,
        pace,
        slots,
        slot,
        busy,
        flight,
        delayed,
        results,
        due,
        visited,
        letters,
        *lists,
    ) = await client.commands(commands)
    hosts = [name.decode()[len(prefix) :] for name in names]
    tokens = {int(one): tuple(value.decode().split(" ", 2)) for one, value in _pairs(slot)}
    return Look(
        now_ms=now_ms,
        meta={field.decode(): value.decode() for field, value in _pairs(meta)},
        queues={
            host: [items.decode(HostKey(host), raw).url for raw in raws]
            for host, raws in zip(hosts, lists, strict=True)
        },
        ready={host.decode(): float(at) for host, at in _pairs(ready)},
        pace={host.decode(): float(at) for host, at in _pairs(pace)},
        slots={int(one): float(at) for one, at in _pairs(slots)},
        slot={one: (value[0], value[1], value[2]) for one, value in tokens.items()},
        busy={host.decode(): int(count) for host, count in _pairs(busy)},
        in_flight={int(one): _flying(entry) for one, entry in _pairs(flight)},
        delayed=[_url(*member.split(b"\n", 1)) for member in delayed],
        results=[json.loads(fields[1])["url"] for _, fields in results],
        due=due,
        visited={one: visits.parse(value) for one, value in _pairs(visited)},
        letters=letters,
    )


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _url(host: bytes, raw: bytes) -> str:
    return items.decode(HostKey(host.decode()), raw).url


def _flying(entry: bytes) -> tuple[int, str, str]:
    token, host, raw = entry.split(b"\n", 2)
    return int(token), host.decode(), _url(host, raw)


def assert_sound(seen: Look, spec: JobSpec) -> None:
    """Assert all that is true of a shard between any two scripts."""
    counts = {name: int(seen.meta[name]) for name in counters.NAMES}
    assert counters.is_balanced(counts), counts
    queued = [one for queue in seen.queues.values() for one in queue]
    flying = [one for _, _, one in seen.in_flight.values()]
    ended = sum(counts[name] for name in counters.FINAL)
    trimmed = int(seen.meta.get("trimmed", 0))
    assert (len(queued), len(seen.delayed), len(flying), len(seen.results)) == (
        counts["queued"], counts["delayed"], counts["in_flight"],
        ended + counts["revisiting"] - trimmed,
    )  # fmt: skip
    on_way, recorded = [*queued, *seen.delayed, *flying], seen.results
    for places in (Counter(on_way), Counter(recorded)):
        assert [one for one, count in places.items() if count > 1] == [], "in two places"
    if not trimmed:
        assert len({*on_way, *recorded}) == counts["discovered"]
        assert_visits_sound(seen, on_way, spec)
    assert set(seen.slots) == set(seen.slot)
    assert Counter(host for _, _, host in seen.slot.values()) == seen.busy
    assert all(count <= spec.per_host for count in seen.busy.values()), seen.busy
    assert all(seen.ready[host] >= at for host, at in seen.pace.items() if host in seen.ready)
    assert_no_stranded_host(seen, spec)


def assert_visits_sound(seen: Look, on_way: Sequence[str], spec: JobSpec) -> None:
    """Assert that each page is visited again as its record says: due, or on its way."""
    again = {visits.mark(one) for one in on_way} & {visits.mark(one) for one in seen.results}
    assert len(again) == int(seen.meta["revisiting"]), "a record and on its way: for a visit"
    ended = {visits.mark(one) for one in seen.results} - again
    assert set(seen.due) <= ended
    assert set(seen.visited) == again | set(seen.due)
    assert {one for one, value in seen.visited.items() if not value.item} == again
    assert spec.recrawl is not None or not seen.visited


def assert_no_stranded_host(seen: Look, spec: JobSpec, *, horizon_ms: int = 120_000) -> None:
    """Assert that each host with queued URLs will be claimed again, whatever happens.

    It is ready (at a time within reach), or a slot of it is in use, which ends or expires, or,
    where pages a host are limited, claims of it are in flight: they are settled or requeued.
    """
    latest = seen.now_ms + int(seen.meta.get("skew", 0)) + horizon_ms
    flying = {host for _, host, _ in seen.in_flight.values()}
    held = {host for _, _, host in seen.slot.values()}
    for host in seen.queues:
        is_ready = seen.ready.get(host, latest + 1) <= latest
        is_awaited = spec.max_pages_per_host is not None and host in flying
        assert is_ready or host in held or is_awaited, f"{host} is stranded"
    assert all(at <= latest for at in seen.slots.values()), seen.slots


async def spread_shards(client: FrontierClient, cluster: str, count: int) -> list[Shard]:
    """Return the shards of a job, created; on a Redis Cluster a dozen lie on all nodes."""
    spec = JobSpec(shards=count, delay=0, per_host=32)
    shards = [Shard(client, cluster, spec, number=number) for number in range(count)]
    await shards[0].create()
    return shards
