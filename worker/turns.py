"""The turns of one host or group in this process: who is next, and what Redis has to hear of it.

Permits come from Redis (``common.frontier.pace``). Without a delay in force they come in batches
and are used for one request after the other, for about a second; then they are asked for again or
given back, so that others get their share. With a delay each request has its own. Beside that the
process spaces its own sends, by its own clock: from the end of a response where one connection is
allowed, from start to start above that.

A group (``worker.groups``) is used by several workers as a rule, each for few requests. So its
permits are *lent*: where others want some, no more are asked for than are needed, and one that
nobody here uses goes back at once and not after its second.

Invariants: while permits are asked for, none of them is used, so that what was said stays
true. Whoever got a turn ends it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, Protocol

from common.frontier.pace import VALID_MS, Ask, Permit
from common.model.errors import CrawlerError
from common.model.ids import PaceKey

PATIENCE_S: Final = 1.0
"""A permit is taken at most this long before its time."""
RENEW_S: Final = 0.7 * VALID_MS / 1000
"""Permits in use are asked for again before they end."""
MORE_S: Final = 0.1
"""How soon more permits are asked for than were granted, or an end is told to nobody who waits."""
REPORT_S: Final = 5.0
"""How soon the end of a request to a host with a delay is told to nobody who waits, at most."""
LEND_S: Final = 0.02
"""How long a group's permit may lie idle while others want it."""
FULL_S: Final = 0.05
"""About how soon something changes where all that may be on the wire is."""


class Desk(Protocol):
    """Where permits are asked for."""

    def ask(self, turns: Turns) -> None:
        """Tell and ask for these turns; :meth:`Turns.take` brings the answer."""

    def forget(self, turns: Turns) -> None:
        """Nothing has to be remembered of them any more."""


class _Waiter(NamedTuple):
    turn: asyncio.Future[float | None]
    """None = go; else seconds after which it makes sense to come again."""
    before: float


@dataclass(slots=True, eq=False)
class Turns:
    """One host or group as this process sees it; times are monotonic seconds."""

    key: PaceKey
    at_once: int
    """Requests at one time that the job allows."""
    desk: Desk
    is_lent: bool = False
    """Whether permits are given back as soon as others want what is idle here."""
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
    ended_at: float | None = None
    pause_until: float = 0.0
    """Not told to Redis yet, as the two before."""
    waiting: deque[_Waiter] = field(default_factory=deque)
    asking: bool = False
    idle_from: float = 0.0
    """Since when permits have lain unused, if nobody waits."""
    timer: asyncio.TimerHandle | None = None
    timer_at: float = inf

    @property
    def spacing_s(self) -> float:
        """The delay that counts here."""
        return max(self.delay_s, self.strict_s)

    @property
    def turn_s(self) -> float:
        """About how long from one turn here to the next, others having theirs in between."""
        return self.spacing_s * (1 + self.others)

    @property
    def is_idle(self) -> bool:
        """Tell whether nobody has a turn or waits for one."""
        return self.on_wire == 0 and not self.waiting

    def rest_s(self) -> float:
        """Return for how long no turn is to be expected, as far as is known here."""
        now = time.monotonic()
        at = self._turn_at(len(self.waiting), now)
        if self.permits and now < self.use_before:
            at = max(at, self.use_from)
        is_full = self.on_wire + len(self.waiting) >= self.at_once
        return max(at - now, FULL_S if is_full else 0.0)

    async def start(self, delay_s: float, *, before: float) -> float | None:
        """Wait for a turn and take it; :meth:`ended` or :meth:`unused` must follow.

        Args:
            delay_s: between two requests, seconds.
            before: monotonic time after which the request may not start any more.

        Returns:
            None = the request may start now. Else the turn comes too late, and nothing was taken:
            seconds after which it makes sense to ask again.
        """
        self.delay_s = delay_s
        now = time.monotonic()
        if not self.waiting and self._has_turn(now):
            self._use(now)
            return None
        turn_at = self._turn_at(len(self.waiting), now)
        if turn_at > before or now > before:
            self._advance()
            return turn_at - now
        waiter = _Waiter(asyncio.get_running_loop().create_future(), before)
        self.waiting.append(waiter)
        self._advance()
        try:
            async with asyncio.timeout(before - now):
                wait_s = await waiter.turn
        except TimeoutError:
            self._withdraw(waiter)
            return max(self._turn_at(len(self.waiting), before) - before, self.spacing_s)
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        if wait_s is None:
            self._begin(time.monotonic())  # the loop may have been busy since it was given
        return wait_s

    def ended(self, *, pause_s: float = 0.0) -> None:
        """A response has ended, after which the host may have asked to be left alone."""
        now = time.monotonic()
        self.ended_at = now
        if self.at_once == 1 and self.spacing_s > 0:
            self.next_start = max(self.next_start, now + self.spacing_s)
        if pause_s > 0:
            self.pause_until = max(self.pause_until, now + pause_s)
            self.use_before = 0.0
        self._give_back(now)

    def unused(self) -> None:
        """A turn was taken, but nothing was sent."""
        self._give_back(time.monotonic())

    def say(self, now: float, *, serial: int) -> Ask:
        """Return what Redis is to be told and asked."""
        spare = self.at_once - self.on_wire
        wants = self.waiting or (self.strict_s == 0 and self.started is not None and self.on_wire)
        if not wants or self.pause_until > now:
            want = 0
        else:
            want = min(spare, 1) if self.spacing_s > 0 else spare
            if self.is_lent and self.others:
                want = min(want, len(self.waiting))
        patience_s = max((waiter.before for waiter in self.waiting), default=now) - now
        pause_s = max(0.0, self.pause_until - (now if self.ended_at is None else self.ended_at))
        return Ask(
            key=self.key,
            serial=serial,
            on_wire=self.on_wire,
            started_ago_ms=_ago_ms(self.started, now),
            ended_ago_ms=_ago_ms(self.ended_at, now),
            pause_ms=int(pause_s * 1000),
            want=want,
            patience_ms=int(max(0.0, min(PATIENCE_S, patience_s)) * 1000),
            delay_ms=int(self.delay_s * 1000),
            at_once=self.at_once,
        )

    def take(self, said: Ask, answer: Permit | None, *, sent_at: float, again_s: float) -> None:
        """Act on the answer to what was said.

        Args:
            said: what was.
            answer: None = there is none, and whatever was granted must not be used.
            sent_at: monotonic time of the call.
            again_s: after which to ask again where there was no answer.
        """
        self.asking = False
        now = time.monotonic()
        self.permits, self.use_before, self.renew_at = 0, 0.0, inf
        if answer is None:
            self.ask_at = self.report_at = now + again_s
        else:
            self._learn(said, answer, sent_at, now)
        self._advance()

    def fail(self, error: CrawlerError) -> None:
        """End everybody's wait with an error."""
        for waiter in self.waiting:
            if not waiter.turn.done():
                waiter.turn.set_exception(error)
        self.waiting.clear()

    def stop(self) -> None:
        """Act on nothing any more."""
        if self.timer is not None:
            self.timer.cancel()

    def _has_turn(self, now: float) -> bool:
        return (
            self.permits > 0
            and not self.asking
            and max(self.use_from, self.next_start) <= now < self.use_before
        )

    def _use(self, now: float) -> None:
        self.permits -= 1
        self.on_wire += 1
        self._begin(now)

    def _begin(self, now: float) -> None:
        self.started = now
        if self.at_once > 1 and self.spacing_s > 0:
            self.next_start = now + self.spacing_s
            if self.others:  # they wait for the earliest moment this can have been
                self.report_at = now
                self._schedule(now, now)

    def _give_back(self, now: float) -> None:
        self.on_wire -= 1
        if self.asking:
            return  # the answer counts with what was on the wire when it was asked for
        if self.strict_s == 0 and now < self.use_before:
            self.permits += 1
            self.idle_from = now
            if self.waiting or self.is_lent:
                self._advance()
            return
        self._report_soon(now)
        self._advance()

    def _report_soon(self, now: float) -> None:
        if self.others or self.pause_until > now:
            wait_s = 0.0
        elif self.is_lent:
            wait_s = min(MORE_S, self.spacing_s / 4)
        else:  # until then nobody else may start either, and the next ask may tell it
            wait_s = min(REPORT_S, self.spacing_s)
        self.report_at = min(self.report_at, now + wait_s)

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self.waiting:
            self.waiting.remove(waiter)
        elif waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.result() is None:
            self.unused()  # it came at the same moment

    def _turn_at(self, before_it: int, now: float) -> float:
        """Return when a turn may come, as far as is known."""
        at = max(now, self.next_start)
        if self.permits == 0 or now >= self.use_before:
            at = max(at, self.ask_at)
        return at + before_it * self.turn_s

    def _advance(self) -> None:
        """Hand out turns, ask for what is missing, and see to it that time is kept."""
        if self.asking:
            return
        now = time.monotonic()
        if self.permits and now >= self.use_before:
            self.permits = 0
            self.report_at = now
        while self.waiting and self._has_turn(now):
            waiter = self.waiting.popleft()
            if not waiter.turn.done():
                self._use(now)
                waiter.turn.set_result(None)
        at = self._next_call(now)
        if at <= now:
            self.asking = True
            self.desk.ask(self)
        elif at < inf:
            self._schedule(at, now)
        elif self.is_idle:
            self.desk.forget(self)

    def _next_call(self, now: float) -> float:
        """Return when Redis is to be asked or told, or the host to be looked at again."""
        at = self.report_at
        if self.permits or (self.strict_s == 0 and now < self.use_before):
            is_active = self.waiting or (self.started is not None and self.on_wire > 0)
            at = min(at, self.renew_at if is_active and self.strict_s == 0 else self.use_before)
        if self.is_lent and self.others and self.permits and not self.waiting:
            at = min(at, self.idle_from + LEND_S)
        if self.waiting:
            if self.permits:
                # A moment ahead is as good as now, which would mean to ask.
                at = min(at, max(self.use_from, self.next_start, now + 0.0005))
            elif self.on_wire < self.at_once:
                at = min(at, self.ask_at)
        elif self.on_wire == 0 and at == inf and self.next_start > now:
            at = self.next_start
        return at

    def _schedule(self, at: float, now: float) -> None:
        if self.timer is not None:
            if self.timer_at <= at:
                return  # it looks again
            self.timer.cancel()
        self.timer_at = at
        self.timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._timed)

    def _timed(self) -> None:
        self.timer, self.timer_at = None, inf
        self._advance()

    def _learn(self, said: Ask, answer: Permit, sent_at: float, now: float) -> None:
        self.report_at = inf
        self.strict_s, self.others = answer.delay_ms / 1000, answer.others
        self.started = None if _is_old(self.started, sent_at) else self.started
        self.ended_at = None if _is_old(self.ended_at, sent_at) else self.ended_at
        if self.ended_at is None:
            self.pause_until = 0.0
        has_ended = said.on_wire - self.on_wire
        if answer.granted:
            self.permits = answer.granted
            self.idle_from = now
            self.use_from = now + answer.start_in_ms / 1000
            self.use_before = sent_at + (answer.start_in_ms + VALID_MS) / 1000
            self.renew_at = self.use_from + RENEW_S
            self.ask_at = now if self.strict_s else now + MORE_S
            if self.strict_s == 0:
                self.permits += has_ended
                has_ended = 0
        elif said.want:
            self.ask_at = now + answer.wait_ms / 1000 * random.uniform(1.0, 1.1)  # noqa: S311
            self._refuse(now)
        if self.pause_until > now:  # the host asked for it while we asked here
            self.permits, self.use_before, self.report_at = 0, 0.0, now
        elif has_ended:
            self._report_soon(now)

    def _refuse(self, now: float) -> None:
        """Tell those whose turn comes too late, so that their URLs need not wait here."""
        left: deque[_Waiter] = deque()
        for waiter in self.waiting:
            at = self.ask_at + len(left) * self.turn_s
            if waiter.turn.done():
                continue
            if at > waiter.before:
                waiter.turn.set_result(at - now)
            else:
                left.append(waiter)
        self.waiting = left


def _ago_ms(at: float | None, now: float) -> int:
    return -1 if at is None else int(max(0.0, now - at) * 1000)


def _is_old(at: float | None, sent_at: float) -> bool:
    return at is not None and at <= sent_at
