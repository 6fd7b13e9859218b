"""A server's clock that was set forward is told from one that is merely read late."""

from __future__ import annotations

from math import inf

import pytest

from common.frontier.clock import ServerClock


@pytest.mark.parametrize(
    ("step_s", "wait_s", "late_s", "is_jump"),
    [
        (3600, 1, 0.001, True),
        (0.5, 1, 0.001, True),
        (0.2, 1, 0.6, False),  # the answer took so long that it explains the difference
        (0, 1, 2.0, False),
        (-3600, 1, 0.001, False),
        (0.5, 3600, 0.001, False),  # what clocks drift apart in an hour
        (30, 3600, 0.001, True),
    ],
)
def test_jumps(step_s: float, wait_s: float, late_s: float, is_jump: bool) -> None:
    clock = ServerClock()
    clock.read(1e9, sent_at=10.0, received_at=10.002)
    at = 10.0 + wait_s
    clock.read(1e9 + wait_s + late_s / 2 + step_s, sent_at=at, received_at=at + late_s)
    assert (at + late_s if is_jump else -inf) == clock.jumped_at


def test_a_clock_set_back_and_right_again_has_jumped() -> None:
    clock = ServerClock()
    for at, server_s in ((1.0, 101.0), (2.0, 2.0), (3.0, 103.0)):
        clock.read(server_s, sent_at=at, received_at=at)
    assert 3.0 == clock.jumped_at
