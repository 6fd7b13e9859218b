"""A master's key among the nodes: its state and load figures, refreshed under its session."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time

import msgspec
import structlog

from common.coord import Coord, NodeInfo, Session
from common.model.errors import CoordUnavailable, RefusedError, UnknownOutcome
from common.model.ids import NodeId, Term
from common.model.node import NodeState
from common.runtime.clock import utc_now
from common.runtime.vitals import Vitals

log = structlog.get_logger()

_REFRESHES_PER_TTL = 3


class Presence:
    """Joins as a master and keeps the figures fresh."""

    def __init__(self, coord: Coord, *, node_id: NodeId) -> None:
        self._coord = coord
        self._vitals = Vitals()
        self._info = NodeInfo(
            id=node_id,
            role="master",
            state=NodeState.STANDBY,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=utc_now(),
        )

    def note_demotion(self, term: Term, reason: str) -> None:
        """Show from the next joining on that a term was lost, until the next one is won."""
        self._change(reasons=(f"lost term {term} at {utc_now()}: {reason}",))

    def note_election(self) -> None:
        """Show a demotion no more."""
        self._change(reasons=())

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

    async def drain(self, session: Session) -> None:
        """Show that this node is about to leave."""
        self._change(state=NodeState.DRAINING)
        await self._coord.members.update(session, self._info)

    async def leave(self, session: Session) -> None:
        """Leave the list of nodes in good order."""
        await self._coord.members.leave(session, self._info)

    async def refresh_for_ever(self, session: Session) -> None:
        """Write the load figures several times per lease, at moments of no common rhythm.

        Raises:
            LeaseLost: the key or the session is gone.
        """
        watching = asyncio.create_task(self._vitals.watch_loop())
        pause_s = session.ttl_s / _REFRESHES_PER_TTL
        try:
            while True:
                await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311  # no secret
                self._change(load=self._vitals.sample().figures())
                try:
                    await self._coord.members.update(session, self._info)
                except (CoordUnavailable, UnknownOutcome) as error:
                    # Figures only; whether we are still here is the session's business.
                    log.debug("presence.not_refreshed", error=str(error))
        finally:
            watching.cancel()

    def _change(self, **fields: object) -> None:
        self._info = msgspec.structs.replace(self._info, **fields)
