"""Looking at the cluster: what etcd and Redis say, turned into an observation.

Everything here lives for one term, except the roll of nodes, which a standby keeps as well so that
it can name those that vanished together with the master before it. The mirror that job records
come from was listed after the election was won, and no record is replaced by an older one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from common.coord import Coord, KeyValue, NodeInfo, StoredJob, stored_job
from common.coord.codec import decoded
from common.coord.lock import LockValue
from common.frontier import FrontierClient, JobFrontier, ShardStats
from common.model import counters
from common.model.errors import CrawlerError, FrontierUnavailable, ScriptBug
from common.model.ids import JobId, NodeId, Task, Term
from common.model.job import SPEC_VERSION, JobState
from coordinator import completion
from coordinator.facts import (
    JobView,
    Memory,
    Observation,
    Pass,
    PlacementInputs,
    ShardFact,
)
from coordinator.plan import is_over

log = structlog.get_logger()

LOOKING_S = 0.5
"""Longest time one cycle spends on looking at shards; what is due then comes first in the next."""
_LOOK_TIMEOUT_S = 3.0
"""Shorter than the client's own limit: a hung Redis must not keep the master from etcd's half."""
_LEFT_ALONE_S = 30.0
_MISSED_FOR_S = 120.0
"""How long a standby remembers a node it misses; the master of that time has named it by then."""


def facts_of(stats: Iterable[ShardStats]) -> tuple[ShardFact, ...]:
    """Return shards as the planner sees them."""
    return tuple(
        ShardFact(
            shard=one.shard,
            exists=one.exists,
            state="" if one.state is None else one.state.value,
            run=one.run,
            discovered=one.counters["discovered"],
            refilled=one.refilled,
            queued=one.counters["queued"],
            delayed=one.counters["delayed"],
            in_flight=one.counters["in_flight"],
            done=sum(one.counters[name] for name in counters.FINAL),
            used=one.counters["fetched"] + one.counters["not_modified"] + one.paid,
            paid_in_flight=one.paid_in_flight,
            paid_waiting=one.paid - one.paid_in_flight - one.paid_ended,
            grant=one.grant,
            staged=one.staged,
        )
        for one in stats
    )


@dataclass(slots=True, kw_only=True)
class Entry:
    """One job of the term: its record, its memory and, during a cycle, its shards."""

    stored: StoredJob
    frontier: JobFrontier
    memory: Memory = field(default_factory=Memory)
    stats: Sequence[ShardStats] | None = None
    due_at_s: float = 0.0
    """Monotonic time of the next look."""

    @property
    def id(self) -> JobId:
        """The job's id."""
        return JobId(self.stored.job.id)

    def view(self) -> JobView:
        """Return the entry as the planner sees it."""
        return JobView(
            job=self.stored.job,
            revision=self.stored.revision,
            shards=None if self.stats is None else facts_of(self.stats),
            memory=self.memory,
        )

    def take(self, stored: StoredJob) -> None:
        """Take over a newer record and make the job due at once."""
        if stored.revision > self.stored.revision:
            self.stored = stored
            self.due_at_s = 0.0

    def forget_passes(self) -> None:
        """Start over: the state is applied again, and two new passes are needed."""
        self.memory = replace(self.memory, fenced=None, last_pass=None)

    def remember_pass(self) -> None:
        """Keep what this cycle's look saw, for the next one to compare with."""
        seen: Pass | None = None
        if self.stats is not None:
            job, at = self.stored
            seen = completion.look(job, at, facts_of(self.stats))
        self.memory = replace(self.memory, last_pass=seen)


class NodeRoll:
    """Who is here and who vanished; kept on standby too, so that a new master can name the old."""

    def __init__(self) -> None:
        self.live: dict[NodeId, NodeInfo] = {}
        self._missed: dict[NodeId, tuple[NodeInfo, float]] = {}
        self.vanished: dict[NodeId, NodeInfo] = {}
        """Of those missed, the ones known not to have left in good order."""

    def take(self, keys: Mapping[str, KeyValue]) -> None:
        """Take over the nodes' keys as a mirror holds them."""
        now = time.monotonic()
        infos = (decoded(kv, NodeInfo) for kv in keys.values())
        live = {NodeId(info.id): info for info in infos}
        for node, info in self.live.items():
            if node not in live:
                self._missed[node] = (info, now)
        self._missed = {
            node: (info, since)
            for node, (info, since) in self._missed.items()
            if node not in live and now - since < _MISSED_FOR_S
        }
        self.vanished = {node: one for node, one in self.vanished.items() if node not in live}
        self.live = live

    async def tell_vanished(self, coord: Coord) -> None:
        """Sort those missed into vanished and properly departed; only the master asks.

        Raises:
            CoordUnavailable: etcd did not answer; ask again.
        """
        if not self._missed:
            return
        departed = {view.info.id for view in await coord.members.list() if view.left_at is not None}
        missed, self._missed = self._missed, {}
        self.vanished |= {node: info for node, (info, _) in missed.items() if node not in departed}


class LockRoll:
    """Who holds the tasks' locks, followed as they change."""

    def __init__(self) -> None:
        self.owners: dict[Task, NodeId] = {}
        self._seen: dict[str, int] = {}

    def take(self, keys: Mapping[str, KeyValue]) -> None:
        """Take over the locks' keys as a mirror holds them; only what changed is decoded."""
        for key in self._seen.keys() - keys.keys():
            del self._seen[key]
            if (task := _task_of(key)) is not None:
                self.owners.pop(task, None)
        for key, kv in keys.items():
            if self._seen.get(key) == kv.mod_revision:
                continue
            self._seen[key] = kv.mod_revision
            if (task := _task_of(key)) is not None:
                with suppress(CrawlerError):  # written by somebody else; the lock is held anyhow
                    self.owners[task] = NodeId(decoded(kv, LockValue).owner)


class Observer:
    """What the master of one term sees."""

    def __init__(
        self, coord: Coord, client: FrontierClient, *, cluster: str, term: Term, roll: NodeRoll
    ) -> None:
        self._coord = coord
        self._client = client
        self._cluster = cluster
        self._term = term
        self.roll = roll
        self.entries: dict[JobId, Entry] = {}
        self.version = 0
        self.assigned: dict[Task, NodeId] = {}
        self.placed: PlacementInputs | None = None
        self.is_assignment_known = False
        self.lock_roll = LockRoll()
        self._skipped: set[str] = set()

    async def begin(self, jobs: Mapping[str, KeyValue]) -> None:
        """Read everything once; a term's first decision comes after this.

        Raises:
            CoordUnavailable: etcd did not answer; begin again.
        """
        self.take_jobs(jobs)
        await self.refresh_assignment()

    def take_jobs(self, keys: Mapping[str, KeyValue]) -> None:
        """Take over the jobs' keys as a mirror holds them; it may be behind our own writes."""
        known = {self._coord.keys.job(job): entry for job, entry in self.entries.items()}
        for key, kv in keys.items():
            entry = known.get(key)
            if entry is not None and kv.mod_revision <= entry.stored.revision:
                continue
            try:
                stored = stored_job(kv)
            except CrawlerError as error:
                self._skip(key, str(error))
                continue
            if stored.job.version != SPEC_VERSION:
                self._skip(key, f"made by version {stored.job.version}, this is {SPEC_VERSION}")
            elif entry is not None:
                entry.take(stored)
            else:
                self._add(stored)
        for key in known.keys() - keys.keys():
            del self.entries[known[key].id]

    def _add(self, stored: StoredJob) -> None:
        job = JobId(stored.job.id)
        frontier = JobFrontier(self._client, cluster=self._cluster, job=job, spec=stored.job.spec)
        self.entries[job] = Entry(stored=stored, frontier=frontier)

    async def refresh_assignment(self) -> None:
        """Read the published assignment."""
        self.version, published = await self._coord.assignments.load()
        self.assigned = {
            Task(JobId(job), shard): node
            for node, assignment in published.items()
            for job, shards in assignment.tasks.items()
            for shard in shards
        }
        self.placed = None
        self.is_assignment_known = True

    async def look(self) -> None:
        """Read the shards of the jobs that are due, live jobs first.

        Raises:
            FrontierUnavailable: Redis did not answer; jobs not looked at stay due.
        """
        now = time.monotonic()
        due = [one for one in self.entries.values() if one.due_at_s <= now]
        due.sort(key=lambda one: (one.stored.job.state.is_final, one.due_at_s))
        for entry in due:
            if time.monotonic() - now > LOOKING_S:
                return
            try:
                async with asyncio.timeout(_LOOK_TIMEOUT_S):
                    entry.stats = await entry.frontier.stats()
            except TimeoutError as error:
                raise FrontierUnavailable(
                    f"Redis did not answer within {_LOOK_TIMEOUT_S:g} s"
                ) from error
            except ScriptBug as error:
                leave_alone(entry)
                log.error("job.stuck", job=entry.id, error=str(error))  # noqa: TRY400
                continue
            self._note(entry)

    def _note(self, entry: Entry) -> None:
        facts, state = facts_of(entry.stats or ()), entry.stored.job.state
        if is_over(entry.stored.job, facts):
            entry.memory = replace(entry.memory, is_closed=True, work_left=False)
        elif state is JobState.CANCELLED:
            left = any(not fact.is_settled for fact in facts)
            entry.memory = replace(entry.memory, work_left=left)

    def forget_looks(self) -> None:
        """Let go of what was seen: the next decision needs another look."""
        for entry in self.entries.values():
            entry.stats = None

    def observation(self) -> Observation:
        """Return this cycle's observation."""
        return Observation(
            term=self._term,
            nodes=tuple(self.roll.live.values()),
            vanished=tuple(sorted(self.roll.vanished)),
            jobs=tuple(
                entry.view() for entry in self.entries.values() if not entry.memory.is_closed
            ),
            assigned=self.assigned,
            version=self.version,
            owners=self.lock_roll.owners,
            placed=self.placed,
        )

    def _skip(self, key: str, reason: str) -> None:
        if key not in self._skipped:
            self._skipped.add(key)
            log.error(
                "job.skipped", key=key, reason=reason,
                remedy="run a master of the version that made the job, or delete the job",
            )  # fmt: skip


def leave_alone(entry: Entry) -> None:
    """Put off a job that nothing can be done for at present; the others go on."""
    entry.due_at_s = time.monotonic() + _LEFT_ALONE_S


def _task_of(key: str) -> Task | None:
    """Return the task a lock is for, from its key; None where it is for none."""
    head, _, shard = key.rpartition("/")
    job = head.rpartition("/")[2]
    return Task(JobId(job), int(shard)) if job and shard.isdecimal() else None
