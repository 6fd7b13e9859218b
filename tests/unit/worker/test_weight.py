"""A worker's weight: down in seconds, up in minutes, and still under noise."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.ids import JobId, NodeId, Task
from coordinator.placement import place
from worker.weight import LEAST, Pressure, Weight, target

EASE = Pressure(cpu=0.3, memory=0.2, loop=0.0, latency=0.1, backlog=0.0)


def under(pressure: Pressure, seconds: int, start: Weight | None = None) -> Weight:
    weight = start or Weight()
    for _ in range(seconds):
        weight = weight.after(pressure, 1.0)
    return weight


def seconds_until(pressure: Pressure, start: Weight, goal: float) -> int:
    weight = start
    for second in range(10_000):
        if (weight.published >= goal) == (goal > start.published):
            return second
        weight = weight.after(pressure, 1.0)
    raise AssertionError("never")


def test_a_worker_with_room_weighs_one() -> None:
    assert under(EASE, 1000) == Weight(1.0, 1.0)


@pytest.mark.parametrize("name", Pressure._fields)
def test_whatever_limits_a_worker_lowers_its_weight(name: str) -> None:
    assert under(EASE._replace(**{name: 1.2}), 60).published < 0.4


def test_an_overload_is_answered_within_seconds_and_forgiven_over_minutes() -> None:
    overload = EASE._replace(cpu=2.0)
    assert seconds_until(overload, Weight(), 0.5) <= 10
    fallen = under(overload, 60)
    assert fallen.published == pytest.approx(LEAST, rel=0.25)
    assert seconds_until(EASE, fallen, 0.5) >= 60
    assert under(EASE, 3600, fallen).published == 1.0


@given(st.floats(0, 10), st.floats(0, 10))
def test_more_pressure_never_gives_more_weight(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert LEAST <= target(high) <= target(low) <= 1.0


@given(st.lists(st.floats(0, 5), max_size=200), st.floats(0.1, 30))
def test_the_weight_stays_within_its_bounds_and_near_what_is_published(
    loads: list[float], passed_s: float
) -> None:
    weight = Weight()
    for load in loads:
        weight = weight.after(EASE._replace(cpu=load), passed_s)
        assert LEAST <= weight.exact <= 1.0
        assert 0.79 <= weight.published / weight.exact <= 1.26


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.2, 1.1))
def test_noise_moves_no_tasks(seed: int, middle: float) -> None:
    """Ten minutes of load that jumps about, the same for all: after the first, nothing moves."""
    random = Random(seed)
    tasks = [Task(JobId("job"), shard) for shard in range(64)]
    weights = {NodeId(f"worker-{number}"): Weight() for number in range(4)}
    placed = place(tasks, dict.fromkeys(weights, 1.0), {})
    moved = []
    for _ in range(600):
        weights = {
            node: weight.after(EASE._replace(cpu=random.gauss(middle, 0.15)), 1.0)
            for node, weight in weights.items()
        }
        after = place(tasks, {node: one.published for node, one in weights.items()}, placed)
        moved.append(sum(after[task] != placed[task] for task in tasks))
        placed = after
    # Once in a hundred such runs a weight is just at a step; without steps hundreds would move.
    assert sum(moved[:60]) <= 16
    assert sum(moved[60:]) <= 16


def test_a_slow_machine_finds_its_share_and_then_rests() -> None:
    """Its cpu is the pressure, and follows the tasks: it gives some away, and takes none for long.

    The worst that could happen is that they come and go with every look.
    """
    tasks = [Task(JobId("job"), shard) for shard in range(64)]
    per_task = {"slow": 0.08, "a": 0.03, "b": 0.03, "c": 0.03}
    weights = {NodeId(name): Weight() for name in per_task}
    placed = place(tasks, dict.fromkeys(weights, 1.0), {})
    history = []
    for _ in range(3600):
        for node, weight in weights.items():
            load = per_task[node] * sum(owner == node for owner in placed.values())
            weights[node] = weight.after(EASE._replace(cpu=load), 1.0)
        after = place(tasks, {node: one.published for node, one in weights.items()}, placed)
        if after != placed:
            history.append(sum(after[task] != placed[task] for task in tasks))
        placed = after
    slow = sum(owner == "slow" for owner in placed.values())
    assert 6 <= slow <= 13
    assert sum(history) <= 40, "an hour's movements"


def test_the_published_weight_moves_by_steps_only() -> None:
    shown = [Weight()]
    for _ in range(1200):
        shown.append(shown[-1].after(EASE._replace(cpu=1.0), 1.0))
    for before, after in pairwise(shown):
        ratio = after.published / before.published
        assert ratio == 1 or not 0.81 < ratio < 1.24
