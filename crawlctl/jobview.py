"""A job as it is shown: record, counters summed over its shards, and who owns which shard.

The shape is part of the contract: fields may be added, none renamed. Secrets in a spec are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from common.model import counters
from common.model.errors import NotFoundError
from common.model.ids import JobId, Task
from common.model.job import Job, JobSpec, JobState
from common.model.node import why_nobody
from common.runtime.clock import from_unix_ms, seconds_between, utc_now
from common.runtime.secrets import HIDDEN, mask_pair

if TYPE_CHECKING:
    from common.coord import Coord, LockInfo, StoredJob
    from common.frontier import ShardStats
    from common.frontier.visits import Waiting
    from crawlctl.connect import Services
    from crawlctl.limits import Situation


class JobLook(NamedTuple):
    """A job and one look at its shards."""

    job: Job
    stats: Sequence[ShardStats]
    filtered_by_rule: Mapping[str, int] | None = None
    """Links refused, most first; None where that was not looked at."""

    @property
    def counters(self) -> dict[str, int]:
        """Return the counters of the whole job."""
        return counters.add([one.counters for one in self.stats])


async def stored_job(services: Services, job_id: str) -> StoredJob:
    """Return a job as it is in etcd.

    Raises:
        NotFoundError: there is none of this id.
    """
    stored = await services.coord.jobs.get(JobId(job_id))
    if stored is None:
        raise NotFoundError(f"there is no job {job_id!r}; 'crawlctl jobs' lists those there are")
    return stored


async def look_at(services: Services, job: Job, *, with_rules: bool = False) -> JobLook:
    """Return the job with the present counters of its shards."""
    frontier = services.frontier(job)
    refused = await frontier.refused() if with_rules else None  # first: none is missing in the sum
    return JobLook(job, await frontier.stats(), refused)


async def why_waiting(coord: Coord, job: Job) -> str | None:
    """Return why nobody works on a job that is to run; None where somebody does or need not."""
    if job.state is not JobState.RUNNING:
        return None
    return why_nobody(job.id, job.spec, await coord.members.live())


async def why_not_begun(coord: Coord, job: Job) -> str | None:
    """Return why nobody begins with a new job; None where somebody will."""
    live = await coord.members.live()
    reason = why_nobody(job.id, job.spec, live)
    roles = {info.role for info in live}
    if "master" in roles:
        return reason
    if "worker" not in roles:
        begin = "start them with crawlctl start-master and crawlctl start-worker"
        return f"there is no master and no worker; {begin}"
    lacking = "there is no master; start one with crawlctl start-master"
    return f"{lacking}; {reason}" if reason else lacking


def document(
    look: JobLook,
    locks: Sequence[LockInfo] | None = None,
    *,
    waiting: str | None = None,
    visits: Waiting | None = None,
) -> dict[str, Any]:
    """Return the JSON shape of a job; with its tasks where locks are given.

    Args:
        look: the job and its shards.
        locks: all that are held.
        waiting: why nobody works on it.
        visits: its pages that wait for their next visit, where pages are visited again.
    """
    job = look.job
    shown: dict[str, Any] = {
        "id": job.id,
        "state": job.state.value,
        "reason": job.reason or waits_for(job),
        "spec": shown_spec(job.spec, seeds=job.seeds if job.seeds < 0 else job.seeds + job.added),
        "keep_open": job.keep_open,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "counters": _counters(look),
        "seen": _seen(look),
    }
    if look.filtered_by_rule is not None:
        shown["filtered_by_rule"] = look.filtered_by_rule
    if locks is not None:
        shown["tasks"] = tasks(look, locks)
        shown["waiting"] = waiting
        shown["recrawl"] = None if visits is None else _recrawl(look, visits)
    return shown


async def waiting_visits(services: Services, job: Job) -> Waiting | None:
    """Return how many pages of a job wait for their next visit; None where there is one only."""
    from common.frontier.visits import waiting

    if job.spec.recrawl is None:
        return None
    shards = range(job.spec.shards)
    return await waiting(
        services.client, cluster=services.cluster, job=JobId(job.id), shards=shards
    )


def _recrawl(look: JobLook, visits: Waiting) -> dict[str, Any]:
    """Return how the visits after the first are doing; nothing comes back after ``job close``."""
    goes_on, at_ms, counted = look.job.is_kept_open, visits.next_at_ms, look.counters
    return {
        "waiting": visits.pages if goes_on else 0,
        "next_visit_at": from_unix_ms(at_ms) if goes_on and at_ms is not None else None,
        "under_way": counted["revisiting"],
        "done": counted["revisits"],
    }


def waits_for(job: Job) -> str | None:
    """Return what keeps a job from starting, where it is not its state."""
    if job.seeds >= 0 or job.state.is_final:
        return None
    return "its seeds are not complete; if nothing submits them now, the same 'submit' does"


def tasks(look: JobLook, locks: Sequence[LockInfo]) -> list[dict[str, Any]]:
    """Return one entry a shard: who owns it, and what waits there."""
    from common.coord import Locks

    by_name = {lock.name: lock for lock in locks}
    rows = []
    for one in look.stats:
        lock = by_name.get(Locks.task_name(Task(JobId(look.job.id), one.shard)))
        rows.append(
            {
                "shard": one.shard,
                "owner": lock.owner if lock else None,
                "token": lock.token if lock else None,
                "queued": one.counters["queued"],
                "delayed": one.counters["delayed"],
                "in_flight": one.counters["in_flight"],
            }
        )
    return rows


async def situation(services: Services, look: JobLook, shown: Mapping[str, Any]) -> Situation:
    """Return what tells why a job is not faster.

    Args:
        services: where to look.
        look: at the job.
        shown: the same, with its tasks, as :func:`document` returns it.
    """
    from crawlctl.limits import Situation, WorkerLook

    owners = {task["owner"] for task in shown["tasks"]}
    turns = await services.hosts(look.job).turns()
    return Situation(
        job=look.job.id,
        state=look.job.state,
        is_kept_open=look.job.is_kept_open,
        without_worker=shown["waiting"],
        next_visit_at=shown["recrawl"] and shown["recrawl"]["next_visit_at"],
        waiting=look.counters["queued"] + look.counters["delayed"],
        in_flight=look.counters["in_flight"],
        hosts_due=turns.due,
        hosts_waiting=turns.waiting,
        hosts_busy=turns.busy,
        workers=[
            WorkerLook(one.info.id, one.info.load.get("cpu", 0.0), one.info.stages)
            for one in await services.coord.members.list()
            if one.info.id in owners and not one.left_at
        ],
    )


def shown_spec(spec: JobSpec, *, seeds: int) -> dict[str, Any]:
    """Return the spec as shown: with the number of seeds (null while they are staged)."""
    shown: dict[str, Any] = msgspec.to_builtins(spec)
    shown["header"] = [mask_pair(text, ":") for text in spec.header]
    shown["cookie"] = [mask_pair(text, "=") for text in spec.cookie]
    shown["proxy"] = HIDDEN if spec.proxy else None
    shown["seeds"] = seeds if seeds >= 0 else None
    return shown


def differing_field(one: JobSpec, other: JobSpec) -> tuple[str, str, str] | None:
    """Return the first field in which two specs differ, with both values as they may be shown."""
    first, second = shown_spec(one, seeds=0), shown_spec(other, seeds=0)
    for name in JobSpec.__struct_fields__:
        if getattr(one, name) != getattr(other, name):
            there, here = _as_json(first[name]), _as_json(second[name])
            return (name, there, here) if there != here else (name, "one secret", "another")
    return None


def pages_per_second(job: Job, counted: Mapping[str, int]) -> float:
    """Return pages got a second since the job started, each visit counted, pauses included."""
    if job.started_at is None:
        return 0.0
    seconds = seconds_between(job.started_at, job.finished_at or utc_now())
    return round(counters.answers(counted) / seconds, 3) if seconds > 0 else 0.0


def _counters(look: JobLook) -> dict[str, float]:
    """Return the counters with the estimates beside them."""
    from common.frontier import seen_state

    counted = look.counters
    lost = seen_state(look.job.spec, look.stats).false_positives
    return {
        **counted,
        "seen_estimate": sum(one.seen_estimate for one in look.stats),
        "false_positive_estimate": round(lost, 3),
        "pages_per_second": pages_per_second(look.job, counted),
    }


def _seen(look: JobLook) -> dict[str, Any]:
    """Return how the seen-set is doing: its rate of errors is the share of new URLs it loses."""
    from common.frontier import seen_state

    spec, state = look.job.spec, seen_state(look.job.spec, look.stats)
    return {
        "mode": spec.seen,
        "layers": state.layers,
        "fill": round(state.fill, 3),
        "stated_rate": spec.seen_rate if spec.seen == "bloom" else 0.0,
        "false_positive_rate": float(f"{state.false_positive_rate:.3g}"),
    }


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
