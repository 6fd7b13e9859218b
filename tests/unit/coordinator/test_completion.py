"""A job is finished by two equal passes over empty shards, never by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.ids import Revision
from common.model.job import JobState
from coordinator.completion import is_complete, look
from tests.unit.coordinator.facts_for_tests import REVISION, make_job, shard, shards


def test_two_equal_passes_complete_a_job() -> None:
    first = look(make_job(), REVISION, shards(discovered=3, done=3))
    second = look(make_job(), REVISION, shards(discovered=3, done=3))
    assert first is not None
    assert is_complete(first, second)


def test_one_pass_is_never_enough() -> None:
    assert not is_complete(None, look(make_job(), REVISION, shards()))
    assert not is_complete(look(make_job(), REVISION, shards()), None)
    assert not is_complete(None, None)


@pytest.mark.parametrize(
    "left",
    [
        {"queued": 1},
        {"delayed": 1},
        {"in_flight": 1},
        {"staged": 1},
        {"exists": False},
        {"state": "sealed"},
        {"state": "paused"},
    ],
)
def test_a_shard_with_anything_left_makes_no_pass(left: dict[str, Any]) -> None:
    assert look(make_job(), REVISION, (shard(0), shard(1, **left))) is None


@pytest.mark.parametrize(
    "change",
    [{"discovered": 4}, {"refilled": 1}, {"done": 4}, {"run": "r2"}],
    ids=["offer", "dead letter put back", "commit", "restart"],
)
def test_whatever_moves_a_shard_between_the_passes_resets_them(change: dict[str, Any]) -> None:
    before = {"discovered": 3, "done": 3, "run": "r1"}
    first = look(make_job(), REVISION, shards(**before))
    second = look(make_job(), REVISION, (shard(0, **before), shard(1, **{**before, **change})))
    assert first is not None
    assert second is not None
    assert not is_complete(first, second)


def test_a_job_changed_between_the_passes_resets_them() -> None:
    first = look(make_job(), REVISION, shards())
    second = look(make_job(), Revision(REVISION + 1), shards())
    assert not is_complete(first, second)


@given(st.permutations([0, 1, 2]))
def test_sums_are_not_compared_but_every_shard(order: list[int]) -> None:
    """What moved from one shard to another leaves the sums alike."""
    numbers = [5, 3, 1]
    first = tuple(shard(n, discovered=numbers[n], done=numbers[n]) for n in range(3))
    second = tuple(shard(n, discovered=numbers[order[n]], done=numbers[order[n]]) for n in range(3))
    job = make_job(shards=3)
    same = order == [0, 1, 2]
    assert is_complete(look(job, REVISION, first), look(job, REVISION, second)) == same


def test_a_job_whose_seeds_are_still_being_parked_or_that_is_kept_open_makes_no_pass() -> None:
    assert look(make_job(seeds=-1), REVISION, shards()) is None
    assert look(make_job(keep_open=True), REVISION, shards()) is None


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.RUNNING])
def test_only_a_running_job_makes_a_pass(state: JobState) -> None:
    assert look(make_job(state), REVISION, shards()) is None


def test_a_look_that_misses_a_shard_makes_no_pass() -> None:
    assert look(make_job(shards=3), REVISION, shards(2)) is None
