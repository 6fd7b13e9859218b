"""When a worker is degraded and when it is fit again."""

from __future__ import annotations

import pytest

from worker.condition import CALM_S, STALLED_S, Condition, Limits, Signs

LIMITS = Limits(memory_bytes=1000, loop_lag_s=1.0)
FINE = Signs(memory_bytes=500)


def after(*signs: Signs) -> Condition:
    condition = Condition(LIMITS)
    for one in signs:
        condition.take(one, passed_s=1.0)
    return condition


def test_a_worker_without_trouble_is_fit() -> None:
    assert after(FINE, FINE).is_fit


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory_bytes": 1001}, "memory"),
        ({"loop_lag_s": 1.5}, "event loop: late by 1.5 s"),
        ({"redis_away_s": 3.0}, "Redis"),
        ({"etcd_late_s": 1.2}, "etcd"),
    ],
)
def test_one_sign_over_its_limit_degrades_at_once_and_is_named(
    change: dict[str, float], said: str
) -> None:
    condition = after(FINE, FINE._replace(**change))
    assert not condition.is_fit
    (reason,) = condition.reasons
    assert said in reason


def test_a_single_second_without_a_core_degrades_nobody_but_a_minute_does() -> None:
    starved = FINE._replace(cpu_wait=1.0)
    assert after(starved).is_fit
    assert "core" in after(*[starved] * 60).reasons[0]


def test_a_worker_is_fit_again_only_after_it_was_well_below_for_a_while() -> None:
    condition = after(FINE._replace(loop_lag_s=2.0))
    for _ in range(int(CALM_S)):
        condition.take(FINE, passed_s=1.0)
        assert not condition.is_fit
    condition.take(FINE, passed_s=1.0)
    assert condition.is_fit


def test_a_sign_that_hovers_at_its_limit_does_not_make_the_state_flap() -> None:
    condition = after(FINE._replace(memory_bytes=1001))
    states = set()
    for number in range(100):
        condition.take(FINE._replace(memory_bytes=990 + 20 * (number % 2)), passed_s=1.0)
        states.add(condition.is_fit)
    assert states == {False}


def test_what_is_said_of_a_trouble_stays_while_it_lasts() -> None:
    condition = after(FINE._replace(loop_lag_s=2.0))
    before = condition.reasons
    condition.take(FINE._replace(loop_lag_s=3.0), passed_s=1.0)
    assert condition.reasons == before


def test_slow_is_who_has_too_much_work_and_no_other_trouble() -> None:
    slow = FINE._replace(loop_lag_s=2.0)
    assert after(slow).is_slow
    assert not after(FINE).is_slow
    assert not after(slow._replace(memory_bytes=2000)).is_slow


def test_only_a_worker_long_without_redis_is_stalled() -> None:
    condition = after(FINE._replace(redis_away_s=STALLED_S - 1))
    assert not condition.is_stalled
    condition.take(FINE._replace(redis_away_s=STALLED_S + 1), passed_s=1.0)
    assert condition.is_stalled
    condition.take(FINE, passed_s=1.0)
    assert not condition.is_stalled
    assert not condition.is_fit


def test_what_redis_says_is_the_reason_and_the_latest_counts() -> None:
    away = FINE._replace(redis_away_s=3.0)
    condition = after(away, away._replace(redis_says="Redis refuses writes: no memory"))
    assert condition.reasons == ("Redis refuses writes: no memory",)
    condition.take(away._replace(redis_says="Redis is a replica"), passed_s=1.0)
    assert condition.reasons == ("Redis is a replica",)
