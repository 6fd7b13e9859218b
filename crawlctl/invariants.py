"""What must hold across etcd and Redis, and how ``doctor`` says that it does not.

The judges are pure: they take what was read. Whatever two reads could explain by something having
moved in between (a lock taken over, a shard being adopted) is a *suspicion*, and becomes a finding
only when a second look suspects the very same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from common.model import counters
from common.model.ids import JobId, Task
from common.model.job import Job, JobState
from common.model.node import NodeInfo, NodeState, needs_of, why_nobody
from crawlctl.findings import Finding, Status
from crawlctl.show import quantity

if TYPE_CHECKING:
    from common.coord import LockInfo, NodeView
    from common.frontier import ShardStats
    from common.frontier.audit import Held
    from crawlctl.connect import Services

CONFIRM_AFTER_S = 1.5
"""Longer than a worker takes to adopt a shard whose lock it has, or to note a broken lock."""
_MANY_BYTES = 1_000_000_000

_RESTORED = (
    "etcd was probably restored from an older copy: stop all workers, then restore etcd with "
    "--bump-revision"
)
_FAULT = (
    "this is a fault of crawlctl or of somebody who wrote to its keys; keep the data and report it"
)


class Look(NamedTuple):
    """One look at everything, in the order in which things follow each other."""

    nodes: Sequence[NodeView]
    locks: Sequence[LockInfo]
    jobs: Sequence[Job]
    stats: Mapping[str, Sequence[ShardStats]]
    """By job."""
    held: Mapping[str, Sequence[Held]]
    revision: int
    """Of etcd, read last: every token seen in Redis is at most this."""

    @property
    def live(self) -> list[NodeInfo]:
        """The nodes that are there."""
        return [view.info for view in self.nodes if view.left_at is None]


async def look(services: Services) -> Look:
    """Read the cluster once."""
    from common.frontier.audit import held

    coord = services.coord
    # A lock is given back before its node is gone, and a fence is raised only after its lock was
    # taken: read in this order, neither looks wrong for having moved in between.
    locks = await coord.locks.list()
    nodes = await coord.members.list()
    jobs = [stored.job for stored in await coord.jobs.list()]
    stats, holdings = {}, {}
    for job in jobs:
        if job.seeds >= 0:
            stats[job.id] = await services.frontier(job).stats()
            present = [one.shard for one in stats[job.id] if one.exists]
            holdings[job.id] = await held(
                services.client, cluster=services.cluster, job=JobId(job.id), shards=present
            )
    snapshot = await coord.etcd.get_prefix(coord.keys.election)
    return Look(nodes, locks, jobs, stats, holdings, snapshot.revision)


async def examined(services: Services) -> list[Finding]:
    """Return what is found across both services, suspicions confirmed."""
    first = await look(services)
    suspected = suspicions(first)
    if suspected:
        await asyncio.sleep(CONFIRM_AFTER_S)
        again = suspicions(await look(services))
        suspected = [one for one in suspected if one in again]
    bad = {finding.check for finding in suspected}
    findings = judge_nodes(first.nodes)
    if "locks" not in bad:
        findings.append(Finding("locks", Status.OK, f"{len(first.locks)} held, by live nodes"))
    findings += suspected
    for job in first.jobs:
        findings += judge_job(job, first)
        if f"job {job.id}" not in bad and job.seeds >= 0:
            findings.append(_sound(job, first.stats[job.id]))
    return findings


def _sound(job: Job, stats: Sequence[ShardStats]) -> Finding:
    total = counters.add([one.counters for one in stats])["discovered"]
    return Finding(
        f"job {job.id}",
        Status.OK,
        f"{job.state.value}; {quantity(total, 'URL')}, all accounted for",
    )


# ---------------------------------------------------------------------------------- suspicions


def suspicions(seen: Look) -> list[Finding]:
    """Return what is wrong unless it only moved: locks, fences, shards and counters."""
    found = suspicious_locks(seen)
    for job in seen.jobs:
        if job.seeds >= 0:
            stats = seen.stats[job.id]
            found += missing_shards(job, stats)
            found += suspicious_fences(job, seen.locks, stats, revision=seen.revision)
            found += unbalanced(job.id, stats)
            found += seen_wrongly(job, stats)
            found += miscounted(job.id, seen.held[job.id])
    return found


def suspicious_locks(seen: Look) -> list[Finding]:
    """Return locks whose owner is not there, and locks of tasks that should have none."""
    live = {info.id for info in seen.live}
    jobs = {job.id: job for job in seen.jobs}
    found = []
    for lock in seen.locks:
        release = f"crawlctl locks release {lock.name} --token {lock.token}"
        if lock.owner not in live:
            found.append(
                Finding(
                    "locks",
                    Status.FAILED,
                    f"{lock.name} is held by {lock.owner}, but no node of that name is there",
                    f"if that process is gone for good, break it: {release}",
                )
            )
        elif lock.kind == "task":
            job = jobs.get(lock.name.split("/")[1])
            if job is None or (job.state.is_final and job.state is not JobState.CANCELLED):
                state = "does not exist" if job is None else f"is {job.state.value}"
                found.append(
                    Finding(
                        "locks",
                        Status.WARNING,
                        f"{lock.name} is held by {lock.owner}, but its job {state}",
                        f"without a master nobody takes it back; else break it: {release}",
                    )
                )
    return found


def missing_shards(job: Job, stats: Sequence[ShardStats]) -> list[Finding]:
    """Return that data of a job is gone, where it should be there."""
    missing = [one.shard for one in stats if not one.exists]
    if not missing or job.started_at is None or job.state.is_final:
        return []
    return [
        Finding(
            f"job {job.id}",
            Status.FAILED,
            f"shards gone from Redis: {len(missing)} of {len(stats)} (the first is "
            f"{missing[0]}): its data was deleted or lost",
            "restore Redis from its backup, or submit the job again; an active master marks the "
            "job as damaged",
        )
    ]


def suspicious_fences(
    job: Job, locks: Sequence[LockInfo], stats: Sequence[ShardStats], *, revision: int
) -> list[Finding]:
    """Return where Redis and etcd differ about who owns a shard."""
    from common.coord import Locks

    held = {lock.name: lock for lock in locks}
    found = []
    # Nothing that moves by itself is part of what is said: the second look must say the same.
    for one in stats:
        lock = held.get(Locks.task_name(Task(JobId(job.id), one.shard)))
        status, detail, remedy = Status.FAILED, None, None
        if one.token > revision:
            detail = f"Redis has seen token {one.token}, which etcd has not reached yet"
            remedy = _RESTORED
        elif lock is not None and one.token > lock.token:
            detail = (
                f"Redis has seen token {one.token}, newer than that of the lock {lock.owner} holds:"
                " its writes are refused"
            )
            remedy = _RESTORED
        elif lock is not None and one.exists and one.token < lock.token:
            status = Status.WARNING
            detail = (
                f"{lock.owner} holds the lock under token {lock.token}, but Redis has seen only "
                f"{one.token}: the owner has not taken the shard over"
            )
            remedy = (
                f"see the log of {lock.owner}; it waits for Redis, or hangs: drain it "
                f"(crawlctl nodes drain {lock.owner}) or kill it"
            )
        if detail is not None:
            text = f"shard {one.shard}: {detail}"
            found.append(Finding(f"job {job.id}", status, text, remedy))
    return found


def unbalanced(job_id: str, stats: Sequence[ShardStats]) -> list[Finding]:
    """Return the shards whose counters do not add up; each was read atomically."""
    return [
        Finding(
            f"job {job_id}",
            Status.FAILED,
            f"shard {one.shard}: discovered URLs: {one.counters['discovered']}, but "
            f"{counters.total(one.counters)} accounted for",
            _FAULT,
        )
        for one in stats
        if one.exists and not counters.is_balanced(one.counters)
    ]


def seen_wrongly(job: Job, stats: Sequence[ShardStats]) -> list[Finding]:
    """Return the shards whose seen-set admitted more or fewer URLs than were offered."""
    from common.frontier import seen_discrepancies

    return [
        Finding(f"job {job.id}", Status.WARNING, sentence, _FAULT)
        for sentence in seen_discrepancies(job.spec, stats)
    ]


def miscounted(job_id: str, holdings: Sequence[Held]) -> list[Finding]:
    """Return the shards that hold something else than their counters say."""
    return [
        Finding(
            f"job {job_id}",
            Status.FAILED,
            f"shard {one.shard}: {name}: {counted} by its counters, but {there} are there",
            _FAULT,
        )
        for one in holdings
        for name, (counted, there) in one.differences.items()
    ]


# -------------------------------------------------------------------------------------- judges


def judge_nodes(views: Sequence[NodeView]) -> list[Finding]:
    """Return whether there is anybody to work, and who is in trouble."""
    live = [view.info for view in views if view.left_at is None]
    findings = []
    if not any(view.term is not None for view in views if view.left_at is None):
        findings.append(
            Finding(
                "nodes.master",
                Status.WARNING,
                "no master is active: jobs neither start nor finish",
                "start one with crawlctl start-master",
            )
        )
    workers = [info for info in live if info.role == "worker"]
    if not workers:
        findings.append(
            Finding(
                "nodes.workers",
                Status.WARNING,
                "there is no worker: nothing is fetched",
                "start one with crawlctl start-worker",
            )
        )
    if not findings:
        findings.append(
            Finding("nodes", Status.OK, f"a master and {quantity(len(workers), 'worker')}")
        )
    return findings + [
        Finding(
            f"node {info.id}",
            Status.WARNING,
            f"{info.state}: {'; '.join(info.reasons)}",
            "it takes nothing new until that is mended",
        )
        for info in live
        if info.state == NodeState.DEGRADED or info.refused
    ]


def judge_job(job: Job, seen: Look) -> list[Finding]:
    """Return what is to be known of a job beside its invariants."""
    if job.seeds < 0:
        return [
            Finding(
                f"job {job.id}",
                Status.INFO,
                "its seeds are still being staged",
                "if nothing stages them any more, submit it again with the same --id",
            )
        ]
    return [
        *judge_workers(job, seen.live),
        *judge_results(job, seen.held[job.id]),
    ]


def judge_workers(job: Job, live: Sequence[NodeInfo]) -> list[Finding]:
    """Return why nobody takes tasks of a job that is to run."""
    reason = None if job.state is not JobState.RUNNING else why_nobody(job.id, job.spec, live)
    if reason is None:
        return []
    workers = [info for info in live if info.role == "worker"]
    lacks = bool(workers) and not any(needs_of(job.spec) <= set(w.abilities) for w in workers)
    return [
        Finding(
            f"job {job.id}",
            Status.FAILED if lacks else Status.WARNING,
            reason,
            "start a worker that can do it" if lacks else "mend the workers, or start another",
        )
    ]


def judge_results(job: Job, holdings: Sequence[Held]) -> list[Finding]:
    """Return how much memory of Redis the records take that nobody let go of."""
    records = sum(one.results for one in holdings)
    size_bytes = sum(one.results_bytes for one in holdings)
    if not records:
        return []
    is_much = size_bytes > _MANY_BYTES
    return [
        Finding(
            f"job {job.id}.results",
            Status.WARNING if is_much else Status.INFO,
            f"{quantity(records, 'record')} kept, about {size_bytes / 1e6:.0f} MB of Redis' memory",
            "export them with --consume, or export and 'crawlctl job delete' when the job is over"
            if is_much
            else None,
        )
    ]
