"""Who may own which task: abilities, refusals, degraded and stalled workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.ids import JobId, NodeId, Task, Term
from common.model.job import JobSpec
from common.model.node import NodeInfo
from coordinator.assign import assign, placement_inputs, without_worker
from coordinator.facts import Observation
from tests.unit.coordinator.facts_for_tests import make_job, view, worker


def observe(*nodes: NodeInfo, **stores: str) -> Observation:
    """Jobs of four shards, by id and what they store."""
    views = tuple(
        view(make_job(id=job, spec=JobSpec(shards=4, store=store)), None)  # type: ignore[arg-type]
        for job, store in stores.items()
    )
    return Observation(term=Term(1), nodes=nodes, jobs=views)


def owners_of(observation: Observation, **held: str) -> dict[str, set[str]]:
    """Who is to own tasks of each job; ``held`` says who holds all locks of a job."""
    locks = {Task(JobId(job), n): NodeId(node) for job, node in held.items() for n in range(4)}
    wished = assign(placement_inputs(observation), locks, owners=locks)
    found: dict[str, set[str]] = {view.id: set() for view in observation.jobs}
    for task, node in wished.items():
        found[task.job].add(node)
    return found


def test_a_job_that_stores_responses_goes_only_where_there_is_a_folder() -> None:
    nodes = (worker("a"), worker("b", abilities=("warc",)), worker("c"))
    found = owners_of(observe(*nodes, plain="none", stored="warc"))
    assert found["stored"] == {"b"}
    assert found["plain"] == {"a", "c"}, "b has its part of the work already"


def test_a_job_goes_only_where_all_its_plugins_are() -> None:
    nodes = (worker("a", abilities=("plugin:x",)), worker("b", abilities=("plugin:x", "plugin:y")))
    job = make_job(id="one", spec=JobSpec(shards=4, plugin=("x", "y")))
    observation = Observation(term=Term(1), nodes=nodes, jobs=(view(job, None),))
    assert owners_of(observation) == {"one": {"b"}}
    alone = Observation(term=Term(1), nodes=nodes[:1], jobs=(view(job, None),))
    assert owners_of(alone) == {"one": set()}
    reason = without_worker(alone)[JobId("one")]
    assert "a: no plugin 'y', " in reason
    assert "--plugin y=MODULE:OBJECT" in reason


def test_a_job_a_worker_refuses_goes_to_the_others() -> None:
    nodes = (worker("a", refused=("one",)), worker("b"))
    assert owners_of(observe(*nodes, one="none"), one="a") == {"one": {"b"}}


def test_what_nobody_can_do_is_assigned_to_nobody_and_named() -> None:
    observation = observe(worker("a"), worker("b", "degraded", reasons=("cpu: slow",)), one="warc")
    assert owners_of(observation) == {"one": set()}
    reason = without_worker(observation)[JobId("one")]
    assert "a, b" in reason
    assert "--warc-dir" in reason


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (None, "start-worker"),
        (worker("a", "degraded", reasons=("memory: full",)), "a: degraded: memory: full"),
        (worker("a", "draining"), "a: draining"),
        (worker("a", refused=("one",), reasons=("job one: no room", "x")), "a: job one: no room"),
    ],
)
def test_the_reason_why_nobody_works_on_a_job_names_worker_and_cause(
    node: NodeInfo | None, said: str
) -> None:
    observation = observe(*([node] if node else []), one="none")
    assert said in without_worker(observation)[JobId("one")]


def test_of_a_job_somebody_works_on_nothing_is_said() -> None:
    assert without_worker(observe(worker("a", "draining"), worker("b"), one="none")) == {}


def test_a_degraded_worker_keeps_only_what_it_holds_the_lock_of() -> None:
    observation = observe(worker("a", "degraded"), worker("b"), one="none", two="none")
    inputs = placement_inputs(observation)
    wished = {Task(JobId(job), n): NodeId("a") for job in ("one", "two") for n in range(4)}
    held = {task: node for task, node in wished.items() if task.job == "one"}
    after = assign(inputs, wished, owners=held)
    assert {after[task] for task in wished if task.job == "one"} == {"a"}
    assert {after[task] for task in wished if task.job == "two"} == {"b"}


def test_a_stalled_worker_loses_its_tasks_but_only_to_one_that_takes_them() -> None:
    stalled: dict[str, Any] = {"state": "degraded", "is_stalled": True}
    alone = observe(worker("a", **stalled), worker("b", **stalled), one="none")
    assert owners_of(alone, one="a") == {"one": {"a"}}
    helped = observe(worker("a", **stalled), worker("b"), one="none")
    assert owners_of(helped, one="a") == {"one": {"b"}}
    no_help = observe(worker("a", abilities=("warc",), **stalled), worker("b"), one="warc")
    assert owners_of(no_help, one="a") == {"one": {"a"}}


def test_merely_slow_workers_take_what_nobody_else_takes() -> None:
    slow: dict[str, Any] = {"state": "degraded", "is_slow": True}
    overloaded = observe(worker("a", **slow), worker("b", **slow), one="none")
    assert owners_of(overloaded) == {"one": {"a", "b"}}
    assert without_worker(overloaded) == {}
    assert owners_of(observe(worker("a", **slow), worker("b"), one="none")) == {"one": {"b"}}


nodes = st.lists(
    st.builds(
        worker,
        st.integers(0, 9).map(lambda number: f"w{number}"),
        st.sampled_from(["registered", "ready", "busy", "degraded", "draining", "offline"]),
        st.sampled_from([0.1, 0.5, 1.0, 3.0]),
        abilities=st.sampled_from([(), ("warc",)]),
        refused=st.sampled_from([(), ("one",), ("one", "two")]),
        is_stalled=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda info: info.id,
)


@given(nodes, st.dictionaries(st.sampled_from(["one", "two"]), st.sampled_from(["none", "warc"])))
def test_nobody_is_ever_given_what_it_does_not_take(
    found: list[NodeInfo], stores: dict[str, str]
) -> None:
    observation = observe(*found, **stores)
    wished = assign(placement_inputs(observation), {}, owners={})
    by_id = {info.id: info for info in found}
    for task, node in wished.items():
        info = by_id[node]
        assert info.state in {"registered", "ready", "busy"}
        assert task.job not in info.refused
        assert stores[task.job] == "none" or "warc" in info.abilities
    assigned = {task.job for task in wished}
    assert assigned | set(without_worker(observation)) == set(stores)
    assert not assigned & set(without_worker(observation))
