"""What the master decides from: plain values, without the adapters' types.

An :class:`Observation` is one look at the cluster. What the master must remember between looks is
in :class:`Memory`; it lives for one term and is never carried into the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from common.model.ids import JobId, NodeId, Revision, Task, Term
from common.model.job import Job
from common.model.node import NodeInfo

WantedState = Literal["open", "paused", "spent", "cancelled", "closed"]
"""The shard states the master sets on purpose; ``sealed`` is only ever a step of finishing."""


class ShardFact(NamedTuple):
    """One shard as it was read, atomically."""

    shard: int
    exists: bool
    state: str = ""
    run: str = ""
    discovered: int = 0
    refilled: int = 0
    """Dead letters put back, sitemaps done, pages to be visited again."""
    queued: int = 0
    delayed: int = 0
    in_flight: int = 0
    done: int = 0
    """URLs that ended, in whatever way."""
    used: int = 0
    """Pages that count against the page budget."""
    paid_in_flight: int = 0
    """Those in flight that are among ``used``: pages that are visited again."""
    paid_waiting: int = 0
    """Likewise those queued and delayed."""
    grant: int = 0
    staged: int = 0
    """Seed chunks still parked (kept beside shard 0)."""

    @property
    def admitted(self) -> int:
        """URLs ever queued anew; grows with whatever can refill an empty shard."""
        return self.discovered + self.refilled

    @property
    def waiting(self) -> int:
        """URLs nobody works on yet."""
        return self.queued + self.delayed

    @property
    def is_settled(self) -> bool:
        """Tell whether no admitted URL is unfinished."""
        return not (self.waiting or self.in_flight)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is left at all, parked seeds included."""
        return self.is_settled and not self.staged

    @property
    def taken(self) -> int:
        """Pages of the budget that are used or in flight."""
        return self.used + self.in_flight - self.paid_in_flight

    @property
    def hungry(self) -> int:
        """URLs that nobody works on yet and that need a page of the budget."""
        return max(0, self.waiting - self.paid_waiting)

    @property
    def unused(self) -> int:
        """Pages granted that are neither used nor in flight."""
        return max(0, self.grant - self.taken)


class WorkerFact(NamedTuple):
    """One live worker, as far as the assignment depends on it."""

    id: NodeId
    weight: float
    takes_new: bool = True
    """False: it keeps what it has."""
    is_slow: bool = False
    """It takes new ones only where nobody else does."""
    is_stalled: bool = False
    """It cannot work on what it has."""


class Pass(NamedTuple):
    """One pass over all shards of a job that found every one of them empty."""

    revision: Revision
    """Of the job: whatever changed the job between two passes makes them differ."""
    vector: tuple[tuple[str, int, int], ...]
    """Per shard: server run, admitted, done."""


class PlacementInputs(NamedTuple):
    """Everything an assignment depends on; equal inputs need no new assignment."""

    tasks: tuple[tuple[JobId, int], ...]
    """Jobs that hold tasks, and their numbers of shards."""
    workers: tuple[WorkerFact, ...]
    able: tuple[tuple[JobId, tuple[NodeId, ...]], ...] = ()
    """For each job that not all workers can do: those that can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the master knows about a job from earlier cycles of its term."""

    fenced: Revision | None = None
    """The job revision whose state was applied to every shard; the shards refuse lower ones."""
    last_pass: Pass | None = None
    doubtful: Revision | None = None
    """A write decided at this job revision has an unknown outcome: it may still be applied. The
    job must get a newer revision, and its shards the new fence, before anything else is decided."""
    work_left: bool | None = None
    """For a cancelled job: whether its shards still hold URLs; None before the first look."""
    is_closed: bool = False
    """Nothing more is to be done for this job, ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as etcd has it, and its shards where they were looked at in this cycle."""

    job: Job
    revision: Revision
    shards: tuple[ShardFact, ...] | None = None
    memory: Memory = field(default_factory=Memory)

    @property
    def id(self) -> JobId:
        """The job's id."""
        return JobId(self.job.id)

    @property
    def staged(self) -> int:
        """Seed chunks still parked."""
        return sum(shard.staged for shard in self.shards or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at the cluster."""

    term: Term | None
    """None on a standby, for which nothing is ever planned."""
    nodes: tuple[NodeInfo, ...] = ()
    vanished: tuple[NodeId, ...] = ()
    """Nodes whose key went away although they did not leave."""
    jobs: tuple[JobView, ...] = ()
    assigned: Mapping[Task, NodeId] = field(default_factory=dict)
    """The published assignment, turned round."""
    version: int = 0
    owners: Mapping[Task, NodeId] = field(default_factory=dict)
    """Who holds the task locks."""
    placed: PlacementInputs | None = None
    """What the published assignment was made from, if it was published in this term."""
