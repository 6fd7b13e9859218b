"""Which tasks there are, who may own them, and who should: pure, from an observation.

A worker gets tasks only while it takes new ones, and only of jobs it can do. A degraded worker
keeps what it holds and takes no part in the balance of the others, unless it is merely slow and
nobody else would take a task: an overloaded cluster must not stand still. A stalled one, which can
do no work at all, loses its tasks to whoever can. A job nobody can do is named with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

from common.model.ids import JobId, NodeId, Task
from common.model.job import JobState
from common.model.node import ELIGIBLE, NodeInfo, NodeState, can_do, why_nobody
from coordinator.facts import JobView, Observation, PlacementInputs, WorkerFact
from coordinator.placement import place

_STEPS_PER_OCTAVE = 4
"""Weights count in steps of a fifth, so that small movements do not make new assignments."""


def placement_inputs(observation: Observation) -> PlacementInputs:
    """Return what the assignment depends on.

    Jobs hold tasks once started, while they run or are paused (so that resuming is instant), and
    when cancelled, started or not, until everything admitted is settled.
    """
    holding = jobs_with_tasks(observation)
    workers = [
        WorkerFact(
            id=NodeId(info.id),
            weight=_stepped(info.weight),
            takes_new=info.state in ELIGIBLE,
            is_slow=info.is_slow,
            is_stalled=info.is_stalled,
        )
        for info in observation.nodes
        if info.role == "worker" and (info.state in ELIGIBLE or info.state == NodeState.DEGRADED)
    ]
    return PlacementInputs(
        tasks=tuple(sorted((view.id, view.job.spec.shards) for view in holding)),
        workers=tuple(sorted(workers)),
        able=tuple(
            sorted(
                (view.id, able)
                for view in holding
                if (able := _able(view, observation.nodes)) is not None
            )
        ),
    )


def jobs_with_tasks(observation: Observation) -> list[JobView]:
    """Return the jobs whose tasks somebody should own."""
    assigned = {task.job for task in observation.assigned}
    return [
        view for view in observation.jobs if _holds_tasks(view, is_assigned=view.id in assigned)
    ]


def without_worker(observation: Observation) -> dict[JobId, str]:
    """Return the jobs that nobody takes tasks of, each with the reason."""
    reasons = {
        view.id: why_nobody(view.id, view.job.work, observation.nodes)
        for view in jobs_with_tasks(observation)
    }
    return {job: reason for job, reason in reasons.items() if reason is not None}


def assign(
    inputs: PlacementInputs, current: Mapping[Task, NodeId], *, owners: Mapping[Task, NodeId]
) -> dict[Task, NodeId]:
    """Return the wished owner of every task that can have one.

    Args:
        inputs: what it depends on.
        current: where tasks are wished to be.
        owners: who holds their locks: what a worker that takes nothing new may keep.
    """
    tasks = [Task(job, shard) for job, shards in inputs.tasks for shard in range(shards)]
    able = {job: frozenset(who) for job, who in inputs.able}
    takers = {worker.id: worker.weight for worker in inputs.workers if worker.takes_new}
    keepers = {worker.id: worker for worker in inputs.workers if not worker.takes_new}
    kept: dict[Task, NodeId] = {}
    for task in tasks:
        keeper = keepers.get(owners.get(task, NodeId("")))
        if keeper is None or current.get(task) != keeper.id:
            continue
        is_better_off = keeper.is_stalled and bool(
            takers.keys() & able.get(task.job, takers.keys())
        )
        if not is_better_off:
            kept[task] = keeper.id
    free = [task for task in tasks if task not in kept]
    placed = kept | place(free, takers, current, able=able)
    slow = {worker.id: worker.weight for worker in inputs.workers if worker.is_slow}
    left = [task for task in free if task not in placed]
    return placed | place(left, slow, current, able=able)


def _able(view: JobView, nodes: tuple[NodeInfo, ...]) -> tuple[NodeId, ...] | None:
    """Return which workers can do a job; None where all can."""
    workers = [info for info in nodes if info.role == "worker"]
    able = [
        NodeId(info.id)
        for info in workers
        if can_do(view.id, view.job.work, abilities=info.abilities, refused=info.refused)
    ]
    return None if len(able) == len(workers) else tuple(sorted(able))


def _holds_tasks(view: JobView, *, is_assigned: bool) -> bool:
    if view.memory.is_closed:
        return False
    match view.job.state:
        case JobState.RUNNING | JobState.PAUSED:
            return view.job.started_at is not None
        case JobState.CANCELLED:
            # Before the first look of a new term: what it had, so that nothing moves in vain.
            left = view.memory.work_left
            return is_assigned if left is None else left
        case _:
            return False


def _stepped(weight: float) -> float:
    return float(2 ** (round(log2(max(weight, 0.01)) * _STEPS_PER_OCTAVE) / _STEPS_PER_OCTAVE))
