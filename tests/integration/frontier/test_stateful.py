"""A shard under random hands, beside a small model of what it must hold.

Offerers, owners that lose their turn and do not know it, replies that get lost, calls that are
repeated or arrive late, a master that pauses, seals and spends, and a server that is killed. After
every step the shard holds exactly what the model holds, its counters add up, no host is stranded;
in the end every URL has exactly one result.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from common.frontier import FrontierClient, RedisOptions
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Adopted, Claim, Claimed, Offered, Refusal, ShardState
from common.frontier.settling import Settled
from common.frontier.visits import Recalled, mark
from common.model.ids import HostKey, Revision
from common.model.job import JobSpec
from common.model.records import Outcome
from tests.integration.frontier.conftest import Starter
from tests.integration.frontier.shard import (
    FENCE,
    Look,
    Shard,
    again,
    assert_sound,
    back,
    claimed_urls,
    finished,
    page,
)
from tests.support.servers import RedisServer, stopping

_EXAMPLES = int(os.environ.get("CRAWLCTL_TEST_EXAMPLES", "20"))
"""More of them find more: a hundred take about half a minute."""
_T = TypeVar("_T")
_PAGES = (Outcome.FETCHED, Outcome.NOT_MODIFIED)
_HOSTS = ("http://a.example", "http://b.example", "http://c.example")
_URLS = st.lists(
    st.builds(page, st.integers(0, 8), st.sampled_from(_HOSTS)), min_size=1, max_size=12
)
_WHO = st.sampled_from([0, 0, 0, 0, 1, 2])
"""How many owners back: 0 = the newest one."""
_MASK = st.sampled_from([255, 255, 255]) | st.integers(0, 255)
_RARELY = st.sampled_from([False, False, False, True])
_OUTCOME = st.sampled_from([*_PAGES, *_PAGES, *_PAGES, *Outcome])
_AFTER_MS = st.sampled_from([0, 0, 0, 0, 0, 60_000, -1])
"""Until the next visit."""


class _Owner:
    """An owner with what it believes to hold, and what the server gave it without its knowing."""

    def __init__(self, token: int, frontier: TaskFrontier) -> None:
        self.token = token
        self.frontier = frontier
        self.held: dict[int, Claim] = {}
        self.ever: dict[int, Claim] = {}
        self.restarts = 0
        """Restarts of the server before its last adoption: it writes under that run only."""

    def some(self, mask: int, claims: dict[int, Claim] | None = None) -> list[Claim]:
        listed = list((self.held if claims is None else claims).values())
        return [one for at, one in enumerate(listed) if mask >> (at % 8) & 1]


class ShardMachine(RuleBasedStateMachine):
    """The model; ``server`` and ``runner`` are set by the test."""

    server: RedisServer
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.queued: set[str] = set()
        self.delayed: set[str] = set()
        self.flying: dict[int, tuple[int, str]] = {}
        self.results: list[str] = []
        self.fetched: dict[str, int] = {}
        """By host: URLs that have ever ended as a page."""
        self.outcomes: dict[str, Outcome] = {}
        """How each URL with a record has ended last."""
        self.revisiting: set[str] = set()
        self.due: dict[str, bool] = {}
        """URLs that wait for their next visit, and whether it is time for it."""
        self.paid: set[str] = set()
        self.granted = 0
        self.fence = 0
        self.state = ShardState.OPEN
        self.is_adopted = True
        self.has_looked = self.is_look_outdated = False
        """Whether the master has read the counters, and whether the server was restarted since."""
        self.restarts = 0
        self.owners: list[_Owner] = []

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return self.runner.run(coroutine)

    @initialize(
        per_host=st.sampled_from([1, 3]),
        delay=st.sampled_from([0.0, 0.002]),
        host_limit=st.sampled_from([None, 2]),
        max_pages=st.sampled_from([None, 10]),
        recrawl=st.sampled_from([3600.0, 3600.0, None]),
        found=_URLS,
    )
    def begin(
        self,
        per_host: int,
        delay: float,
        host_limit: int | None,
        max_pages: int | None,
        recrawl: float | None,
        found: list[str],
    ) -> None:
        self.spec = JobSpec(
            shards=1, per_host=per_host, delay=delay, timeout=0.1,
            max_pages=max_pages, max_pages_per_host=host_limit, recrawl=recrawl,
        )  # fmt: skip
        self.client = FrontierClient(RedisOptions(urls=(self.server.url,)))
        self.shard = Shard(self.client, f"c-{uuid.uuid4().hex[:8]}", self.spec)
        self.run(self.client.open())
        self.run(self.shard.create())
        self.join()
        self.offer(found)
        if max_pages is not None:
            self.grant(4)

    # ------------------------------------------------------------------------------------ owners

    @rule()
    def join(self) -> None:
        """A new owner adopts, and recovers later or never."""
        owner = _Owner(self.fence + 1, self.shard.owner(self.fence + 1))
        self.owners.append(owner)
        self.adopt(owner)

    @rule(who=_WHO)
    def adopt_again(self, who: int) -> None:
        self.adopt(self.owner(who))

    def owner(self, back_by: int) -> _Owner:
        return self.owners[max(0, len(self.owners) - 1 - back_by)]

    def adopt(self, owner: _Owner) -> None:
        answer = self.run(self.shard.adopt(owner.frontier, state=ShardState.OPEN))
        if owner.token < self.fence:
            assert answer is Refusal.STALE
            return
        assert answer == Adopted(len(self.flying), is_new_run=not self.is_adopted)
        if not self.is_adopted and self.state is not ShardState.SPENT:
            self.state = ShardState.OPEN
        self.fence, self.is_adopted = owner.token, True
        owner.restarts = self.restarts

    def refusal(self, owner: _Owner) -> Refusal | None:
        if not self.is_adopted or owner.restarts != self.restarts:
            return Refusal.RUN
        if owner.token < self.fence:
            return Refusal.STALE
        self.fence = owner.token
        return None

    @rule(who=_WHO)
    def recover(self, who: int) -> None:
        owner = self.owner(who)
        lost = {
            number: url
            for number, (token, url) in self.flying.items()
            if number not in owner.held
            and not (token == owner.token and number > owner.frontier._adoption)
        }
        answer = self.run(owner.frontier.recover(set(owner.held), dead_below=0))
        refusal = self.refusal(owner) if lost else None
        if refusal:
            assert answer is refusal
            return
        assert answer == len(lost)
        for number, url in lost.items():
            del self.flying[number]
            self.queued.add(url)

    @rule(who=_WHO, want=st.integers(1, 6), is_lost=_RARELY, names_all=st.booleans())
    def claim(self, who: int, want: int, is_lost: bool, names_all: bool) -> None:
        owner = self.owner(who)
        answer = self.run(self._claim(owner.frontier, want, names_all=names_all))
        refusal = self.refusal(owner)
        if refusal:
            assert answer is refusal
            return
        if answer is Refusal.RUN:  # somebody else's adoption with the same token is in force
            assert owner.frontier._adoption != int(self.look().meta["adoption"])
            return
        assert isinstance(answer, Claimed)
        assert answer.state is self.state
        for one, url in zip(answer.claims, claimed_urls(answer), strict=True):
            assert self.state in (ShardState.OPEN, ShardState.SPENT, ShardState.CANCELLED)
            assert one.number not in owner.ever
            self.queued.remove(url)
            self.flying[one.number] = (owner.token, url)
            owner.ever[one.number] = one
            if not is_lost:
                owner.held[one.number] = one
            is_paid = url in self.paid
            if self.state is ShardState.CANCELLED:
                assert one.rule
            elif self.state is ShardState.SPENT:
                assert bool(one.rule) != is_paid
            elif one.rule:
                assert not is_paid
                assert self.fetched.get(one.host, 0) >= (self.spec.max_pages_per_host or 999)

    async def _claim(
        self, frontier: TaskFrontier, want: int, *, names_all: bool
    ) -> Claimed | Refusal:
        names = [(HostKey(host), int(self.spec.delay * 1000)) for host in _HOSTS]
        if not names_all:
            ahead = await frontier.claim(0, [])
            if isinstance(ahead, Refusal):
                return ahead
            names = [(host, 0) for host, wait_ms in ahead.ahead if wait_ms == 0]
        return await frontier.claim(want, names)

    @rule(
        who=_WHO, mask=_MASK, outcome=_OUTCOME, repeats=st.integers(1, 2),
        is_old=_RARELY, after_ms=_AFTER_MS,
    )  # fmt: skip
    def commit(
        self,
        who: int,
        mask: int,
        outcome: Outcome,
        repeats: int,
        is_old: bool,
        after_ms: int = 60_000,
    ) -> None:
        owner = self.owner(who)
        chosen = owner.some(mask, owner.ever if is_old else owner.held)
        visit_after_ms = after_ms if self.spec.recrawl else None
        done = [
            finished(
                one,
                outcome=Outcome.DROPPED if one.rule else outcome,
                letter=one.item if outcome is Outcome.DEAD and not one.rule else b"",
                visit_after_ms=visit_after_ms,
            )
            for one in chosen
        ]
        for _ in range(repeats):
            answer = self.run(owner.frontier.settle(finished=done, filtered={}))
            gone = self.settled(owner, chosen, answer if done else None)
            for one in gone:
                url = self.flying.pop(one.number)[1]
                self.ended(url, one, Outcome.DROPPED if one.rule else outcome, visit_after_ms)

    @rule(outcome=_OUTCOME, after_ms=_AFTER_MS, recalls=st.booleans())
    def work(self, outcome: Outcome, after_ms: int, recalls: bool) -> None:
        """What an owner does most of the time; each example leaves some rules out."""
        if self.refusal(self.owner(0)) is Refusal.RUN:
            self.adopt(self.owner(0))
            self.recover(0)
        if recalls:
            self.recall(0)
        self.claim(0, 6, is_lost=False, names_all=True)
        self.commit(0, 255, outcome, 1, is_old=False, after_ms=after_ms)

    def ended(self, url: str, one: Claim, outcome: Outcome, after_ms: int | None) -> None:
        is_first = url not in self.revisiting
        if is_first:
            self.results.append(url)
        elif outcome is Outcome.DROPPED and self.outcomes[url] is not Outcome.DEAD:
            outcome = self.outcomes[url]  # as the visit before has left it
        self.revisiting.discard(url)
        self.outcomes[url] = outcome
        if outcome in _PAGES and url not in self.paid:
            self.fetched[one.host] = self.fetched.get(one.host, 0) + 1
            self.paid.add(url)
        if after_ms is not None and after_ms >= 0 and not (is_first and outcome is Outcome.DROPPED):
            self.due[url] = after_ms == 0

    @rule(who=_WHO)
    def recall(self, who: int) -> None:
        owner = self.owner(who)
        due = self.shard.due(owner.token)
        ready = {url for url, is_ready in self.due.items() if is_ready}
        answer = self.run(due.recall(run=owner.frontier.run, revision=Revision(FENCE.revision)))
        if not ready:
            assert answer == Recalled(0, answer.wait_ms)  # type: ignore[union-attr]
            return
        refusal = self.refusal(owner)
        if refusal:
            assert answer is refusal
            return
        is_working = self.state in (ShardState.OPEN, ShardState.SPENT)
        assert isinstance(answer, Recalled)
        assert answer.moved == (len(ready) if is_working else 0)
        if is_working:
            for url in ready:
                del self.due[url]
            self.revisiting |= ready
            self.queued |= ready

    def settled(
        self, owner: _Owner, chosen: list[Claim], answer: Settled | Refusal | None
    ) -> list[Claim]:
        """Check an answer and return the claims that it really moved."""
        if answer is None:
            return []
        refusal = self.refusal(owner)
        if refusal:
            assert answer is refusal
            return []
        assert isinstance(answer, Settled)
        mine = [one for one in chosen if self.flying.get(one.number, (0,))[0] == owner.token]
        assert sorted(answer.gone) == sorted({one.number for one in chosen}
                                             - {one.number for one in mine})  # fmt: skip
        for one in chosen:
            owner.held.pop(one.number, None)
        return mine

    @rule(who=_WHO, mask=_MASK, after_ms=st.sampled_from([0, 3, 60_000]))
    def retry(self, who: int, mask: int, after_ms: int) -> None:
        owner = self.owner(who)
        chosen = owner.some(mask)
        retries = [again(one, after_ms=after_ms) for one in chosen]
        answer = self.run(owner.frontier.settle(retries=retries))
        for one in self.settled(owner, chosen, answer if chosen else None):
            self.delayed.add(self.flying.pop(one.number)[1])

    @rule(who=_WHO, mask=_MASK, ago_ms=st.sampled_from([-1, 0, 50]))
    def release(self, who: int, mask: int, ago_ms: int) -> None:
        owner = self.owner(who)
        chosen = owner.some(mask)
        releases = [back(one, ago_ms=ago_ms, delay_ms=1) for one in chosen]
        answer = self.run(owner.frontier.settle(releases=releases))
        for one in self.settled(owner, chosen, answer if chosen else None):
            self.queued.add(self.flying.pop(one.number)[1])

    @rule(who=_WHO)
    def promote(self, who: int) -> None:
        owner = self.owner(who)
        ahead = self.run(owner.frontier.claim(0, []))
        if isinstance(ahead, Refusal) or not ahead.delayed:
            return
        assert self.run(owner.frontier.promote(ahead.delayed)) == len(ahead.delayed)
        moved = self.delayed - set(self.look().delayed)
        assert len(moved) == len(ahead.delayed)
        self.delayed -= moved
        self.queued |= moved

    @rule(who=_WHO, mask=_MASK, is_old=st.booleans())
    def free(self, who: int, mask: int, is_old: bool) -> None:
        """Responses have ended; anyone may say so at any time."""
        owner = self.owner(who)
        ended = owner.some(mask, owner.ever if is_old else owner.held)
        self.run(owner.frontier.free([(one.number, 0) for one in ended]))

    # ------------------------------------------------------------------------- everyone, the master

    @rule(found=_URLS)
    def offer(self, found: list[str]) -> None:
        answer = self.run(self.shard.try_offer(*found))
        if not self.is_adopted:
            assert answer is Refusal.RUN
        elif self.state is ShardState.SEALED:
            assert answer is Refusal.RETRY
        elif self.state is ShardState.CANCELLED:
            assert answer is Refusal.CLOSED
        else:
            fresh = set(found) - self.seen
            self.seen |= fresh
            self.queued |= fresh
            assert answer == Offered(len(fresh), len(self.seen))

    @rule(
        state=st.sampled_from(
            [ShardState.OPEN] * 6 + [ShardState.PAUSED, ShardState.SPENT, ShardState.CANCELLED]
        )
    )
    def apply(self, state: ShardState) -> None:
        assert self.run(self.shard.master.apply(state, fence=FENCE)) == [None]
        self.state = state

    @rule()
    def seal(self) -> None:
        stats = self.run(self.shard.master.stats())
        self.is_look_outdated, self.has_looked = False, True
        is_possible = (
            stats[0].is_empty
            and self.state in (ShardState.OPEN, ShardState.SPENT)
            and self.is_adopted
        )
        is_sealed = self.run(self.shard.master.seal(stats, fence=FENCE))
        assert is_sealed == is_possible
        if self.look().meta["state"] == "sealed":  # also under an older run: then not confirmed
            self.state = ShardState.SEALED

    @precondition(lambda self: self.spec.max_pages is not None)
    @rule(amount=st.integers(-8, 8))
    def grant(self, amount: int) -> None:
        moved = self.run(self.shard.master.grant(0, amount, fence=FENCE))
        assert isinstance(moved, int)
        if self.is_look_outdated:
            assert moved == 0, "decided on what a run showed that is over"
        else:
            assert moved == amount or (amount < moved <= 0)
        self.granted += moved

    @precondition(lambda self: self.restarts < 1)
    @rule()
    def restart(self) -> None:
        self.restarts += 1
        self.server.kill()
        self.server.launch()
        self.server.wait_ready()
        self.is_adopted = False
        self.is_look_outdated = self.has_looked
        with pytest.raises(Exception, match="unreachable"):
            self.run(self.shard.stats())

    # ----------------------------------------------------------------------------------- judgement

    def look(self) -> Look:
        return self.run(self.shard.look())

    @invariant()
    def the_shard_holds_what_the_model_holds(self) -> None:
        if not self.owners:
            return
        look = self.look()
        assert_sound(look, self.spec)
        assert {url for queue in look.queues.values() for url in queue} == self.queued
        assert set(look.delayed) == self.delayed
        flying = {one: (token, url) for one, (token, _, url) in look.in_flight.items()}
        assert flying == self.flying
        assert sorted(look.results) == sorted(self.results)
        self.visits_hold(look)
        assert (look.meta["state"], int(look.meta["fence"])) == (self.state.value, self.fence)
        self.budgets_hold(look)

    def visits_hold(self, look: Look) -> None:
        waiting = self.queued | self.delayed | {url for _, url in self.flying.values()}
        assert set(look.due) == {mark(url) for url in self.due}
        assert int(look.meta["revisiting"]) == len(self.revisiting)
        ended = {url: how for url, how in self.outcomes.items() if url not in waiting}
        counts = Counter(how.value for how in ended.values())
        assert {how.value: int(look.meta[how.value]) for how in Outcome} == {
            how.value: counts[how.value] for how in Outcome
        }
        assert look.letters == counts["dead"]
        if self.spec.recrawl is None:
            return
        elsewhere = [url for url in self.paid if ended.get(url) not in _PAGES]
        flying = [url for _, url in self.flying.values() if url in self.paid]
        assert int(look.meta.get("paid", 0)) == len(elsewhere)
        assert int(look.meta.get("paid_in_flight", 0)) == len(flying)
        over = [url for url in elsewhere if url in ended]
        assert int(look.meta.get("paid_ended", 0)) == len(over)

    def budgets_hold(self, look: Look) -> None:
        limit = self.spec.max_pages_per_host
        if limit is not None:
            assert all(count <= limit for count in self.fetched.values())
        if self.spec.max_pages is not None:
            assert int(look.meta["grant"]) == self.granted
            assert sum(self.fetched.values()) <= max(self.granted, 0)

    def teardown(self) -> None:
        if not self.owners:
            return
        try:
            self.finish()
        finally:
            self.run(self.client.close())

    def finish(self) -> None:
        self.restarts = 1
        self.join()
        self.recover(0)
        self.apply(ShardState.OPEN)
        if self.spec.max_pages is None:
            self.drain(lambda: not self.queued)
        self.apply(ShardState.SPENT)
        self.drain(lambda: not (self.queued or self.delayed or self.flying))
        assert sorted(self.results) == sorted(self.seen)

    def drain(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5
        while not is_done():
            assert time.monotonic() < deadline, "an owner that works on gets to everything"
            self.claim(0, 6, is_lost=False, names_all=False)
            self.commit(0, 255, Outcome.FETCHED, 1, is_old=False)
            self.promote(0)


def test_a_shard_under_random_hands_holds_what_it_must(
    start_server: Starter, tmp_path: Path, short_hold: int
) -> None:
    server = start_server(tmp_path)
    with stopping(server), asyncio.Runner() as runner:
        machine = type("Machine", (ShardMachine,), {"server": server, "runner": runner})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=_EXAMPLES,
                stateful_step_count=40,
                deadline=None,
                database=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
