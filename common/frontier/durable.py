"""Waiting until a data server keeps what it has acknowledged (design rule P7)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from common.frontier.barrier import Barrier
from common.frontier.keys import fsync_key
from common.frontier.link import Link
from common.frontier.server import Durability, parse_info
from common.model.errors import FrontierUnavailable

if TYPE_CHECKING:
    from common.frontier.data_server import DataServer

HORIZON_S = 4.0
"""With AOF everysec, how long after its acknowledgement a sync of a write has surely begun: it may
be held back for two seconds, and the next sync begins a second (by a coarse clock) later."""
WAIT_S = 8.0
"""How long the server may take to sync its log; below CALL_TIMEOUT_S."""
ACKNOWLEDGE_S = 4.0
"""How long a replica may take to acknowledge what its master has."""


class Durable:
    """The waits of one server; those who wait together share one."""

    def __init__(self, server: DataServer) -> None:
        self._server = server
        self._barrier = Barrier(self._keep)

    async def close(self) -> None:
        """End what is under way."""
        await self._barrier.close()

    async def wait(self) -> str:
        """Return once it keeps all that it has acknowledged to anyone before this call.

        Where each write is on disk when it is acknowledged (AOF always), or where nothing ever is
        (no AOF: then no promise holds over a crash), its log is not waited for. With AOF everysec
        it takes a second or two with a server that can be asked (Valkey, Redis 7.2), and
        :data:`HORIZON_S` with others. Where it has replicas, one of them must have it as well.

        Returns:
            The server run that keeps it. What an earlier one acknowledged may be lost: compare.

        Raises:
            FrontierUnavailable: no answer, the log could not be written, or no replica
                acknowledged.
        """
        async with self._server.link() as link:
            if link.durability is not Durability.DELAYED and not self._replicas(link):
                return link.run_id
        return await self._barrier.passed()

    def _replicas(self, link: Link) -> int:
        return max(link.replicas, self._server.replicas)

    async def _keep(self) -> str:
        async with self._server.link() as link:
            is_delayed = link.durability is Durability.DELAYED
            # Something to wait for: whoever has this has all that came before it.
            await self._server.on_own_key(lambda tag: self._write(link, fsync_key(tag)))
            if self._replicas(link):
                await self._wait_for_a_replica(link)
            if not is_delayed:
                return link.run_id
            if not link.cannot_wait:
                ask = ("WAITAOF", 1, 0, int(WAIT_S * 1000))
                (answer,) = await link.exchange([ask])
                if not isinstance(answer, RedisError):
                    if answer[0] < 1:
                        raise FrontierUnavailable(
                            f"Redis at {link.endpoint} did not sync its log within {WAIT_S:g} s"
                        )
                    return link.run_id
                link.cannot_wait = True
            run = link.run_id
        return run if await self._wait_horizon() == run else ""

    async def _write(self, link: Link, key: str) -> list[Any]:
        replies = await link.exchange([("SET", key, 1)])
        link.check(replies[0], "SET")
        return replies

    async def _wait_for_a_replica(self, link: Link) -> None:
        (count,) = await link.exchange([("WAIT", 1, int(ACKNOWLEDGE_S * 1000))])
        link.check(count, "WAIT")
        if count >= 1:
            return
        (raw,) = await link.exchange([("INFO", "replication")])
        link.check(raw, "INFO")
        link.replicas = int(parse_info(raw).get("connected_slaves", 0))
        if self._replicas(link):
            raise FrontierUnavailable(
                f"no replica of Redis at {link.endpoint} acknowledged within {ACKNOWLEDGE_S:g} s, "
                "so that a failover could lose what it has; see the replica's log, or remove it"
            )

    async def _wait_horizon(self) -> str:
        """Wait until any fsync due by now has been begun and has ended; return the run."""
        await asyncio.sleep(HORIZON_S)
        deadline = time.monotonic() + WAIT_S
        while True:
            async with self._server.link() as link:
                (raw,) = await link.exchange([("INFO", "persistence")])
                link.check(raw, "INFO")
                run = link.run_id
            facts = parse_info(raw)
            is_behind = facts.get("aof_pending_bio_fsync", "0") != "0"
            if facts.get("aof_last_write_status", "ok") == "ok" and not is_behind:
                return run
            if time.monotonic() > deadline:
                raise FrontierUnavailable(
                    f"Redis at {link.endpoint} did not sync its log within {WAIT_S:g} s"
                )
            await asyncio.sleep(0.02)
