"""Removing everything a deleted job has in Redis, in bounded steps.

The job's record must be gone from etcd before, so that nobody creates its shards again; scripts
refuse a shard without meta, so what a worker still tries changes nothing once that key is gone. The
keys are found by their common beginning, whatever they are, and looked for again until a whole pass
finds none: a script may run between two steps on a shard whose meta still stands. The nodes of a
cluster are gone through in both orders, since keys may move from one to another meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from common.frontier.client import FrontierClient
from common.frontier.data_server import DataServer
from common.frontier.keys import keys_of_job
from common.frontier.topology import SLOTS
from common.model.errors import FrontierUnavailable
from common.model.ids import JobId

_STEP: Final = 1000
"""Keys of a whole server looked at in one call."""


async def remove(client: FrontierClient, *, cluster: str, job: JobId) -> AsyncIterator[int]:
    """Delete all keys of a job; yield after each step how many it deleted.

    Stopping half-way is harmless: call it again.

    Raises:
        FrontierUnavailable: a server did not answer; call it again.
    """
    pattern = keys_of_job(cluster, job)
    clean, backwards = 0, False
    servers = await _servers(client)
    while clean < min(2, len(servers)):
        clean += 1
        for server in reversed(servers) if backwards else servers:
            async for found in _scan(server, pattern):
                clean = 0
                yield sum(await client.commands([("UNLINK", key) for key in found]))
        backwards = not backwards
        servers = await _servers(client)


async def _servers(client: FrontierClient) -> list[DataServer]:
    topology = await client.topology()
    if topology is not None and topology.covered < SLOTS:
        raise FrontierUnavailable(
            f"the Redis Cluster at {client.endpoint} serves only {topology.covered} of {SLOTS} "
            "slots now, so that keys cannot be deleted; delete the job again when it is whole"
        )
    return await client.servers()


async def _scan(server: DataServer, pattern: str) -> AsyncIterator[list[bytes]]:
    cursor: bytes | int = 0
    while True:
        ((cursor, found),) = await server.commands(
            [("SCAN", cursor, "MATCH", pattern, "COUNT", _STEP)]
        )
        if found:
            yield found
        if int(cursor) == 0:
            return
