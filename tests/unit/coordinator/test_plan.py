"""What the master plans: nothing without a term, small steps, and each only when it is due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.ids import JobId, NodeId, Revision, Task, Term
from common.model.job import JobState
from coordinator.assign import assign, placement_inputs
from coordinator.completion import look
from coordinator.facts import JobView, Memory, Observation, ShardFact
from coordinator.plan import (
    ApplyState,
    CreateShards,
    Finish,
    Grant,
    MarkDamaged,
    MarkDeparted,
    OfferSeeds,
    Publish,
    Rewrite,
    StartJob,
    pace,
    plan,
    plan_job,
)
from tests.unit.coordinator.facts_for_tests import REVISION, make_job, shard, shards, view, worker

JOB = JobId("job")
AT: dict[str, Any] = {"job": JOB, "revision": REVISION}
GONE = tuple(ShardFact(number, exists=False) for number in range(2))


@st.composite
def job_views(draw: st.DrawFn) -> JobView:
    counts = st.integers(0, 3)
    states = st.sampled_from(["open", "paused", "sealed", "spent", "cancelled", "closed"])
    looked = tuple(
        ShardFact(
            number,
            exists=draw(st.booleans()),
            state=draw(states),
            run="r1",
            discovered=draw(counts),
            queued=draw(counts),
            in_flight=draw(counts),
            used=draw(counts),
            grant=draw(counts),
            staged=draw(counts) if number == 0 else 0,
        )
        for number in range(2)
    )
    job = make_job(
        draw(st.sampled_from(list(JobState))),
        seeds=draw(st.sampled_from([-1, 0, 5])),
        max_pages=draw(st.sampled_from([None, 3])),
        keep_open=draw(st.booleans()),
        started_at=draw(st.sampled_from([None, "2026-11-30T00:00:01.000Z"])),
    )
    memory = Memory(
        fenced=draw(st.sampled_from([None, REVISION])),
        doubtful=draw(st.sampled_from([None, Revision(6), REVISION])),
        last_pass=look(job, REVISION, looked),
        work_left=draw(st.sampled_from([None, True, False])),
    )
    return JobView(job=job, revision=REVISION, shards=looked, memory=memory)


# ------------------------------------------------------------------------------------------- terms


@given(job_views())
def test_nothing_is_ever_planned_without_a_term(one: JobView) -> None:
    observation = Observation(term=None, nodes=(worker("w"),), vanished=(NodeId("x"),), jobs=(one,))
    assert plan(observation) == []


@given(job_views())
def test_the_fence_is_raised_before_anything_is_decided_from_the_shards(one: JobView) -> None:
    """Design rule P13: of a live job whose shards exist, a new term applies the state first."""
    unfenced = replace(one, memory=replace(one.memory, fenced=None, doubtful=None))
    actions = plan_job(unfenced)
    if all(fact.exists for fact in one.shards or ()) and not one.job.state.is_final:
        assert all(isinstance(action, ApplyState | MarkDamaged) for action in actions)


@given(job_views())
def test_every_step_carries_the_revision_it_was_decided_at(one: JobView) -> None:
    for action in plan_job(one):
        assert action.revision == REVISION


@given(job_views())
def test_a_final_job_is_never_started_finished_or_granted_anything(one: JobView) -> None:
    if one.job.state.is_final:
        assert all(isinstance(action, ApplyState | Rewrite) for action in plan_job(one))


# --------------------------------------------------------------------------------- life of one job


def test_the_shards_of_a_new_job_are_created_before_its_seeds_are_parked() -> None:
    job = make_job(JobState.PENDING, seeds=-1)
    assert plan_job(view(job, GONE, fenced=None)) == [CreateShards(**AT)]


def test_a_job_whose_client_is_still_parking_seeds_stays_pending() -> None:
    job = make_job(JobState.PENDING, seeds=-1)
    assert plan_job(view(job, shards(state="paused"))) == []


def test_a_pending_job_starts_once_its_seeds_are_parked() -> None:
    job = make_job(JobState.PENDING, seeds=3)
    looked = (shard(0, state="paused", staged=1), shard(1, state="paused"))
    assert plan_job(view(job, looked)) == [StartJob(**AT)]


def test_a_pending_job_without_seeds_starts_too() -> None:
    job = make_job(JobState.PENDING, seeds=0, keep_open=True)
    assert plan_job(view(job, shards(state="paused"))) == [StartJob(**AT)]


def test_seeds_are_offered_while_the_job_already_runs() -> None:
    looked = (shard(0, staged=4, queued=9), shard(1, in_flight=1))
    assert plan_job(view(make_job(), looked)) == [OfferSeeds(**AT)]


@pytest.mark.parametrize("started_at", [None, "2026-11-30T00:00:01.000Z"])
def test_seeds_are_offered_to_a_paused_job(started_at: str | None) -> None:
    job = make_job(JobState.PAUSED, started_at=started_at)
    looked = (shard(0, state="paused", staged=1), shard(1, state="paused"))
    assert plan_job(view(job, looked)) == [OfferSeeds(**AT)]


def test_seeds_of_a_job_submitted_paused_wait_until_all_are_parked() -> None:
    job = make_job(JobState.PAUSED, started_at=None, seeds=-1)
    looked = (shard(0, state="paused", staged=1), shard(1, state="paused"))
    assert plan_job(view(job, looked)) == []


def test_a_job_resumed_before_it_ever_ran_gets_its_start_time() -> None:
    job = make_job(JobState.RUNNING, started_at=None)
    assert plan_job(view(job, (shard(0, staged=1), shard(1)))) == [StartJob(**AT)]


def test_pausing_and_resuming_reach_the_shards() -> None:
    paused = view(make_job(JobState.PAUSED), shards(state="open"), fenced=Revision(6))
    assert plan_job(paused) == [ApplyState(**AT, state="paused")]
    resumed = view(make_job(), shards(state="paused"), fenced=Revision(6))
    assert plan_job(resumed) == [ApplyState(**AT, state="open")]


def test_a_new_revision_raises_the_fence_even_if_the_state_is_right() -> None:
    assert plan_job(view(make_job(), shards(), fenced=Revision(6))) == [
        ApplyState(**AT, state="open")
    ]


def test_a_leftover_seal_or_a_rolled_back_state_is_undone() -> None:
    for state in ("sealed", "paused"):
        looked = (shard(0), shard(1, state=state, queued=1))
        assert plan_job(view(make_job(), looked)) == [ApplyState(**AT, state="open")]


def test_a_job_finishes_on_its_second_equal_pass_and_not_before() -> None:
    job, looked = make_job(), shards(discovered=1, done=1)
    seen = look(job, REVISION, looked)
    assert plan_job(view(job, looked)) == []
    assert plan_job(view(job, looked, last_pass=seen)) == [Finish(**AT)]
    moved = shards(discovered=2, done=2)
    assert plan_job(view(job, moved, last_pass=seen)) == []


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.DAMAGED])
def test_the_shards_of_a_job_that_is_over_are_closed(state: JobState) -> None:
    looked = view(make_job(state), shards(state="sealed"), fenced=None)
    assert plan_job(looked) == [ApplyState(**AT, state="closed")]


def test_a_cancelled_job_is_closed_only_after_its_owners_dropped_what_was_queued() -> None:
    job = make_job(JobState.CANCELLED)
    start = view(job, shards(queued=2), fenced=None)
    assert plan_job(start) == [ApplyState(**AT, state="cancelled")]
    assert plan_job(view(job, shards(state="cancelled", queued=2))) == []
    settled = view(job, (shard(0, state="cancelled", staged=3), shard(1, state="cancelled")))
    assert plan_job(settled) == [ApplyState(**AT, state="closed")]


def test_a_cancelled_job_that_looks_settled_is_first_made_to_refuse_offers() -> None:
    job = make_job(JobState.CANCELLED)
    assert plan_job(view(job, shards(state="open"), fenced=None)) == [
        ApplyState(**AT, state="cancelled")
    ]


def test_a_job_cancelled_before_it_had_shards_needs_nothing() -> None:
    job = make_job(JobState.CANCELLED, started_at=None)
    assert plan_job(view(job, GONE, fenced=None)) == []


def test_a_new_master_writes_nothing_to_a_job_closed_long_ago() -> None:
    for state in (JobState.FINISHED, JobState.CANCELLED, JobState.DAMAGED):
        assert plan_job(view(make_job(state), shards(state="closed"), fenced=None)) == []


def test_a_closed_job_costs_nothing() -> None:
    job = make_job(JobState.FINISHED)
    closed = view(job, shards(state="closed"), is_closed=True)
    assert plan_job(closed) == []
    assert pace(closed, []) is None


# ------------------------------------------------------------------------------- damage and doubts


def test_a_started_job_whose_shard_is_gone_is_damaged_and_never_recreated() -> None:
    (action,) = plan_job(view(make_job(), (shard(0), GONE[1])))
    assert isinstance(action, MarkDamaged)
    assert "shards gone from Redis: 1 of 2 " in action.reason


def test_a_job_with_offered_seeds_is_damaged_too_when_a_shard_is_gone() -> None:
    job = make_job(JobState.PAUSED, started_at=None)
    (action,) = plan_job(view(job, (shard(0, state="paused", discovered=1), GONE[1])))
    assert isinstance(action, MarkDamaged)


def test_a_pending_job_whose_parked_seeds_are_gone_is_damaged() -> None:
    job = make_job(JobState.PENDING, seeds=3)
    for looked in (GONE, shards(state="paused")):
        (action,) = plan_job(view(job, looked))
        assert isinstance(action, MarkDamaged)
        assert "seeds" in action.reason


def test_a_write_in_doubt_is_shut_out_by_a_new_revision_before_anything_else() -> None:
    in_doubt = view(make_job(), shards(state="sealed"), doubtful=REVISION)
    assert plan_job(in_doubt) == [Rewrite(**AT)]
    settled = view(make_job(), shards(state="sealed"), doubtful=Revision(6))
    assert plan_job(settled) == [ApplyState(**AT, state="open")]


# ----------------------------------------------------------------------------------------- budgets


def test_a_new_job_with_a_page_budget_grants_it_where_there_is_work() -> None:
    looked = (shard(0, queued=1), shard(1))
    assert plan_job(view(make_job(max_pages=3), looked)) == [Grant(**AT, shard=0, amount=3)]


def test_a_spent_budget_makes_the_owners_drop_what_is_queued() -> None:
    looked = shards(used=2, grant=2, queued=5)
    assert plan_job(view(make_job(max_pages=4), looked)) == [ApplyState(**AT, state="spent")]
    spent = shards(used=2, grant=2, queued=5, state="spent")
    assert plan_job(view(make_job(max_pages=4), spent)) == []


def test_no_budget_moves_while_the_job_is_paused() -> None:
    looked = shards(state="paused", queued=5)
    assert plan_job(view(make_job(JobState.PAUSED, max_pages=4), looked)) == []


# ------------------------------------------------------------------------------------------- pace


def test_a_job_near_its_end_is_looked_at_more_often() -> None:
    assert pace(view(make_job(), shards(queued=5)), []) == 0.25
    assert pace(view(make_job(), shards(queued=5000)), []) == 1.0
    assert pace(view(make_job(), shards()), [OfferSeeds(**AT)]) == 0.0
    assert pace(view(make_job(shards=4000), shards(4000)), []) == 2.0


# ------------------------------------------------------------------------------------- assignment


def observe(*views: JobView, **fields: Any) -> Observation:
    workers = (worker("a"), worker("b"))
    return Observation(**{"term": Term(5), "nodes": workers, "jobs": views, **fields})


def published(observation: Observation) -> dict[NodeId, dict[JobId, list[int]]]:
    for action in plan(observation):
        if isinstance(action, Publish):
            return {node: dict(jobs) for node, jobs in action.wishes.items()}  # type: ignore[misc]
    raise AssertionError("nothing was published")


def test_a_running_job_is_spread_over_the_workers() -> None:
    wishes = published(observe(view(make_job(shards=4), None)))
    assert sorted(len(jobs[JOB]) for jobs in wishes.values()) == [2, 2]


def test_an_assignment_is_not_published_twice_from_the_same_inputs() -> None:
    first = observe(view(make_job(shards=4), None))
    again = replace(first, placed=placement_inputs(first))
    assert plan(again) == []
    joined = replace(again, nodes=(*first.nodes, worker("c")))
    assert [type(action) for action in plan(joined)] == [Publish]


def test_small_changes_of_weight_publish_nothing() -> None:
    first = observe(view(make_job(shards=4), None))
    nodes = (worker("a", weight=1.02), worker("b", "busy", 0.99))
    assert plan(replace(first, placed=placement_inputs(first), nodes=nodes)) == []


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        (JobState.PENDING, False),
        (JobState.RUNNING, True),
        (JobState.PAUSED, True),
        (JobState.FINISHED, False),
        (JobState.FAILED, False),
        (JobState.DAMAGED, False),
    ],
)
def test_only_jobs_with_something_to_do_hold_tasks(state: JobState, holds: bool) -> None:
    assert bool(placement_inputs(observe(view(make_job(state), None))).tasks) == holds


def test_a_job_that_never_ran_holds_no_tasks() -> None:
    job = make_job(JobState.PAUSED, started_at=None)
    assert placement_inputs(observe(view(job, None))).tasks == ()


@pytest.mark.parametrize("started_at", ["2026-01-01T00:00:00Z", None])
def test_a_cancelled_job_holds_its_tasks_until_it_is_settled(started_at: str | None) -> None:
    """Seeds of one that never ran may be queued: somebody has to drop them."""
    job = make_job(JobState.CANCELLED, started_at=started_at)
    unsettled = observe(view(job, None, work_left=True))
    assert placement_inputs(unsettled).tasks == ((JOB, 2),)
    settled = observe(view(job, None, work_left=False))
    assert placement_inputs(settled).tasks == ()


def test_a_new_master_keeps_the_tasks_of_a_cancelled_job_until_it_has_looked() -> None:
    job = make_job(JobState.CANCELLED)
    assigned = {Task(JOB, 0): NodeId("a"), Task(JOB, 1): NodeId("b")}
    assert placement_inputs(observe(view(job, None), assigned=assigned)).tasks == ((JOB, 2),)
    assert placement_inputs(observe(view(job, None))).tasks == ()


def test_tasks_stay_where_they_are_published_whoever_holds_the_lock() -> None:
    observation = observe(
        view(make_job(), None),
        assigned={Task(JOB, 0): NodeId("a"), Task(JOB, 1): NodeId("b")},
        owners={Task(JOB, 0): NodeId("b"), Task(JOB, 1): NodeId("a")},
    )
    assert published(observation) == {"a": {JOB: [0]}, "b": {JOB: [1]}}


def test_without_a_published_assignment_tasks_stay_with_the_holders_of_their_locks() -> None:
    owners = {Task(JOB, 0): NodeId("b"), Task(JOB, 1): NodeId("a")}
    assert published(observe(view(make_job(), None), owners=owners)) == {
        "a": {JOB: [1]},
        "b": {JOB: [0]},
    }


def test_a_degraded_worker_keeps_what_it_has_and_gets_nothing_new() -> None:
    nodes = (worker("a", "degraded"), worker("b"))
    current = {Task(JOB, 0): NodeId("a")}
    inputs = placement_inputs(observe(view(make_job(shards=6), None), nodes=nodes))
    wished = assign(inputs, current, owners=current)
    assert wished[Task(JOB, 0)] == "a"
    assert {wished[Task(JOB, number)] for number in range(1, 6)} == {"b"}


@pytest.mark.parametrize("state", ["draining", "offline"])
def test_a_worker_that_drains_gets_nothing(state: str) -> None:
    nodes = (worker("a", state), worker("b"))
    assigned = {Task(JOB, 0): NodeId("a"), Task(JOB, 1): NodeId("a")}
    assert published(observe(view(make_job(), None), nodes=nodes, assigned=assigned)) == {
        "a": {},
        "b": {JOB: [0, 1]},
    }


def test_the_tasks_of_a_vanished_worker_go_to_the_others() -> None:
    assigned = {Task(JOB, 0): NodeId("gone"), Task(JOB, 1): NodeId("b")}
    observation = observe(
        view(make_job(), None), assigned=assigned, nodes=(worker("b"),), vanished=(NodeId("gone"),)
    )
    assert published(observation) == {"b": {JOB: [0, 1]}}
    assert plan(observation)[0] == MarkDeparted(node=NodeId("gone"))


def test_without_workers_an_empty_assignment_is_published() -> None:
    observation = observe(view(make_job(), None), nodes=())
    assert published(observation) == {}
    assert assign(placement_inputs(observation), {}, owners={}) == {}


def test_the_version_grows_with_every_assignment() -> None:
    (action,) = plan(observe(view(make_job(), None), version=41))
    assert isinstance(action, Publish)
    assert action.version == 42
