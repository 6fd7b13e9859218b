"""When a task claims next: once one of its hosts is due, or something happened that it cannot know.

Each claim's answer says when the shard's hosts are due. To that comes what is known here: a page
that has ended makes its host due again after the delay, and a link to a host that is on the agenda
already, or is being asked, changes nothing. So a claim is made when there is something to claim,
not whenever something happened. Times are monotonic seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Final

from common.frontier.replies import Claim
from common.model.ids import HostKey

ROUNDED_S: Final = 0.002
"""Redis rounds times up, to whole milliseconds."""
AMPLE: Final = 8
"""Free places from which on some may wait for the time of their hosts."""


class Agenda:
    """What one task knows of its hosts."""

    def __init__(self, lead_s: Callable[[HostKey], float], *, per_host: int) -> None:
        """Begin; the first claim is made at once.

        Args:
            lead_s: how long before its time a host is claimed.
            per_host: requests at a time. Above one a host that is being asked may be due as well.
        """
        self._lead_s = lead_s
        self._is_one = per_host == 1
        self._next_at = 0.0
        self._sooner = asyncio.Event()
        self._due: dict[HostKey, float] = {}
        """Hosts with queued URLs and when each is due, soonest first."""
        self._asked: dict[int, HostKey] = {}
        """By claim, hosts with a delay that are being asked: not due before that has ended."""
        self._settled: dict[HostKey, float] | None = None
        """Hosts that rest, since the claim under way was sent; None = none is."""

    def due(self, now: float) -> list[HostKey]:
        """Return the hosts that are due."""
        return [host for host, at in self._due.items() if at <= now]

    def leads_ms(self, delays_ms: Mapping[HostKey, int], *, places: int) -> dict[HostKey, int]:
        """Return how long before their time hosts are claimed with so many free places.

        Who is claimed ahead of its time waits in a place: not where others need it now.
        """
        if places < AMPLE:
            return {}
        return {host: int(self._lead_s(host) * 1000) for host, delay in delays_ms.items() if delay}

    def expect(self, at: float) -> None:
        """Something may be there to claim from then on (0 = now)."""
        if at < self._next_at:
            self._next_at = at
            self._sooner.set()

    def asking(self) -> None:
        """A claim is sent: its answer holds whatever was expected before."""
        self._next_at = inf
        self._settled = {}

    def answered(
        self,
        ahead: Sequence[tuple[HostKey, int]],
        claims: Iterable[Claim],
        delays_ms: Mapping[HostKey, int],
        now: float,
    ) -> None:
        """Take over an answer to a claim.

        Args:
            ahead: hosts with queued URLs and in how many ms each is due, soonest first.
            claims: what it brought.
            delays_ms: of the hosts of the claims.
            now: when it came.
        """
        due = {host: now + ms / 1000 - self._lead_s(host) for host, ms in ahead}
        # A host that is due already and of which nothing came is not to be asked for all the time.
        self.expect(min((due[host] for host, ms in ahead if ms > 0), default=inf))
        self._due = due | (self._settled or {})
        if self._is_one:
            asked = [claim for claim in claims if delays_ms[claim.host]]
            self._asked.update((claim.number, claim.host) for claim in asked)
        self._settled = None

    def unanswered(self) -> None:
        """There is no answer to a claim."""
        self._settled = None

    def settled(self, claim: int, *, rest_ms: int | None, ended_at: float | None) -> None:
        """A claim is settled.

        Args:
            claim: its number.
            rest_ms: how long its host rests from ``ended_at`` on; None = that is to be seen.
            ended_at: when its response ended; None = nothing was sent.
        """
        host = self._asked.pop(claim, None)
        if host is None or not rest_ms or ended_at is None:
            self.expect(0.0)
            return
        at = ended_at + rest_ms / 1000 + ROUNDED_S - self._lead_s(host)
        self._due[host] = at
        if self._settled is not None:
            self._settled[host] = at
        self.expect(at)

    def offered(self, hosts: Iterable[HostKey]) -> None:
        """URLs of these hosts were queued."""
        asked = self._asked.values()
        if self._settled is not None or any(
            host not in self._due and host not in asked for host in hosts
        ):
            self.expect(0.0)

    async def wait(self) -> None:
        """Wait until there may be something to claim."""
        while (wait_s := self._next_at - time.monotonic()) > 0:
            self._sooner.clear()
            try:
                async with asyncio.timeout(None if wait_s == inf else wait_s):
                    await self._sooner.wait()
            except TimeoutError:
                return
