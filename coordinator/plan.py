"""What the master does next: a pure function from an observation to small steps.

Every step may be repeated harmlessly and none relies on the one before it having worked: the next
observation tells. Steps carry the job revision they were decided at; whoever executes them guards
them by it and by the term (design rules P2 and P3), so a step decided on an older state is refused.

Not here: when to look again (:func:`pace` only says how soon a job deserves it), and how a step is
carried out (:mod:`coordinator.act`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.model.ids import JobId, NodeId, Revision
from common.model.job import Job, JobState
from coordinator import budget, completion
from coordinator.assign import assign, placement_inputs
from coordinator.facts import (
    JobView,
    Observation,
    PlacementInputs,
    ShardFact,
    WantedState,
)

_NEAR_END_URLS = 200
"""With fewer URLs left a job is looked at often, so that it ends promptly."""
_PAUSE_PER_SHARD_S = 0.0005
"""Keeps the looks at a job of thousands of shards from becoming a load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateShards:
    """Bring the shards of a job that has never started into being."""

    job: JobId
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyState:
    """Set the state of every shard and raise its fence; undoes seals."""

    job: JobId
    revision: Revision
    state: WantedState


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    """Set a job whose shards exist and whose seeds are parked to running."""

    job: JobId
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSeeds:
    """Offer parked seed chunks to the shards, as many as a moment allows."""

    job: JobId
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Change the page budget of one shard."""

    job: JobId
    revision: Revision
    shard: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Seal every shard as it was seen and, if all are, set the job to finished."""

    job: JobId
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDamaged:
    """Data of the job is gone: end it, saying what is missing."""

    job: JobId
    revision: Revision
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Store the job unchanged: the newer revision shuts out a write whose outcome is unknown."""

    job: JobId
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish who should own which task."""

    wishes: Mapping[NodeId, Mapping[JobId, Sequence[int]]]
    version: int
    inputs: PlacementInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDeparted:
    """Keep a node that vanished in the list of those that left."""

    node: NodeId


JobAction = (
    CreateShards | ApplyState | StartJob | OfferSeeds | Grant | Finish | MarkDamaged | Rewrite
)
Action = JobAction | Publish | MarkDeparted


def plan(observation: Observation) -> list[Action]:
    """Return the steps to take now, in order; none without a term."""
    if observation.term is None:
        return []
    actions: list[Action] = [MarkDeparted(node=node) for node in observation.vanished]
    actions += _plan_assignment(observation)
    for view in observation.jobs:
        actions += plan_job(view)
    return actions


# ---------------------------------------------------------------------------------------- one job


def plan_job(view: JobView) -> list[JobAction]:
    """Return the steps for one job; none while it was not looked at or is closed."""
    if view.shards is None or view.memory.is_closed or is_over(view.job, view.shards):
        return []
    if view.memory.doubtful == view.revision:
        return [Rewrite(job=view.id, revision=view.revision)]
    match view.job.state:
        case JobState.PENDING | JobState.RUNNING | JobState.PAUSED:
            return _plan_live(view, view.shards)
        case JobState.CANCELLED:
            return _plan_cancelled(view, view.shards)
        case JobState.FINISHED | JobState.FAILED | JobState.DAMAGED:
            return _apply(view, view.shards, "closed")


def is_over(job: Job, shards: Sequence[ShardFact]) -> bool:
    """Tell whether the job is final and every shard it still has is closed."""
    return job.state.is_final and all(shard.state == "closed" for shard in shards if shard.exists)


def wanted_state(view: JobView) -> WantedState:
    """Return the state etcd's record asks of the shards of a job that is not final."""
    job = view.job
    if job.state is not JobState.RUNNING:
        return "paused"
    max_pages = job.spec.max_pages
    if max_pages is not None and budget.is_spent(view.shards or (), max_pages):
        return "spent"
    return "open"


def _plan_live(view: JobView, shards: Sequence[ShardFact]) -> list[JobAction]:
    job, at = view.job, view.revision
    missing = [shard.shard for shard in shards if not shard.exists]
    damage = _damage(view, shards, missing)
    if damage is not None:
        return [MarkDamaged(job=view.id, revision=at, reason=damage)]
    if missing:
        return [CreateShards(job=view.id, revision=at)]
    applying = _apply(view, shards, wanted_state(view))
    if applying:
        return applying
    is_staging = job.seeds < 0
    if job.state is JobState.PENDING:
        return [] if is_staging else [StartJob(job=view.id, revision=at)]
    if job.state is JobState.RUNNING and job.started_at is None:
        return [StartJob(job=view.id, revision=at)]

    actions: list[JobAction] = []
    if view.staged and (job.started_at is not None or not is_staging):
        actions.append(OfferSeeds(job=view.id, revision=at))
    if job.state is JobState.RUNNING:
        if job.spec.max_pages is not None:
            actions += [
                Grant(job=view.id, revision=at, shard=move.shard, amount=move.amount)
                for move in budget.plan_moves(shards, max_pages=job.spec.max_pages)
            ]
        if completion.is_complete(view.memory.last_pass, completion.look(job, at, shards)):
            actions.append(Finish(job=view.id, revision=at))
    return actions


def _plan_cancelled(view: JobView, shards: Sequence[ShardFact]) -> list[JobAction]:
    # Emptiness lasts only once every shard refuses offers: cancelled first, then look, then closed.
    existing = [shard for shard in shards if shard.exists]
    if view.memory.fenced != view.revision or any(
        shard.state not in ("cancelled", "closed") for shard in existing
    ):
        return [ApplyState(job=view.id, revision=view.revision, state="cancelled")]
    if all(shard.is_settled for shard in existing):
        return [ApplyState(job=view.id, revision=view.revision, state="closed")]
    return []


def _apply(view: JobView, shards: Sequence[ShardFact], state: WantedState) -> list[JobAction]:
    """Apply a state where the fence is behind, or where a shard (rolled back, sealed) differs."""
    is_applied = all(shard.state == state for shard in shards if shard.exists)
    if is_applied and view.memory.fenced == view.revision:
        return []
    return [ApplyState(job=view.id, revision=view.revision, state=state)]


def _damage(view: JobView, shards: Sequence[ShardFact], missing: Sequence[int]) -> str | None:
    """Return what data is gone for good, if any.

    Shards are made before a job starts and before any seed is offered, and every seed is parked
    before the job says how many there are. So what is missing later was lost by the server.
    """
    job = view.job
    discovered = sum(shard.discovered for shard in shards)
    if missing and (job.started_at is not None or discovered):
        return (
            f"shards gone from Redis: {len(missing)} of {job.spec.shards} "
            f"(the first is {missing[0]}): its data was deleted or lost; submit the job again"
        )
    is_before_offers = job.state is JobState.PENDING or missing
    is_seeded = job.started_at is None and is_before_offers and job.seeds > 0
    if is_seeded and view.staged == 0 and discovered == 0:
        return (
            "the parked seeds are gone from Redis: its data was deleted or lost; "
            "submit the job again"
        )
    return None


def pace(view: JobView, actions: Sequence[JobAction]) -> float | None:
    """Return in how many seconds the job should be looked at again; None: when it changes."""
    if view.memory.is_closed:
        return None
    if any(not isinstance(action, Grant) for action in actions):
        return 0.0
    if actions:
        return 0.1
    shards = view.shards or ()
    pause_s = 2.0
    if view.job.state is JobState.CANCELLED:
        pause_s = 0.5
    elif view.job.state is JobState.RUNNING:
        left = sum(shard.waiting + shard.in_flight + shard.staged for shard in shards)
        is_close = left < _NEAR_END_URLS or view.job.spec.max_pages is not None
        pause_s = 0.25 if is_close else 1.0
    return max(pause_s, len(shards) * _PAUSE_PER_SHARD_S)


# ------------------------------------------------------------------------------------- assignment


def _plan_assignment(observation: Observation) -> list[Action]:
    inputs = placement_inputs(observation)
    if inputs == observation.placed:
        return []
    # The published wish counts more than the lock: a task that is being handed over stays decided.
    current = {**observation.owners, **observation.assigned}
    wishes: dict[NodeId, dict[JobId, list[int]]] = {
        NodeId(info.id): {} for info in observation.nodes if info.role == "worker"
    }
    shards: dict[tuple[NodeId, JobId], list[int]] = defaultdict(list)
    for task, node in sorted(assign(inputs, current, owners=observation.owners).items()):
        shards[node, task.job].append(task.shard)
    for (node, job), numbers in shards.items():
        wishes[node][job] = numbers
    return [Publish(wishes=wishes, version=observation.version + 1, inputs=inputs)]
