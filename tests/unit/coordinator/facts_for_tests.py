"""Short ways to write observations."""

from __future__ import annotations

from typing import Any

from common.model.ids import NodeId, Revision
from common.model.job import Job, JobSpec, JobState
from common.model.node import NodeInfo
from coordinator.facts import JobView, Memory, ShardFact

REVISION = Revision(7)


def make_job(
    state: JobState = JobState.RUNNING,
    *,
    shards: int = 2,
    max_pages: int | None = None,
    **fields: Any,
) -> Job:
    started = None if state is JobState.PENDING else "2026-11-30T00:00:01.000Z"
    return Job(
        **{
            "id": "job",
            "spec": JobSpec(shards=shards, max_pages=max_pages),
            "state": state,
            "seeds": 1,
            "created_at": "2026-11-30T00:00:00.000Z",
            "started_at": started,
            **fields,
        }
    )


def shard(number: int = 0, **fields: Any) -> ShardFact:
    return ShardFact(**{"shard": number, "exists": True, "state": "open", "run": "r1", **fields})


def shards(count: int = 2, **fields: Any) -> tuple[ShardFact, ...]:
    return tuple(shard(number, **fields) for number in range(count))


def view(
    job: Job, looked: tuple[ShardFact, ...] | None, *, revision: int = REVISION, **memory: Any
) -> JobView:
    """A job whose fence is up to date, unless the memory says otherwise."""
    return JobView(
        job=job,
        revision=Revision(revision),
        shards=looked,
        memory=Memory(**{"fenced": Revision(revision), **memory}),
    )


def worker(name: str, state: str = "ready", weight: float = 1.0, **fields: Any) -> NodeInfo:
    return NodeInfo(
        id=NodeId(name), role="worker", state=state, weight=weight,
        pid=1, host="h", started_at="t", **fields,
    )  # fmt: skip
