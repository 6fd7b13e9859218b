"""Wall-clock times as they are stored and shown: RFC 3339, UTC, milliseconds.

For people and records only. Durations inside a process are measured with ``time.monotonic``, and
nothing is ever decided by comparing the clocks of two machines.
"""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Return the present time, as in ``2026-11-30T08:15:30.123Z``."""
    return _written(datetime.now(UTC))


def from_unix_ms(time_ms: int) -> str:
    """Return a Unix time in ms as it is shown."""
    return _written(datetime.fromtimestamp(time_ms / 1000, UTC))


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between two times written by :func:`utc_now`; never negative.

    Good for showing how long something took, not for deciding anything.
    """
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
