"""Spacing of requests to a host inside one process.

The frontier spaces claims; a claim waits a little before it is sent, so that two claims a delay
apart may be sent closer than that. The one process that owns the host therefore spaces the sends as
well: from the end of a response where one connection is allowed, from start to start above that.
"""

from __future__ import annotations

import asyncio
import time

from common.model.ids import HostKey

_SWEEP_AT = 10_000


class Pacer:
    """The earliest next start of each host's requests (monotonic seconds)."""

    def __init__(self, *, from_end: bool) -> None:
        self._from_end = from_end
        self._next: dict[HostKey, float] = {}
        self._sweep_at = _SWEEP_AT

    async def start(self, host: HostKey, delay_s: float, *, before: float) -> bool:
        """Wait for the host's turn and take it.

        Args:
            host: where the request goes.
            delay_s: to the next start, seconds.
            before: monotonic time after which the request may not start any more.

        Returns:
            False when the turn comes too late; nothing was taken then.
        """
        while True:
            now = time.monotonic()
            turn = self._next.get(host, 0.0)
            if max(turn, now) > before:
                return False
            if turn <= now:
                self._postpone(host, now + delay_s)
                return True
            await asyncio.sleep(turn - now)

    def ended(self, host: HostKey, delay_s: float) -> None:
        """A response has ended: with one connection a host the delay counts from here."""
        if self._from_end and delay_s > 0:
            self._postpone(host, time.monotonic() + delay_s)

    def _postpone(self, host: HostKey, until: float) -> None:
        if until <= time.monotonic():
            return
        if until > self._next.get(host, 0.0):
            self._next[host] = until
        if len(self._next) > self._sweep_at:
            now = time.monotonic()
            self._next = {one: at for one, at in self._next.items() if at > now}
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._next))
