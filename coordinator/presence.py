"""A master's key among the nodes: its state and load figures, refreshed under its session."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time

import msgspec
import psutil
import structlog

from common.coord import Coord, NodeInfo, Session
from common.model.errors import CoordUnavailable, RefusedError, UnknownOutcome
from common.model.ids import NodeId
from common.runtime.clock import utc_now

log = structlog.get_logger()

_REFRESHES_PER_TTL = 3


class Presence:
    """Joins as a master and keeps the figures fresh."""

    def __init__(self, coord: Coord, *, node_id: NodeId) -> None:
        self._coord = coord
        self._process = psutil.Process()
        self._info = NodeInfo(
            id=node_id,
            role="master",
            state="standby",
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=utc_now(),
        )

    async def join(self, session: Session) -> None:
        """Enter the list of nodes.

        Raises:
            RefusedError: a live node has this id.
        """
        await self._coord.members.join(session, self._info)

    async def rejoin(self, session: Session) -> None:
        """Enter again after a session was lost; our own old key may outlive it for a while.

        Raises:
            RefusedError: the id is still taken after any lease of ours must have ended.
        """
        deadline = time.monotonic() + 3 * session.ttl_s
        while True:
            try:
                await self.join(session)
            except RefusedError:
                if time.monotonic() > deadline:
                    raise
            except (CoordUnavailable, UnknownOutcome) as error:
                log.warning("presence.not_joined", error=str(error))
            else:
                return
            await asyncio.sleep(session.ttl_s / 10)

    async def leave(self, session: Session) -> None:
        """Leave the list of nodes in good order."""
        await self._coord.members.leave(session, self._info)

    async def refresh_for_ever(self, session: Session) -> None:
        """Write the load figures several times per lease, at moments of no common rhythm.

        Raises:
            LeaseLost: the key or the session is gone.
        """
        pause_s = session.ttl_s / _REFRESHES_PER_TTL
        while True:
            wait_s = pause_s * random.uniform(0.8, 1.2)  # noqa: S311  # spreads load, guards nothing
            due_at_s = time.monotonic() + wait_s
            await asyncio.sleep(wait_s)
            self._info = msgspec.structs.replace(self._info, load=self._load(due_at_s))
            try:
                await self._coord.members.update(session, self._info)
            except (CoordUnavailable, UnknownOutcome) as error:
                # Figures only; whether we are still here is the session's business.
                log.debug("presence.not_refreshed", error=str(error))

    def _load(self, due_at_s: float) -> dict[str, float]:
        with self._process.oneshot():
            return {
                "cpu": round(self._process.cpu_percent() / 100, 3),
                "memory_bytes": float(self._process.memory_info().rss),
                "loop_lag_s": round(max(0.0, time.monotonic() - due_at_s), 4),
            }
