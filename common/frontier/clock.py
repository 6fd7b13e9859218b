"""Notices when a server's clock is set forward, which no script can: to it, time has passed."""

from __future__ import annotations

from math import inf
from typing import Final

SLACK_S: Final = 0.05
DRIFT: Final = 0.001
"""By how much two sound clocks may differ in a second; twice what NTP slews by."""


class ServerClock:
    """What one process knows of a server's clock, by its own monotonic one."""

    def __init__(self) -> None:
        self._ahead_s = inf
        """By how much the server's clock was ahead of ours at most, when last read."""
        self._read_at = 0.0
        self.jumped_at = -inf
        """Monotonic time at which the server's clock was last found to have been set forward."""

    def read(self, server_s: float, *, sent_at: float, received_at: float) -> None:
        """Take a time that the server named between two moments of our monotonic clock."""
        allowed_s = SLACK_S + DRIFT * max(0.0, received_at - self._read_at)
        if server_s - received_at > self._ahead_s + allowed_s:
            self.jumped_at = received_at
        self._ahead_s, self._read_at = server_s - sent_at, received_at
