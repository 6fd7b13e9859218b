"""Hosts that are asked too much, lag, fall silent, and come back."""

from __future__ import annotations

import pytest

from common.model.ids import HostKey
from common.web.retry import ErrorCode
from worker.patience import (
    DOWN_S,
    LONGEST_SLOWDOWN_S,
    PARKS_S,
    SILENT_TO_PARK,
    Patience,
    Standing,
)

HOST = HostKey("http://h.test")
OTHER = HostKey("http://other.test")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def patience(clock: Clock) -> Patience:
    return Patience(timeout_s=30.0, clock=clock)


def answered(patience: Patience, status: int = 200, elapsed_s: float = 0.01) -> None:
    patience.heard(HOST, status=status, error_code=None, elapsed_s=elapsed_s)


def silent(patience: Patience, times: int = 1) -> None:
    for _ in range(times):
        patience.heard(HOST, status=None, error_code=ErrorCode.READ_TIMEOUT, elapsed_s=30)


def test_a_host_that_is_asked_too_much_is_asked_less_and_recovers_slowly(
    patience: Patience,
) -> None:
    delays = []
    for _ in range(12):
        answered(patience, 429)
        delays.append(patience.delay_s(HOST))
    assert delays[0] > 0
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_SLOWDOWN_S
    answered(patience)
    assert LONGEST_SLOWDOWN_S / 2 < patience.delay_s(HOST) < LONGEST_SLOWDOWN_S
    for _ in range(30):
        answered(patience)
    assert patience.delay_s(HOST) == 0
    assert patience.delay_s(OTHER) == 0


def test_a_host_that_becomes_slow_is_slowed_down_for_and_let_go_again(patience: Patience) -> None:
    for _ in range(5):
        answered(patience, elapsed_s=0.3)
    assert patience.delay_s(HOST) == 0
    for _ in range(20):
        answered(patience, elapsed_s=6.0)
    assert 3 < patience.delay_s(HOST) <= 6
    for _ in range(20):
        answered(patience, elapsed_s=0.3)
    assert patience.delay_s(HOST) == 0


def test_a_host_that_was_always_slow_is_only_that(patience: Patience) -> None:
    for _ in range(20):
        answered(patience, elapsed_s=5.0)
    assert patience.delay_s(HOST) == 0


def test_a_silent_host_is_parked_and_one_request_asks_again(
    patience: Patience, clock: Clock
) -> None:
    silent(patience, SILENT_TO_PARK - 1)
    assert patience.standing(HOST) == (Standing.OPEN, 0.0)
    silent(patience)
    assert patience.standing(HOST) == (Standing.PARKED, PARKS_S[0])
    assert patience.standing(OTHER) == (Standing.OPEN, 0.0)
    clock.now += PARKS_S[0]
    assert patience.standing(HOST)[0] is Standing.OPEN
    standing, rest_s = patience.standing(HOST)
    assert standing is Standing.PARKED, "one asks, the others wait for what it hears"
    assert 0 < rest_s <= 1
    answered(patience, 404)
    assert patience.standing(HOST) == (Standing.OPEN, 0.0)


def test_failures_of_one_moment_are_one_park(patience: Patience) -> None:
    silent(patience, 10 * SILENT_TO_PARK)
    assert patience.standing(HOST) == (Standing.PARKED, PARKS_S[0])


def test_a_host_that_stays_silent_is_down_in_bounded_time_and_asked_again_later(
    patience: Patience, clock: Clock
) -> None:
    began = clock.now
    silent(patience, SILENT_TO_PARK)
    while not patience.is_down(HOST):
        standing, rest_s = patience.standing(HOST)
        if standing is Standing.PARKED:
            clock.now += rest_s
        else:
            clock.now += 30
            silent(patience)
    assert clock.now - began < 900
    assert patience.standing(HOST) == (Standing.DOWN, 0.0)
    assert patience.delay_s(HOST) == 0, "nothing is sent: its URLs may end at once"
    clock.now += DOWN_S
    assert patience.standing(HOST)[0] is Standing.OPEN
    silent(patience)
    assert patience.is_down(HOST)
    clock.now += DOWN_S
    assert patience.standing(HOST)[0] is Standing.OPEN
    answered(patience)
    assert patience.standing(HOST) == (Standing.OPEN, 0.0)


def test_failures_that_say_nothing_of_the_host_do_not_park_it(patience: Patience) -> None:
    for code in (ErrorCode.TOO_LARGE, ErrorCode.BAD_ENCODING, ErrorCode.TLS_FAILED):
        for _ in range(10):
            patience.heard(HOST, status=None, error_code=code, elapsed_s=0.1)
    assert patience.standing(HOST) == (Standing.OPEN, 0.0)
