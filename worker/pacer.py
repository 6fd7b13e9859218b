"""Whose turn it is: every request of a job to a host, in this process, asks here first.

A request starts only with a permit from Redis (``common.frontier.pace``), which the host's requests
of all jobs and workers share. Without a delay in force permits come in batches and are used for one
request after the other, for about a second; then they are asked for again or given back, so that
others get their share. With a delay each request has its own. Asking for many hosts shares round
trips. Beside that the process spaces its own sends, by its own clock: from the end of a response
where one connection is allowed, from start to start above that.

Invariants: while a host is asked for, none of its permits is used, so that what was said stays
true. Whoever got a turn ends it, also when cancelled (:class:`Visit` sees to that).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Final, NamedTuple, Self

import structlog

from common.frontier.pace import LEAVES, VALID_MS, Ask, Permit, Permits
from common.model.errors import CrawlerError, FrontierUnavailable
from common.model.ids import HostKey

PATIENCE_S: Final = 1.0
"""A permit is taken at most this long before its time."""
RENEW_S: Final = 0.7 * VALID_MS / 1000
"""Permits in use are asked for again before they end."""
MORE_S: Final = 0.1
"""How soon more permits are asked for than were granted, or an end is told to nobody who waits."""
HOSTS_AT_ONCE: Final = 64
PAUSE_S: Final = (0.05, 1.0)
"""First and longest wait before a server that did not answer is asked again."""
LEAVE_S: Final = 2.0
"""How long the end of a job here waits to give back what it has."""

log = structlog.get_logger()


class _Waiter(NamedTuple):
    turn: asyncio.Future[float | None]
    """None = go; else seconds after which it makes sense to come again."""
    before: float


@dataclass(slots=True, eq=False)
class _Host:
    """One host as this process sees it; times are monotonic seconds."""

    key: HostKey
    delay_s: float = 0.0
    """As last asked for."""
    strict_s: float = 0.0
    """In force by the last answer; 0 = permits are used again."""
    others: int = 0
    on_wire: int = 0
    permits: int = 0
    """Unused."""
    use_from: float = 0.0
    use_before: float = 0.0
    renew_at: float = inf
    next_start: float = 0.0
    """By our own spacing."""
    ask_at: float = 0.0
    report_at: float = inf
    """When Redis is to be told that there is less on the wire than it thinks."""
    started: float | None = None
    ended: float | None = None
    pause_until: float = 0.0
    """Not told to Redis yet, as the two before."""
    waiting: deque[_Waiter] = field(default_factory=deque)
    asking: bool = False
    timer: asyncio.TimerHandle | None = None
    timer_at: float = inf

    @property
    def spacing_s(self) -> float:
        return max(self.delay_s, self.strict_s)

    @property
    def turn_s(self) -> float:
        """About how long from one turn here to the next, others having theirs in between."""
        return self.spacing_s * (1 + self.others)


class Pacer:
    """The turns of one job in one process."""

    def __init__(self, permits: Permits, *, per_host: int) -> None:
        self._permits = permits
        self._per_host = per_host
        self._hosts: dict[HostKey, _Host] = {}
        self._serials = itertools.count(1)
        self._to_ask: list[_Host] = []
        self._desk: asyncio.Task[None] | None = None
        self._pause_s = PAUSE_S[0]

    def visit(self, host: HostKey, delay_s: float) -> Visit:
        """Return the requests to a host for one URL, to be made one after the other."""
        return Visit(self, host, delay_s)

    async def start(self, host: HostKey, delay_s: float, *, before: float) -> float | None:
        """Wait for the host's turn and take it; :meth:`ended` or :meth:`unused` must follow.

        Args:
            host: where the request goes.
            delay_s: between requests to it, seconds.
            before: monotonic time after which the request may not start any more.

        Returns:
            None = the request may start now. Else the turn comes too late, and nothing was taken:
            seconds after which it makes sense to ask again.
        """
        one = self._hosts.get(host)
        if one is None:
            one = self._hosts[host] = _Host(host)
        one.delay_s = delay_s
        now = time.monotonic()
        if not one.waiting and self._has_turn(one, now):
            self._use(one, now)
            return None
        turn_at = self._turn_at(one, len(one.waiting), now)
        if turn_at > before or now > before:
            self._advance(one)
            return turn_at - now
        waiter = _Waiter(asyncio.get_running_loop().create_future(), before)
        one.waiting.append(waiter)
        self._advance(one)
        try:
            async with asyncio.timeout(before - now):
                wait_s = await waiter.turn
        except TimeoutError:
            self._withdraw(one, waiter)
            return max(self._turn_at(one, len(one.waiting), before) - before, one.spacing_s)
        except asyncio.CancelledError:
            self._withdraw(one, waiter)
            raise
        if wait_s is None:
            self._begin(one, time.monotonic())  # the loop may have been busy since it was given
        return wait_s

    def ended(self, host: HostKey, *, pause_s: float = 0.0) -> None:
        """A response has ended, after which the host may have asked to be left alone."""
        one = self._hosts[host]
        now = time.monotonic()
        one.ended = now
        if self._per_host == 1 and one.spacing_s > 0:
            one.next_start = max(one.next_start, now + one.spacing_s)
        if pause_s > 0:
            one.pause_until = max(one.pause_until, now + pause_s)
            one.use_before = 0.0
        self._give_back(one, now)

    def unused(self, host: HostKey) -> None:
        """A turn was taken, but nothing was sent."""
        self._give_back(self._hosts[host], time.monotonic())

    async def close(self) -> None:
        """Give back everything, when all requests have ended."""
        hosts = list(self._hosts.values())
        self._hosts.clear()
        if self._desk is not None:
            self._desk.cancel()
            await asyncio.wait([self._desk])
        for one in hosts:
            if one.timer is not None:
                one.timer.cancel()
        now = time.monotonic()
        leaving = [self._say(one, now)._replace(want=0, delay_ms=LEAVES) for one in hosts]
        try:
            async with asyncio.timeout(LEAVE_S):
                for start in range(0, len(leaving), HOSTS_AT_ONCE):
                    await self._permits.ask(leaving[start : start + HOSTS_AT_ONCE])
        except (TimeoutError, FrontierUnavailable) as error:
            log.info("pacer.permits_kept", reason=str(error), until="they end by themselves")

    def _has_turn(self, one: _Host, now: float) -> bool:
        return (
            one.permits > 0
            and not one.asking
            and max(one.use_from, one.next_start) <= now < one.use_before
        )

    def _use(self, one: _Host, now: float) -> None:
        one.permits -= 1
        one.on_wire += 1
        self._begin(one, now)

    def _begin(self, one: _Host, now: float) -> None:
        one.started = now
        if self._per_host > 1 and one.spacing_s > 0:
            one.next_start = now + one.spacing_s
            if one.others:  # they wait for the earliest moment this can have been
                one.report_at = now
                self._schedule(one, now, now)

    def _give_back(self, one: _Host, now: float) -> None:
        one.on_wire -= 1
        if one.asking:
            return  # the answer counts with what was on the wire when it was asked for
        if one.strict_s == 0 and now < one.use_before:
            one.permits += 1
            if one.waiting:
                self._advance(one)
            return
        self._report_soon(one, now)
        self._advance(one)

    def _report_soon(self, one: _Host, now: float) -> None:
        is_urgent = one.others or one.pause_until > now
        wait_s = 0.0 if is_urgent else min(MORE_S, one.spacing_s / 4)
        one.report_at = min(one.report_at, now + wait_s)

    def _withdraw(self, one: _Host, waiter: _Waiter) -> None:
        if waiter in one.waiting:
            one.waiting.remove(waiter)
        elif waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.result() is None:
            self.unused(one.key)  # it came at the same moment

    def _turn_at(self, one: _Host, before_it: int, now: float) -> float:
        """Return when a turn may come, as far as is known."""
        at = max(now, one.next_start)
        if one.permits == 0 or now >= one.use_before:
            at = max(at, one.ask_at)
        return at + before_it * one.turn_s

    def _advance(self, one: _Host) -> None:
        """Hand out turns, ask for what is missing, and see to it that time is kept."""
        if one.asking:
            return
        now = time.monotonic()
        if one.permits and now >= one.use_before:
            one.permits = 0
            one.report_at = now
        while one.waiting and self._has_turn(one, now):
            waiter = one.waiting.popleft()
            if not waiter.turn.done():
                self._use(one, now)
                waiter.turn.set_result(None)
        at = self._next_call(one, now)
        if at <= now:
            self._ask(one)
        elif at < inf:
            self._schedule(one, at, now)
        elif not one.waiting and one.on_wire == 0 and self._hosts.get(one.key) is one:
            del self._hosts[one.key]

    def _next_call(self, one: _Host, now: float) -> float:
        """Return when Redis is to be asked or told, or the host to be looked at again."""
        at = one.report_at
        if one.permits or (one.strict_s == 0 and now < one.use_before):
            is_active = one.waiting or (one.started is not None and one.on_wire > 0)
            at = min(at, one.renew_at if is_active and one.strict_s == 0 else one.use_before)
        if one.waiting:
            if one.permits:
                # A moment ahead is as good as now, which would mean to ask.
                at = min(at, max(one.use_from, one.next_start, now + 0.0005))
            elif one.on_wire < self._per_host:
                at = min(at, one.ask_at)
        elif one.on_wire == 0 and at == inf and one.next_start > now:
            at = one.next_start
        return at

    def _schedule(self, one: _Host, at: float, now: float) -> None:
        if one.timer is not None:
            if one.timer_at <= at:
                return  # it looks again
            one.timer.cancel()
        one.timer_at = at
        loop = asyncio.get_running_loop()
        one.timer = loop.call_later(max(0.0, at - now), self._timed, one)

    def _timed(self, one: _Host) -> None:
        one.timer, one.timer_at = None, inf
        self._advance(one)

    def _ask(self, one: _Host) -> None:
        one.asking = True
        self._to_ask.append(one)
        if self._desk is None or self._desk.done():
            self._desk = asyncio.create_task(self._ask_all())

    async def _ask_all(self) -> None:
        """Ask for all hosts that have to be asked for, as many as there are at once."""
        while self._to_ask:
            batch, self._to_ask = self._to_ask[:HOSTS_AT_ONCE], self._to_ask[HOSTS_AT_ONCE:]
            sent_at = time.monotonic()
            said = [self._say(one, sent_at) for one in batch]
            answers: Sequence[Permit | None] = [None] * len(batch)
            try:
                answers = await self._permits.ask(said)
                self._pause_s = PAUSE_S[0]
            except FrontierUnavailable as error:
                log.warning("permits.waiting", reason=str(error))
                self._pause_s = min(2 * self._pause_s, PAUSE_S[1])
            except CrawlerError as error:
                _fail(batch, error)
            for one, ask, answer in zip(batch, said, answers, strict=True):
                one.asking = False
                self._take(one, ask, answer, sent_at)
                self._advance(one)

    def _say(self, one: _Host, now: float) -> Ask:
        spare = self._per_host - one.on_wire
        wants = one.waiting or (one.strict_s == 0 and one.started is not None and one.on_wire)
        if not wants or one.pause_until > now:
            want = 0
        else:
            want = min(spare, 1) if one.spacing_s > 0 else spare
        patience_s = max((waiter.before for waiter in one.waiting), default=now) - now
        pause_s = max(0.0, one.pause_until - (now if one.ended is None else one.ended))
        return Ask(
            host=one.key,
            serial=next(self._serials),
            on_wire=one.on_wire,
            started_ago_ms=_ago_ms(one.started, now),
            ended_ago_ms=_ago_ms(one.ended, now),
            pause_ms=int(pause_s * 1000),
            want=want,
            patience_ms=int(max(0.0, min(PATIENCE_S, patience_s)) * 1000),
            delay_ms=int(one.delay_s * 1000),
            per_host=self._per_host,
        )

    def _take(self, one: _Host, ask: Ask, answer: Permit | None, sent_at: float) -> None:
        """Act on an answer; None = there is none, and whatever was granted must not be used."""
        now = time.monotonic()
        one.permits, one.use_before, one.renew_at = 0, 0.0, inf
        if answer is None:
            one.ask_at = now + self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads
            one.report_at = one.ask_at
            return
        one.report_at = inf
        one.strict_s, one.others = answer.delay_ms / 1000, answer.others
        one.started = None if _is_old(one.started, sent_at) else one.started
        one.ended = None if _is_old(one.ended, sent_at) else one.ended
        if one.ended is None:
            one.pause_until = 0.0
        has_ended = ask.on_wire - one.on_wire
        if answer.granted:
            one.permits = answer.granted
            one.use_from = now + answer.start_in_ms / 1000
            one.use_before = sent_at + (answer.start_in_ms + VALID_MS) / 1000
            one.renew_at = one.use_from + RENEW_S
            one.ask_at = now if one.strict_s else now + MORE_S
            if one.strict_s == 0:
                one.permits += has_ended
                has_ended = 0
        elif ask.want:
            one.ask_at = now + answer.wait_ms / 1000 * random.uniform(1.0, 1.1)  # noqa: S311
            self._refuse(one, now)
        if one.pause_until > now:  # the host asked for it while we asked here
            one.permits, one.use_before, one.report_at = 0, 0.0, now
        elif has_ended:
            self._report_soon(one, now)

    def _refuse(self, one: _Host, now: float) -> None:
        """Tell those whose turn comes too late, so that their URLs need not wait here."""
        left: deque[_Waiter] = deque()
        for waiter in one.waiting:
            at = one.ask_at + len(left) * one.turn_s
            if waiter.turn.done():
                continue
            if at > waiter.before:
                waiter.turn.set_result(at - now)
            else:
                left.append(waiter)
        one.waiting = left


class Visit:
    """The requests to one host for one URL; a turn that is open at the end is ended."""

    def __init__(self, pacer: Pacer, host: HostKey, delay_s: float) -> None:
        self._pacer = pacer
        self._host = host
        self._delay_s = delay_s
        self._is_open = False
        self.wait_s = 0.0
        """After :meth:`next` said no: when to come again."""

    def __enter__(self) -> Self:
        """Begin; nothing is taken yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End what is open: a request that was dropped has ended with its connection."""
        self.ended()

    async def next(self, *, before: float) -> bool:
        """Take the turn for the next request; False = it does not come in time."""
        self.ended()
        wait_s = await self._pacer.start(self._host, self._delay_s, before=before)
        self._is_open = wait_s is None
        self.wait_s = wait_s or 0.0
        return self._is_open

    def ended(self, *, pause_s: float = 0.0) -> None:
        """The response has ended; repeating it is harmless."""
        if self._is_open:
            self._is_open = False
            self._pacer.ended(self._host, pause_s=pause_s)

    def unused(self) -> None:
        """The request was not sent after all."""
        if self._is_open:
            self._is_open = False
            self._pacer.unused(self._host)


def _fail(batch: Sequence[_Host], error: CrawlerError) -> None:
    for one in batch:
        for waiter in one.waiting:
            if not waiter.turn.done():
                waiter.turn.set_exception(error)
        one.waiting.clear()


def _ago_ms(at: float | None, now: float) -> int:
    return -1 if at is None else int(max(0.0, now - at) * 1000)


def _is_old(at: float | None, sent_at: float) -> bool:
    return at is not None and at <= sent_at
