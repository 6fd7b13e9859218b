"""A candidate's life: session, standby, campaign, term; and what ends each of them.

A term ends from outside when the session is lost (etcd's word, or the session's own deadline while
etcd does not answer) and from inside when a write is refused because somebody else is master.
Either way the work is stopped first; then the process demotes itself, visibly, and starts again on
standby with a new session. SIGTERM and a request to drain resign, so that no successor has to wait
for the lease's end.

Redis being away ends nothing by itself: a master that cannot look at shards is still the only one.
Only where it lasts, and another candidate waits, is that one let try.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import structlog

from common.coord import Coord, EtcdOptions, Mirror, Session, connect
from common.frontier import FrontierClient, RedisOptions
from common.model.errors import (
    CoordUnavailable,
    CrawlerError,
    LeaseLost,
    NotMaster,
    UnknownOutcome,
)
from common.model.ids import NodeId, Term
from common.runtime.settings import Settings
from coordinator.metrics import Metrics
from coordinator.observe import NodeRoll
from coordinator.presence import Presence
from coordinator.reign import Reign

log = structlog.get_logger()

_Join = Callable[[Session], Coroutine[Any, Any, None]]

_ROLL_CALL_S = 30.0
_REOPEN_S = (0.2, 2.0)
_CANCEL_AGAIN_S = 2.0
_LEAVING_S = 3.0
"""Longest time spent on leaving in good order; the lease does the rest."""


async def run(
    settings: Settings, *, node_id: str, lease_ttl_s: float, http: str | None, stop: asyncio.Event
) -> None:
    """Be a candidate, and the master when elected, until ``stop`` is set.

    Args:
        settings: where etcd and Redis are.
        node_id: the node's name; one live process has it.
        lease_ttl_s: seconds until others take over from a master that stopped.
        http: ``HOST:PORT`` for health and metrics, or None.
        stop: set to resign and leave.

    Raises:
        ServiceUnavailable: etcd or Redis cannot be reached at the start.
        RefusedError: a live node has this id.
    """
    async with AsyncExitStack() as stack:
        coord = await connect(EtcdOptions.of(settings), cluster=settings.cluster)
        stack.push_async_callback(coord.close)
        client = FrontierClient(RedisOptions.of(settings))
        stack.push_async_callback(client.close)
        await client.open()
        candidate = Candidate(
            coord, client, cluster=settings.cluster, node_id=NodeId(node_id), ttl_s=lease_ttl_s
        )
        if http is not None:
            await stack.enter_async_context(candidate.served_at(http))
        await candidate.run(stop)


class Candidate:
    """One process that wants to be master, over all its sessions."""

    def __init__(
        self,
        coord: Coord,
        client: FrontierClient,
        *,
        cluster: str,
        node_id: NodeId,
        ttl_s: float,
    ) -> None:
        self._coord = coord
        self._client = client
        self._cluster = cluster
        self._node_id = node_id
        self._ttl_s = ttl_s
        self._presence = Presence(coord, node_id=node_id)
        self._nodes = Mirror(coord.etcd, coord.keys.nodes)
        self._roll = NodeRoll()
        self._metrics = Metrics()
        self._session: Session | None = None
        self._term: Term | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Live one session after another until ``stop`` is set; see :func:`run`."""
        await self._nodes.start()
        try:
            join = self._presence.join
            session: Session | None = await Session.open(self._coord.etcd, ttl_s=self._ttl_s)
            while session is not None and not await self._serve(session, join, stop):
                join = self._presence.rejoin
                session = await self._reopen(stop)
        finally:
            await self._nodes.close()

    @asynccontextmanager
    async def served_at(self, address: str) -> AsyncIterator[None]:
        """Serve health and metrics while the context is open."""
        from common.runtime import http  # noqa: PLC0415  # a web server only when asked for

        def health() -> http.Health:
            is_live = self._session is not None and self._session.is_live
            state = "standby" if self._term is None else "active"
            facts = {"id": self._node_id, "role": "master", "state": state, "term": self._term}
            return http.Health(is_live, facts)

        async with http.serve(address, health=health, registry=self._metrics.registry):
            yield

    async def _serve(self, session: Session, join: _Join, stop: asyncio.Event) -> bool:
        """Live one session to its end; tell whether that was asked for."""
        self._session = session
        reason: str | None = None
        try:
            # Whichever ends first, the work has ended too when this returns: acting stops before
            # anything else is done about it.
            await _first_of(self._work(session, join, stop), session.wait_lost(), stop.wait())
        except (NotMaster, LeaseLost) as error:
            reason = str(error)
        finally:
            term, self._term = self._term, None
            self._metrics.term.set(0)
            if stop.is_set() and reason is None:
                await self._leave(session, term)
            else:
                self._demote(term, reason or session.lost_reason or "the process ends")
            await _briefly(session.close())
        return stop.is_set()

    async def _work(self, session: Session, join: _Join, stop: asyncio.Event) -> None:
        await join(session)
        await _first_of(
            self._presence.refresh_for_ever(session), self._lead(session), self._obey(stop)
        )

    async def _obey(self, stop: asyncio.Event) -> None:
        """Set ``stop`` once somebody asks this node to drain."""
        await self._coord.drains.wait(self._node_id)
        log.info("master.asked_to_drain", node=self._node_id)
        stop.set()

    async def _lead(self, session: Session) -> None:
        """Wait to be elected, then work as the master."""
        log.info("master.standby", node=self._node_id)
        roll_call = asyncio.create_task(self._call_roll())
        try:
            term = await self._coord.election.campaign(session, node=self._node_id)
        finally:
            await _stopped([roll_call])
        self._term = term
        self._metrics.term.set(term)
        self._presence.note_election()
        log.info("master.elected", node=self._node_id, term=term)
        await Reign(
            self._coord,
            self._client,
            session,
            cluster=self._cluster,
            term=term,
            nodes=self._nodes,
            roll=self._roll,
            metrics=self._metrics,
        ).run()

    async def _call_roll(self) -> None:
        while True:
            self._roll.take(self._nodes.items)
            await self._nodes.changed(timeout_s=_ROLL_CALL_S)

    def _demote(self, term: Term | None, reason: str) -> None:
        if term is None:
            log.warning("candidate.session_ended", node=self._node_id, reason=reason)
            return
        self._metrics.demotions.inc()
        self._presence.note_demotion(term, reason)
        log.warning("master.demoted", node=self._node_id, term=term, reason=reason)

    async def _leave(self, session: Session, term: Term | None) -> None:
        await _briefly(self._presence.drain(session))
        if term is not None:
            await _briefly(self._coord.election.resign(term))
            log.info("master.resigned", node=self._node_id, term=term)
        await _briefly(self._presence.leave(session))

    async def _reopen(self, stop: asyncio.Event) -> Session | None:
        """Open the next session, however long etcd is away; None once ``stop`` is set."""
        while not stop.is_set():
            try:
                return await Session.open(self._coord.etcd, ttl_s=self._ttl_s)
            except CoordUnavailable as error:
                log.warning("candidate.without_etcd", node=self._node_id, error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(*_REOPEN_S)):  # noqa: S311  # no secret
                    await stop.wait()
        return None


async def _first_of(*work: Coroutine[Any, Any, Any]) -> None:
    """Run everything until the first of it ends; then stop the rest, and raise what it raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _stopped(tasks)
    for task in tasks:
        if task in done:
            task.result()


async def _stopped(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel until every task has ended: libraries are known to swallow a cancellation.

    They have ended also when this is cancelled meanwhile: nothing may act behind a caller's back.
    And what they ended with has been seen: a lost session ends several of them at once.
    """
    cancelled: asyncio.CancelledError | None = None
    is_due = True
    while running := {task for task in tasks if not task.done()}:
        if is_due:
            for task in running:
                task.cancel()
        try:
            await asyncio.wait(running, timeout=_CANCEL_AGAIN_S)
            is_due = True
        except asyncio.CancelledError as again:
            cancelled, is_due = again, False
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, CrawlerError):
            log.error("master.broken", exc_info=error)
    if cancelled is not None:
        raise cancelled


async def _briefly(farewell: Coroutine[Any, Any, None]) -> None:
    """Do something that is good manners but not needed: the lease's end does it as well."""
    try:
        async with asyncio.timeout(_LEAVING_S):
            await farewell
    except (TimeoutError, CoordUnavailable, UnknownOutcome, LeaseLost) as error:
        log.warning("master.farewell_cut_short", error=str(error) or "no answer in time")
