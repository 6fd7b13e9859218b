"""When a job is finished (design rules P1, P2 and P13).

A single look over many shards cannot see that all of them are empty *at once*: a page in flight on
a shard read late may already have put its links into a shard read early. So a job is finished only
after two successive passes, in one term, found every shard empty and none of them moved in between;
then every shard is sealed, each only if it is still as it was seen; then the job record is replaced
by compare-and-swap on the revision the passes were made at. This module holds the first part, which
is pure; sealing and the swap are in :mod:`coordinator.act`.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.model.ids import Revision
from common.model.job import Job, JobState
from coordinator.facts import Pass, ShardFact


def look(job: Job, revision: Revision, shards: Sequence[ShardFact]) -> Pass | None:
    """Return what this pass saw, or None when the job cannot be finished from here."""
    if job.state is not JobState.RUNNING or job.keep_open or job.seeds < 0:
        return None
    if [shard.shard for shard in shards] != list(range(job.spec.shards)):
        return None
    for shard in shards:
        if not (shard.exists and shard.is_empty and shard.state in ("open", "spent")):
            return None
    return Pass(revision, tuple((shard.run, shard.admitted, shard.done) for shard in shards))


def is_complete(first: Pass | None, second: Pass | None) -> bool:
    """Tell whether two successive passes prove that nothing is left and nothing moves."""
    return first is not None and first == second
