"""Whose turn it is: every request of a job to a host, in this process, asks here first.

A request starts only with a permit from Redis (``common.frontier.pace``), which the host's requests
of all jobs and workers share; how a host's permits are used is said in ``worker.turns``. Asking for
many hosts shares round trips.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import structlog

from common.frontier.pace import LEAVES, Permit, Permits
from common.model.errors import CrawlerError, FrontierUnavailable
from common.model.ids import HostKey
from worker.turns import Turns

HOSTS_AT_ONCE: Final = 64
PAUSE_S: Final = (0.05, 1.0)
"""First and longest wait before a server that did not answer is asked again."""
LEAVE_S: Final = 2.0
"""How long the end of a job here waits to give back what it has."""

log = structlog.get_logger()


class Pacer:
    """The turns of one job in one process, and the desk at which their permits are asked for."""

    def __init__(self, permits: Permits, *, per_host: int) -> None:
        self._permits = permits
        self._per_host = per_host
        self._turns: dict[HostKey, Turns] = {}
        self._serials = itertools.count(1)
        self._to_ask: list[Turns] = []
        self._asking: asyncio.Task[None] | None = None
        self._pause_s = PAUSE_S[0]

    def visit(self, host: HostKey, delay_s: float) -> Visit:
        """Return the requests to a host for one URL, to be made one after the other."""
        return Visit(self, host, delay_s)

    def turns(self, host: HostKey) -> Turns:
        """Return the turns of a host; those that nobody uses or waits for are forgotten."""
        one = self._turns.get(host)
        if one is None:
            one = self._turns[host] = Turns(host, self._per_host, self)
        return one

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
        hosts = list(self._turns.values())
        self._turns.clear()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        for one in hosts:
            one.stop()
        now = time.monotonic()
        said = [one.say(now, serial=next(self._serials)) for one in hosts]
        leaving = [ask._replace(want=0, delay_ms=LEAVES) for ask in said]
        try:
            async with asyncio.timeout(LEAVE_S):
                for start in range(0, len(leaving), HOSTS_AT_ONCE):
                    await self._permits.ask(leaving[start : start + HOSTS_AT_ONCE])
        except (TimeoutError, FrontierUnavailable) as error:
            log.info("pacer.permits_kept", reason=str(error), until="they end by themselves")

    async def _ask_all(self) -> None:
        """Ask for all hosts that have to be asked for, as many as there are at once."""
        while self._to_ask:
            batch, self._to_ask = self._to_ask[:HOSTS_AT_ONCE], self._to_ask[HOSTS_AT_ONCE:]
            sent_at = time.monotonic()
            said = [one.say(sent_at, serial=next(self._serials)) for one in batch]
            answers: Sequence[Permit | None] = [None] * len(batch)
            try:
                answers = await self._permits.ask(said)
                self._pause_s = PAUSE_S[0]
            except FrontierUnavailable as error:
                log.warning("permits.waiting", reason=str(error))
                self._pause_s = min(2 * self._pause_s, PAUSE_S[1])
            except CrawlerError as error:
                for one in batch:
                    one.fail(error)
            for one, ask, answer in zip(batch, said, answers, strict=True):
                again_s = self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads
                one.take(ask, answer, sent_at=sent_at, again_s=again_s)


class Visit:
    """The requests to one host for one URL; a turn that is open at the end is ended."""

    def __init__(self, pacer: Pacer, host: HostKey, delay_s: float) -> None:
        self._pacer = pacer
        self._host = host
        self._delay_s = delay_s
        self._open: Turns | None = None
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
        turns = self._pacer.turns(self._host)
        wait_s = await turns.start(self._delay_s, before=before)
        self._open = turns if wait_s is None else None
        self.wait_s = wait_s or 0.0
        return self._open is not None

    def ended(self, *, pause_s: float = 0.0) -> None:
        """The response has ended; repeating it is harmless."""
        if self._open is not None:
            turns, self._open = self._open, None
            turns.ended(pause_s=pause_s)

    def unused(self) -> None:
        """The request was not sent after all."""
        if self._open is not None:
            turns, self._open = self._open, None
            turns.unused()
