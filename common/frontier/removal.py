"""Removing everything a deleted job has in Redis, in bounded steps.

The job's record must be gone from etcd before, so that nobody creates its shards again; scripts
refuse a shard without meta, so what a worker still tries changes nothing once that key is gone. The
keys are found by their common beginning, whatever they are, and looked for again until a whole pass
finds none: a script may run between two steps on a shard whose meta still stands.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from common.frontier.client import FrontierClient
from common.frontier.keys import keys_of_job
from common.model.ids import JobId

_STEP: Final = 1000
"""Keys of the whole server looked at in one call."""


async def remove(client: FrontierClient, *, cluster: str, job: JobId) -> AsyncIterator[int]:
    """Delete all keys of a job; yield after each step how many it deleted.

    Stopping half-way is harmless: call it again.

    Raises:
        FrontierUnavailable: no answer; call it again.
    """
    pattern = keys_of_job(cluster, job)
    is_clean = False
    while not is_clean:
        is_clean = True
        cursor: bytes | int = 0
        while True:
            ((cursor, found),) = await client.commands(
                [("SCAN", cursor, "MATCH", pattern, "COUNT", _STEP)]
            )
            if found:
                is_clean = False
                (deleted,) = await client.commands([("UNLINK", *found)])
                yield deleted
            if int(cursor) == 0:
                break
