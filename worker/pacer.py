"""Whose turn it is: every request of a job to a host, in this process, asks here first.

A request starts only with a permit from Redis (``common.frontier.pace``), which the host's requests
of all jobs and workers share; with ``--per-ip`` and ``--per-domain`` also with one of each group
the host is in (``worker.groups``). How permits are used is said in ``worker.turns``. Asking for
many hosts and groups shares round trips.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Final

import structlog

from common.frontier.pace import LEAVES, Permit, Permits
from common.model.errors import CrawlerError, FrontierUnavailable
from common.model.ids import HostKey, PaceKey
from worker.groups import Group, Groups
from worker.turns import Turns
from worker.visit import GroupedVisit, Visit

KEYS_AT_ONCE: Final = 64
PAUSE_S: Final = (0.05, 1.0)
"""First and longest wait before a server that did not answer is asked again."""
LEAVE_S: Final = 2.0
"""How long the end of a job here waits to give back what it has."""

log = structlog.get_logger()


class Pacer:
    """The turns of one job in one process, and the desk at which their permits are asked for."""

    def __init__(self, permits: Permits, *, per_host: int, groups: Groups | None = None) -> None:
        """Prepare.

        Args:
            permits: of this job in this process.
            per_host: requests at once to a host.
            groups: what else hosts take turns in.
        """
        self._permits = permits
        self._per_host = per_host
        self._groups = groups
        self._turns: dict[PaceKey, Turns] = {}
        self._serials = itertools.count(1)
        self._to_ask: list[Turns] = []
        self._asking: asyncio.Task[None] | None = None
        self._pause_s = PAUSE_S[0]

    def visit(self, host: HostKey, delay_s: float) -> Visit:
        """Return the requests to a host for one URL, to be made one after the other."""
        if self._groups is None:
            return Visit(self, host, delay_s)
        return GroupedVisit(self, host, delay_s, self._groups)

    def host(self, host: HostKey) -> Turns:
        """Return the turns of a host; those that nobody uses or waits for are forgotten."""
        one = self._turns.get(host)
        if one is None:
            one = self._turns[host] = Turns(host, self._per_host, self)
        return one

    def group(self, group: Group) -> Turns:
        """Return the turns of a group."""
        one = self._turns.get(group.key)
        if one is None:
            one = self._turns[group.key] = Turns(group.key, group.at_once, self, is_lent=True)
        return one

    def waiting(self, group: Group) -> int:
        """Return how many wait here for a turn of a group."""
        one = self._turns.get(group.key)
        return 0 if one is None else len(one.waiting)

    def rest_s(self, host: HostKey) -> float:
        """Return for how long no turn of a host is to be expected, as far as is known here."""
        one = self._turns.get(host)
        return 0.0 if one is None else one.rest_s()

    def ask(self, turns: Turns) -> None:
        """Tell and ask for these turns soon, together with others."""
        self._to_ask.append(turns)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all())

    def forget(self, turns: Turns) -> None:
        """Nothing has to be remembered of these turns any more."""
        if self._turns.get(turns.key) is turns:
            del self._turns[turns.key]

    async def close(self) -> None:
        """Give back everything, when all requests have ended."""
        known = list(self._turns.values())
        self._turns.clear()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        for one in known:
            one.stop()
        now = time.monotonic()
        said = [one.say(now, serial=next(self._serials)) for one in known]
        leaving = [ask._replace(want=0, delay_ms=LEAVES) for ask in said]
        answers: list[Permit | FrontierUnavailable | None] = []
        try:
            async with asyncio.timeout(LEAVE_S):
                for start in range(0, len(leaving), KEYS_AT_ONCE):
                    answers += await self._permits.ask(leaving[start : start + KEYS_AT_ONCE])
        except TimeoutError:
            answers.append(FrontierUnavailable(f"no answer within {LEAVE_S:g} s"))
        failures = {str(one) for one in answers if isinstance(one, FrontierUnavailable)}
        for reason in sorted(failures):
            log.info("pacer.permits_kept", reason=reason, until="they end by themselves")

    async def _ask_all(self) -> None:
        """Ask for everything that has to be asked for, as much as there is at once."""
        while self._to_ask:
            batch, self._to_ask = self._to_ask[:KEYS_AT_ONCE], self._to_ask[KEYS_AT_ONCE:]
            sent_at = time.monotonic()
            said = [one.say(sent_at, serial=next(self._serials)) for one in batch]
            answers: Sequence[Permit | FrontierUnavailable | None] = [None] * len(batch)
            try:
                answers = await self._permits.ask(said)
                self._note([one for one in answers if isinstance(one, FrontierUnavailable)])
            except CrawlerError as error:
                for one in batch:
                    one.fail(error)
            for one, ask, answer in zip(batch, said, answers, strict=True):
                again_s = self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads
                permit = answer if isinstance(answer, Permit) else None
                one.take(ask, permit, sent_at=sent_at, again_s=again_s)

    def _note(self, failures: Sequence[FrontierUnavailable]) -> None:
        """Tell what is waited for, and wait longer for it each time."""
        if not failures:
            self._pause_s = PAUSE_S[0]
            return
        log.warning("permits.waiting", reason=str(failures[0]))
        self._pause_s = min(2 * self._pause_s, PAUSE_S[1])
