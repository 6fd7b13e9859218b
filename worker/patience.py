"""How a host is faring: when to slow down for it, when to leave it alone, when to give it up.

* A host that says it is asked too much (429, 503) is asked half as often from then on, and each
  answer brings it a little nearer to its usual pace. The same where it answers far more slowly
  than it can.
* A host of which nothing is heard several times in a row (no connection, no answer) is *parked*:
  its URLs go back to their queue unasked and keep their attempts, so that they hold no places that
  other hosts could use. Then one of them asks again. Each park is longer than the last.
* A host that stays silent through all parks is *down*: its URLs end as dead letters, which
  ``dead --retry`` puts back, and do not keep the job from its end.

Kept by each process for the hosts it asks; a new owner begins anew, so the bounds hold per owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from common.model.ids import HostKey
from common.web.retry import ErrorCode

SILENT_TO_PARK: Final = 4
"""Failures in a row after which a host is parked."""
PARKS_S: Final = (5.0, 15.0, 45.0, 120.0, 240.0)
DOWN_S: Final = 900.0
"""For how long a host that was given up is not asked again."""
FIRST_SLOWDOWN_S: Final = 0.25
LONGEST_SLOWDOWN_S: Final = 60.0
_RECOVERY: Final = 0.7
_LAG_S: Final = 2.0
_LAG_FACTOR: Final = 4.0
_SMOOTHING: Final = 0.2
_MAX_HOSTS: Final = 50_000

_SILENT: Final = frozenset(
    (
        ErrorCode.CONNECT_TIMEOUT, ErrorCode.CONNECT_REFUSED, ErrorCode.CONNECT_FAILED,
        ErrorCode.DNS_FAILED, ErrorCode.READ_TIMEOUT, ErrorCode.CONNECTION_RESET,
        ErrorCode.ROBOTS_UNAVAILABLE,
    )
)  # fmt: skip


class Standing(StrEnum):
    """Whether a host may be asked."""

    OPEN = "open"
    PARKED = "parked"
    DOWN = "down"


@dataclass(slots=True)
class _Host:
    silent: int = 0
    """Failures since it was last heard."""
    parks: int = 0
    until: float = 0.0
    """Parked or down until then."""
    is_down: bool = False
    probe_until: float = 0.0
    """Until then one request asks whether it is there again, and others wait."""
    slowdown_s: float = 0.0
    latency_s: float = 0.0
    usual_s: float = 0.0


class Patience:
    """The hosts of one job in one process."""

    def __init__(self, *, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare.

        Args:
            timeout_s: after which a request is over in any case.
            clock: monotonic seconds.
        """
        self._timeout_s = timeout_s
        self._clock = clock
        self._hosts: dict[HostKey, _Host] = {}
        """Those of which something is to be remembered."""

    def delay_s(self, host: HostKey) -> float:
        """Return the least delay between requests to a host, for its own sake."""
        known = self._hosts.get(host)
        if known is None or known.is_down:
            return 0.0
        is_lagging = known.latency_s > max(_LAG_S, _LAG_FACTOR * known.usual_s)
        return max(known.slowdown_s, known.latency_s if is_lagging else 0.0)

    def standing(self, host: HostKey) -> tuple[Standing, float]:
        """Tell whether a host may be asked now, and else how long its URLs are to rest.

        OPEN for a silent host means that the asker is its probe; others are put off until it ends.
        """
        known = self._hosts.get(host)
        if known is None or known.silent < SILENT_TO_PARK:
            return Standing.OPEN, 0.0
        now = self._clock()
        if known.until > now:
            return (Standing.DOWN, 0.0) if known.is_down else (Standing.PARKED, known.until - now)
        if known.probe_until > now:
            return Standing.PARKED, min(1.0, known.probe_until - now)
        known.is_down = False
        known.probe_until = now + self._timeout_s
        return Standing.OPEN, 0.0

    def is_down(self, host: HostKey) -> bool:
        """Tell whether a host was given up for now."""
        known = self._hosts.get(host)
        return known is not None and known.is_down and known.until > self._clock()

    def heard(
        self, host: HostKey, *, status: int | None, error_code: str | None, elapsed_s: float
    ) -> None:
        """Take note of how a request to a host ended."""
        if error_code in _SILENT:
            self._silent(self._known(host))
        elif status is not None:
            known = self._hosts.get(host)
            is_too_much = status in (429, 503)
            if known is None:
                if not is_too_much and elapsed_s < _LAG_S / 8:
                    return  # the usual host costs nothing
                known = self._known(host)
            known.silent, known.parks, known.is_down, known.probe_until = 0, 0, False, 0.0
            self._pace(known, is_too_much=is_too_much, elapsed_s=elapsed_s)

    def _silent(self, known: _Host) -> None:
        known.silent += 1
        known.probe_until = 0.0
        now = self._clock()
        if known.silent < SILENT_TO_PARK or known.until > now:
            return  # others of the same moment say nothing new
        known.is_down = known.parks >= len(PARKS_S)
        known.until = now + (DOWN_S if known.is_down else PARKS_S[known.parks])
        known.parks += not known.is_down

    def _pace(self, known: _Host, *, is_too_much: bool, elapsed_s: float) -> None:
        if is_too_much:
            doubled = max(FIRST_SLOWDOWN_S, 2 * known.slowdown_s)
            known.slowdown_s = min(doubled, LONGEST_SLOWDOWN_S)
            return
        known.slowdown_s *= _RECOVERY
        if known.slowdown_s < FIRST_SLOWDOWN_S / 10:
            known.slowdown_s = 0.0
        if not known.latency_s:
            known.latency_s = known.usual_s = elapsed_s
        known.latency_s += _SMOOTHING * (elapsed_s - known.latency_s)
        if elapsed_s < known.usual_s:
            known.usual_s = elapsed_s
        else:
            known.usual_s += 0.01 * (elapsed_s - known.usual_s)

    def _known(self, host: HostKey) -> _Host:
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= _MAX_HOSTS:
                self._hosts.pop(next(iter(self._hosts)))
            known = self._hosts[host] = _Host()
        return known
