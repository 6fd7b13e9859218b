"""Permits of a host, on a real server: by hand, and against a model over random histories.

The model runs the script on a clock of the test's own: the one line in which it asks the server for
the time reads a list instead. Everything else is the product's script on the product's keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import itertools
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.frontier import FrontierClient, RedisOptions, scripts
from common.frontier.data_server import DataServer
from common.frontier.keys import pace_key
from common.frontier.pace import LEAVES, VALID_MS, Ask, Permit, Permits
from common.model.errors import FrontierUnavailable
from common.model.ids import HostKey, Token
from tests.integration.frontier.conftest import Starter
from tests.support.servers import stopping

HOST = HostKey("http://a.example")
LASTS_MS = 3000
_serials = itertools.count(1)


def ask(**what: Any) -> Ask:
    given = {
        "key": HOST, "on_wire": 0, "started_ago_ms": -1, "ended_ago_ms": -1, "pause_ms": 0,
        "want": 1, "patience_ms": 0, "delay_ms": 0, "at_once": 1,
    }  # fmt: skip
    return Ask(serial=next(_serials), **given | what)


class _Holders:
    def __init__(self, client: FrontierClient, cluster: str) -> None:
        self.client, self.cluster = client, cluster

    def new(self, token: int = 10, *, dead_below: int = 0) -> Permits:
        return Permits(
            self.client,
            cluster=self.cluster,
            token=Token(token),
            dead_below=dead_below,
            lasts_ms=LASTS_MS,
        )


async def one(holder: Permits, **what: Any) -> Permit:
    (answer,) = await holder.ask([ask(**what)])
    assert answer is not None
    return answer


@pytest.fixture
def long_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take servers for old ones: on one that is young and may have lost data, hosts rest."""
    monkeypatch.setattr(DataServer, "_born_ms", lambda *_: 0)


@pytest.fixture
def holders(long_running: None, client: FrontierClient, cluster_name: str) -> _Holders:
    return _Holders(client, cluster_name)


async def test_a_request_waits_for_a_delay_from_the_end_of_the_last_one_of_any_job(
    holders: _Holders,
) -> None:
    # Long beside what passes between two calls.
    first, second = holders.new(), holders.new()
    assert 1 == (await one(first, delay_ms=20_000)).granted
    busy = await one(second, delay_ms=20_000)
    assert (0, True) == (busy.granted, busy.wait_ms >= 20_000)
    await one(first, delay_ms=20_000, want=0, started_ago_ms=30, ended_ago_ms=0)
    rest = await one(second, delay_ms=20_000, patience_ms=5_000)
    assert (0, True) == (rest.granted, 10_000 < rest.wait_ms <= 20_002)
    ready = await one(second, delay_ms=20_000, patience_ms=30_000)
    assert (1, True) == (ready.granted, 10_000 < ready.start_in_ms <= 20_002)


async def test_the_strictest_of_the_active_holders_limits_all(holders: _Holders) -> None:
    greedy, strict = holders.new(), holders.new()
    assert (8, 0) == (await one(greedy, want=8, at_once=8))[:3:2]
    refused = await one(strict, delay_ms=5000, at_once=2)
    assert (0, 5000) == (refused.granted, refused.delay_ms)
    renewed = await one(greedy, on_wire=3, want=5, at_once=8, started_ago_ms=0)
    assert (0, 5000, 1) == (renewed.granted, renewed.delay_ms, renewed.others)


async def test_without_delay_a_holder_that_renews_leaves_others_their_share(
    holders: _Holders,
) -> None:
    first, second = holders.new(), holders.new()
    assert 8 == (await one(first, want=8, at_once=8)).granted
    assert 0 == (await one(second, want=8, at_once=8)).granted
    assert 4 == (await one(first, want=8, at_once=8)).granted
    assert 4 == (await one(second, want=8, at_once=8)).granted


async def test_who_came_first_is_served_first(holders: _Holders) -> None:
    first, second, third = (holders.new() for _ in range(3))
    await one(first)
    assert 0 == (await one(second)).granted
    assert 0 == (await one(first, on_wire=0)).granted  # gives it back, and comes last now
    assert 0 == (await one(third)).granted
    assert 1 == (await one(second)).granted
    await one(second, want=0)
    assert 0 == (await one(third)).granted
    assert 1 == (await one(first)).granted


async def test_permits_of_a_holder_known_dead_are_free_a_delay_later(holders: _Holders) -> None:
    await one(holders.new(token=10), delay_ms=20_000)
    living = holders.new(token=20, dead_below=15)
    answer = await one(living, delay_ms=20_000, patience_ms=30_000)
    assert (1, True) == (answer.granted, 10_000 < answer.start_in_ms <= 20_001)


async def test_a_call_that_comes_late_changes_nothing(holders: _Holders) -> None:
    holder = holders.new()
    late = ask(on_wire=0, want=0)
    await one(holder, want=1)
    assert [None] == await holder.ask([late])
    assert 0 == (await one(holders.new())).granted


async def test_a_host_that_asked_to_be_left_alone_is_by_everybody(holders: _Holders) -> None:
    first, second = holders.new(), holders.new()
    await one(first)
    await one(first, want=0, ended_ago_ms=0, pause_ms=20_000)
    answer = await one(second)
    assert (0, True) == (answer.granted, 10_000 < answer.wait_ms <= 20_000)


async def test_nothing_is_left_behind(holders: _Holders, client: FrontierClient) -> None:
    holder, key = holders.new(), pace_key(holders.cluster, HOST)
    await one(holder, delay_ms=100)
    (left_ms,) = await client.commands([("PTTL", key)])
    assert 0 < left_ms <= 61_000
    await one(holder, want=0, delay_ms=LEAVES)
    (fields,) = await client.commands([("HKEYS", key)])
    assert {b"run", b"start", b"end", b"pause", b"ticket"} == set(fields)


@pytest.mark.parametrize(("fsync", "granted"), [("everysec", 0), ("always", 1)])
async def test_after_a_restart_that_may_have_lost_data_a_host_rests_for_a_delay(
    tmp_path: Path, start_server: Starter, cluster_name: str, fsync: str, granted: int
) -> None:
    """A server that loses nothing is believed at once."""
    server = start_server(tmp_path, options=("--appendfsync", fsync))
    with stopping(server):
        client = FrontierClient(RedisOptions(urls=(server.url,)))
        await client.open()
        holder = _Holders(client, cluster_name).new()
        await one(holder, delay_ms=60_000)
        await one(holder, want=0, delay_ms=60_000, ended_ago_ms=59_000)
        server.kill()
        server.launch()
        server.wait_ready()
        await asyncio.sleep(1.1)  # the delay since the end is over; one since the start is not
        with contextlib.suppress(FrontierUnavailable):
            await client.current_run("any")  # over the connection that is gone
        answer = await one(holder, delay_ms=60_000)
        assert granted == answer.granted, answer
        await client.close()


_CLOCK = "clock"


def _on_test_clock(source: str) -> str:
    changed = source.replace("redis.call('TIME')", f"redis.call('LRANGE', '{_CLOCK}', 0, 1)")
    assert changed != source
    return changed


class _Clock:
    """The clock of the data server, as the script of permits reads it: it runs, and can be set."""

    def __init__(self, client: FrontierClient) -> None:
        self.client = client

    async def step(self, ahead_s: int) -> None:
        await self.client.commands([("INCRBY", _CLOCK, ahead_s)])


@pytest.fixture
def clock(client: FrontierClient, monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Put the permits of the test on a clock that can be set."""
    known = scripts.load(strict=False)
    set_by = f"t[1] = t[1] + (redis.call('GET', '{_CLOCK}') or 0)"
    read = "local t = redis.call('TIME')\n"
    source = known["permit"].source.replace(read, read + set_by + "\n")
    assert set_by in source
    digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    changed = known | {"permit": known["permit"]._replace(source=source, sha=digest)}
    monkeypatch.setattr(scripts, "load", lambda *, strict: changed)
    return _Clock(client)


@pytest.mark.one_server
@pytest.mark.parametrize("step_s", [3600, -3600])
async def test_hosts_rest_for_a_delay_after_the_servers_clock_was_set(
    holders: _Holders, clock: _Clock, step_s: int
) -> None:
    """What another process did last is unknown then: it may have been killed meanwhile."""
    killed, heir = holders.new(10), holders.new(20, dead_below=11)
    await one(heir, key=HostKey("http://b.example"), delay_ms=400)  # knows the clock
    await one(killed, delay_ms=400)
    await one(killed, delay_ms=400, want=0, started_ago_ms=1, ended_ago_ms=0)
    ended_at = time.monotonic()
    await clock.step(step_s)
    first = await one(heir, delay_ms=400, patience_ms=1000)
    assert max(first.start_in_ms, first.wait_ms) >= 350, first
    for _ in range(20):
        await asyncio.sleep(max(first.start_in_ms, first.wait_ms, 1) / 1000)
        first = await one(heir, delay_ms=400)
        if first.granted:
            break
    assert 0.4 <= time.monotonic() - ended_at < 20, "not before a delay, and no stall"


@pytest.mark.one_server
async def test_a_clock_set_right_again_is_known_as_soon_as_it_is_read(
    holders: _Holders, clock: _Clock
) -> None:
    holder, other = holders.new(10), holders.new(20)
    await clock.step(-3600)
    await one(holder, delay_ms=60_000)
    await one(other, key=HostKey("http://b.example"), delay_ms=60_000)
    await clock.step(3600)
    assert 0 == (await one(other, key=HostKey("http://c.example"), delay_ms=60_000)).granted


async def test_a_clock_that_runs_on_stops_nobody(holders: _Holders) -> None:
    holder = holders.new()
    for number in range(20):
        await asyncio.sleep(0.01)
        answer = await one(holder, key=HostKey(f"http://{number}.example"), delay_ms=60_000)
        assert 1 == answer.granted


@dataclass
class _Holder:
    """A holder as the model knows it."""

    name: str
    delay: int
    per: int
    slots: int = 0
    """Permits and requests, as last said and granted."""
    use_from: int = 0
    use_before: int = 0
    over: int = 0
    wire: int = 0
    started: int | None = None
    ended: int | None = None
    asked: int = -(10**9)
    told: int = 0
    """The delay in force when it got its permits."""


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["ask", "go", "go", "late", "start", "end", "end", "drop", "die"]),
        st.sampled_from([0, 0, 1, 40, 150, 299, 300, 301, 998, LASTS_MS, LASTS_MS + VALID_MS + 1]),
    ),
    min_size=10,
    max_size=60,
)
_LIMITS = st.lists(
    st.tuples(st.sampled_from([0, 300, 300]), st.sampled_from([1, 2, 3])), min_size=2, max_size=3
)


@pytest.mark.one_server
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(limits=_LIMITS, steps=_STEPS)
async def test_random_histories_keep_every_limit(
    client: FrontierClient, limits: list[tuple[int, int]], steps: list[tuple[int, str, int]]
) -> None:
    """Never more than the strictest holder allows at once, never closer than its delay.

    Holders use permits as a worker may: at once, at the last moment, several times (without a
    delay), never; they tell it, or die without a word.
    """
    await _World(client, limits).run(steps)


class _World:
    def __init__(self, client: FrontierClient, limits: list[tuple[int, int]]) -> None:
        self.client = client
        self.source = _on_test_clock(scripts.load(strict=False)["permit"].source)
        self.now = 1_700_000_000_000
        self.serial = 0
        self.names = itertools.count(10)
        self.limits = limits
        self.holders = [self._holder(number) for number in range(len(limits))]
        self.open: list[tuple[str, int, int]] = []
        """Holder, start, latest end of each request on the wire."""
        self.last_start = self.last_end = -(10**9)

    def _holder(self, number: int) -> _Holder:
        delay, per = self.limits[number]
        return _Holder(f"{next(self.names)}:x", delay, per)

    async def run(self, steps: list[tuple[int, str, int]]) -> None:
        await self.client.commands([("DEL", "pace")])
        for one, what, ms in steps:
            self.now += ms
            self._time_out()
            number = one % len(self.holders)
            holder = self.holders[number]
            match what:
                case "ask":
                    await self.ask(holder)
                case "go":
                    await self.ask(holder)
                    self.move_to(holder.use_from)
                    self.start(holder)
                case "late":
                    await self.ask(holder)
                    self.move_to(holder.use_before - 1)
                    self.start(holder)
                case "start":
                    self.start(holder)
                case "end":
                    self.end(holder)
                case "drop":
                    holder.slots = holder.wire
                case _:
                    self.holders[number] = self._holder(number)

    def move_to(self, at: int) -> None:
        self.now = max(self.now, at)
        self._time_out()

    def _time_out(self) -> None:
        """Requests of the dead last as long as they may."""
        for name, start, latest in list(self.open):
            if latest <= self.now:
                self.open.remove((name, start, latest))
                self.last_end = max(self.last_end, latest)
                for holder in self.holders:
                    if holder.name == name:
                        holder.wire -= 1
                        holder.slots -= 1
                        holder.ended = latest

    def active(self, but: _Holder) -> list[_Holder]:
        """Those whose limits hold for sure: they asked within the last seconds."""
        return [one for one in self.holders if one is but or one.asked >= self.now - 5000]

    async def ask(self, holder: _Holder) -> int:
        """Ask as a worker does; return the ms to wait where nothing was granted."""
        self.serial += 1
        want = holder.per - holder.wire
        if holder.delay:
            want = min(want, 1)
        args = [
            "run", 0, holder.name, self.serial, 0, holder.wire,
            -1 if holder.started is None else self.now - holder.started,
            -1 if holder.ended is None else self.now - holder.ended,
            0, want, 1000, holder.delay, holder.per, LASTS_MS, VALID_MS,
        ]  # fmt: skip
        seconds, ms = divmod(self.now, 1000)
        clock = [("DEL", _CLOCK), ("RPUSH", _CLOCK, seconds, ms * 1000)]
        *_, reply = await self.client.commands(
            [*clock, ("EVAL", self.source, 1, "pace", *map(str, args))]  # type: ignore[list-item]
        )
        tag, granted, start_in, delay, wait, _, _ = reply
        assert tag == b"OK"
        holder.asked = self.now
        holder.started = holder.ended = None
        holder.slots = holder.wire + granted
        holder.use_from = self.now + start_in
        holder.use_before = holder.use_from + VALID_MS if granted else 0
        active = self.active(holder)
        assert delay >= max(one.delay for one in active)
        if granted:
            fewest = min(one.per for one in active)
            theirs = sum(self._reach(one) for one in self.holders if one is not holder)
            dead = sum(
                1 for name, *_ in self.open if name not in {one.name for one in self.holders}
            )
            assert holder.slots + theirs + dead <= fewest or holder.slots == holder.wire
            holder.told = delay
            return 0
        assert want <= 0 or wait > 0
        return int(wait)

    def _reach(self, one: _Holder) -> int:
        """Return how many requests a holder may have at once from now on."""
        return one.slots if self.now <= one.use_before else one.wire

    def start(self, holder: _Holder) -> None:
        if holder.slots <= holder.wire or not holder.use_from <= self.now < holder.use_before:
            return
        if holder.told > 0:
            holder.use_before = 0  # once
            per = min(one.per for one in self.active(holder))
            since = self.last_end if per == 1 else self.last_start
            assert self.now - since >= holder.told, (self.now - since, holder.told, per)
        self.last_start = self.now
        holder.wire += 1
        holder.started = self.now
        self.open.append((holder.name, self.now, self.now + LASTS_MS))

    def end(self, holder: _Holder) -> None:
        mine = [one for one in self.open if one[0] == holder.name]
        if not mine:
            return
        self.open.remove(mine[0])
        self.last_end = max(self.last_end, self.now)
        holder.wire -= 1
        holder.ended = self.now
        if holder.told > 0 or self.now >= holder.use_before:
            holder.slots -= 1


@pytest.mark.one_server
@pytest.mark.parametrize(
    "limits",
    [
        [(300, 1)] * 5,
        [(0, 1), (0, 1), (0, 1)],
        [(0, 8), (300, 1), (0, 8)],
        [(100, 3)] * 4,
        [(0, 4)] * 6,
    ],
)
async def test_nobody_starves(client: FrontierClient, limits: list[tuple[int, int]]) -> None:
    """All want as much as they can get, all the time; each gets at least half of an even share."""
    world, random_ms = _World(client, limits), random.Random(1)
    await client.commands([("DEL", "pace")])
    served = [0] * len(limits)
    due = [(world.now + number, number) for number in range(len(limits))]
    heapq.heapify(due)
    until = world.now + 60_000
    while world.now < until:
        at, number = heapq.heappop(due)
        world.move_to(at)
        holder = world.holders[number]
        if holder.wire:
            world.end(holder)
            served[number] += 1
        wait = await world.ask(holder)
        if wait:
            heapq.heappush(due, (world.now + wait, number))
            continue
        world.move_to(holder.use_from)
        world.start(holder)
        assert 1 == holder.wire
        heapq.heappush(due, (world.now + random_ms.randint(5, 90), number))
    assert min(served) * 2 >= sum(served) / len(served), served
    assert sum(served) >= 60, served
