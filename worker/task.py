"""One owned task: adopt the shard, recover what was lost, claim, work, commit, let go.

The lock says who owns the task, the fencing token proves it to the frontier. A task ends in one of
two ways: *drained* (nothing of it is in flight any more, the lock may be released) or *lost* (the
session ended, or the frontier refused the token: every page is dropped at once, and whatever it
would still write is refused).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import structlog

from common.coord import Coord
from common.coord.session import Session
from common.frontier.client import FrontierClient
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Claim, Claimed, Refusal, ShardState
from common.frontier.visits import DueVisits
from common.model.errors import FrontierUnavailable
from common.model.ids import HostKey, Task, Token
from worker.adoption import Adopter
from worker.agenda import Agenda
from worker.committer import BATCH, Committer
from worker.handover import Handover, Page
from worker.job import JobContext
from worker.page import PageWorker
from worker.recall import Recaller
from worker.settlement import Settlement

CLAIM_BATCH: Final = 32
CLAIM_EVERY_S: Final = 0.008
"""Least time from claim to claim: the pages that end meanwhile share the next one."""
BACKLOG: Final = 4 * BATCH
"""Settlements waiting to be written above which nothing more is claimed."""
IDLE_S: Final = (0.005, 1.0)
"""First and longest wait of a task with nothing to claim."""
FREE_S: Final = 2.0
"""How long a lost task tries to give back the slots of its requests."""

log = structlog.get_logger()


class Ending(StrEnum):
    """How the ownership of a task ended."""

    DRAINED = "drained"
    LOST = "lost"


class TaskRunner:
    """Runs one task under one token."""

    def __init__(
        self,
        *,
        task: Task,
        token: Token,
        session: Session,
        coord: Coord,
        client: FrontierClient,
        cluster: str,
        context: JobContext,
        dead_below: int,
        on_page: Callable[[Settlement], None],
    ) -> None:
        self.task = task
        self.token = token
        self._session = session
        self._context = context
        self._on_page = on_page
        self._log = log.bind(job=task.job, shard=task.shard, token=token)
        self._frontier = TaskFrontier(
            client, cluster=cluster, task=task, spec=context.spec, token=token
        )
        self._pages = PageWorker(
            context,
            token=token,
            may_send=self._may_send,
            count_owners=self._frontier.count_owners,
        )
        self._recaller: Recaller | None = None
        if context.revisits is not None:
            spec = context.spec
            due = DueVisits(client, cluster=cluster, task=task, spec=spec, token=token)
            least_s, _ = spec.recrawl_bounds
            self._recaller = Recaller(coord, self._frontier, due, task=task, least_s=least_s)
        self._held: dict[int, Page] = {}
        self._adopter = Adopter(
            coord,
            self._frontier,
            context.outlinks,
            task=task,
            token=token,
            held=self._held.keys(),
            is_mine=self._is_mine,
            dead_below=dead_below,
        )
        self._agenda = Agenda(context.robots.lead_s, per_host=context.spec.per_host)
        self._written = asyncio.Event()
        """Set when something was settled."""
        self._draining = False
        self._handover = Handover()
        self._lost = False
        self._ended: dict[int, tuple[HostKey, float]] = {}
        """Claims whose slots are free though they are not settled: host, and since when."""

    @property
    def in_flight(self) -> int:
        """Claims being worked on or written."""
        return len(self._held)

    def drain(self) -> None:
        """Claim no more; finish what is in flight."""
        self._draining = True
        self._agenda.expect(0.0)
        self._written.set()

    def move(self) -> None:
        """Drain as soon as no slow page would keep the hosts of the shard waiting."""
        self._handover.wish()
        self._agenda.expect(0.0)
        self._written.set()

    def stay(self) -> None:
        """Move no more, if there is still time."""
        if self._handover.is_wished:
            self._handover.withdraw()
            self._agenda.expect(0.0)

    def _is_mine(self) -> bool:
        return not self._lost and self._session.is_live and not self._context.has_failed

    def _may_send(self) -> bool:
        return self._is_mine() and not self._draining and not self._handover.is_ending

    async def run(self) -> Ending:
        """Own the task until drained or lost. Cancelling it means lost."""
        self._context.agendas[self.task.shard] = self._agenda
        committer = self._committer()
        writing = asyncio.create_task(committer.run())
        try:
            pumping = asyncio.create_task(self._pump(committer))
            try:
                await asyncio.wait([pumping, writing], return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    refusal = writing.result()
                    self._log.info("task.refused", by=str(refusal))
                    return Ending.LOST
                if not pumping.result():
                    return Ending.LOST
                committer.finish()
                return Ending.DRAINED if await writing is None else Ending.LOST
            finally:
                pumping.cancel()
        finally:
            self._lost = True
            writing.cancel()
            del self._context.agendas[self.task.shard]
            await self._abandon()

    def _committer(self) -> Committer:
        return Committer(
            self._context,
            self._frontier,
            shard=self.task.shard,
            may_write=self._is_mine,
            readopt=self._adopter.adopt,
            on_settled=self._settled,
            is_undone=self._adopter.undone.__contains__,
        )

    async def _abandon(self) -> None:
        """Drop every page still held and free its slot: its request ends with its connection."""
        pages = list(self._held.items())
        if not pages:
            return
        for _, page in pages:
            page.working.cancel()
        await asyncio.gather(*(page.working for _, page in pages), return_exceptions=True)
        self._held.clear()
        try:
            async with asyncio.timeout(FREE_S):
                await self._frontier.free([(claim, 0) for claim, _ in pages])
        except (TimeoutError, FrontierUnavailable) as error:
            self._log.info("task.slots_kept", reason=str(error), until="their requests time out")

    async def _pump(self, committer: Committer) -> bool:
        """Claim until drained; False = the task is not ours any more."""
        if not await self._adopter.adopt():
            return False
        idle = IDLE_S[0]
        while not await self._is_to_end():
            if committer.backlog >= BACKLOG:
                self._written.clear()
                await self._written.wait()
                continue
            not_before = time.monotonic() + CLAIM_EVERY_S
            answer, known = await self._next(committer)
            match answer:
                case None:  # no answer; what it may have claimed was recovered
                    idle = min(2 * idle, IDLE_S[1])
                    self._agenda.expect(time.monotonic() + idle)
                    await self._agenda.wait()
                case Refusal.RUN:
                    if not await self._adopter.adopt():
                        return False
                case Refusal() as refusal:
                    self._log.info("task.refused", by=refusal.value)
                    return False
                case Claimed():
                    if answer.delayed and not await self._promote(answer.delayed):
                        return False
                    idle = min(2 * idle, IDLE_S[1]) if _is_fruitless(answer) else IDLE_S[0]
                    wait_s = _wait_s(answer, known=known, idle_s=idle)
                    self._agenda.expect(time.monotonic() + wait_s)
                    await self._agenda.wait()
                    await asyncio.sleep(max(0.0, not_before - time.monotonic()))
        await asyncio.gather(*(page.working for page in self._held.values()))
        return self._is_mine()

    async def _is_to_end(self) -> bool:
        """Tell whether nothing more is to be claimed."""
        if self._draining or not self._handover.is_wished:
            return self._draining
        return await self._handover.is_over(self._held.values()) or self._draining

    async def _next(self, committer: Committer) -> tuple[Claimed | Refusal | None, int]:
        """Queue what is to be visited again, then claim; as :meth:`_claim`."""
        if self._recaller is not None and (refusal := await self._recaller.run()) is not None:
            return refusal, 0
        return await self._claim(committer)

    async def _claim(self, committer: Committer) -> tuple[Claimed | Refusal | None, int]:
        """Claim for the free places, and start a page for each claim.

        Returns:
            The answer (None: there was none, and the shard was recovered), and how many hosts were
            known to be due.
        """
        places = await self._context.places.reserve(CLAIM_BATCH)
        try:
            if self._draining or (self._handover.is_wished and not self._held):
                return None, 0  # it was asked to while it waited for a place
            sent_at = time.monotonic()
            ended, self._ended = self._ended, {}
            freed = [(one, int((sent_at - at) * 1000)) for one, (_, at) in ended.items()]
            ready = dict.fromkeys(self._agenda.due(sent_at))
            known = ready | dict.fromkeys(host for host, _ in ended.values())
            due = [host for host in known if host not in self._handover.slow_hosts][:places]
            robots = self._context.robots
            delays = {host: int(robots.delay_s(host) * 1000) for host in due}
            leads = self._agenda.leads_ms(delays, places=places)
            if not self._is_mine():
                return Refusal.STALE, 0
            self._agenda.asking()
            try:
                answer = await self._frontier.claim(
                    places, list(delays.items()), leads_ms=leads, ended=freed
                )
            except FrontierUnavailable as error:
                self._agenda.unanswered()
                self._log.warning("claim.waiting", reason=str(error))
                return (None if await self._adopter.adopt() else Refusal.STALE), 0
            if isinstance(answer, Claimed):
                now = time.monotonic()
                self._context.stages.claim.add(now - sent_at)
                robots.take_delays((host for host, _ in answer.ahead), answer.delays)
                self._agenda.answered(answer.ahead, answer.claims, delays, now)
                for claim in answer.claims:
                    working = asyncio.create_task(self._page(claim, sent_at, committer))
                    self._held[claim.number] = Page(claim.host, working, sent_at)
                places -= len(answer.claims)
            return answer, len(known)
        finally:
            self._context.places.give_back(places)

    async def _page(self, claim: Claim, sent_at: float, committer: Committer) -> None:
        try:
            with self._context.places.heavy.load() as load:
                try:
                    settlement = await self._pages.work(claim, claimed_at=sent_at, load=load)
                except Exception as error:  # noqa: BLE001 - supervisor: one page must not end the task
                    self._log.exception("page.broken", claim=claim.number)
                    settlement = self._pages.broken(claim, error)
                settlement = await committer.lightened(settlement)
        finally:
            self._context.places.give_back(1)
        if settlement.ended_at is not None and settlement.rest_ms == 0:
            self._ended[claim.number] = claim.host, settlement.ended_at
            self._agenda.expect(0.0)
        committer.add(settlement)

    def _settled(self, batch: Sequence[Settlement]) -> None:
        for settlement in batch:
            self._held.pop(settlement.claim, None)
            self._ended.pop(settlement.claim, None)
            self._adopter.undone.discard(settlement.claim)
            self._on_page(settlement)
            rest_ms, ended_at = settlement.rest_ms, settlement.ended_at
            self._agenda.settled(settlement.claim, rest_ms=rest_ms, ended_at=ended_at)
        self._written.set()

    async def _promote(self, members: Sequence[bytes]) -> bool:
        try:
            answer = await self._frontier.promote(members)
        except FrontierUnavailable as error:
            self._log.warning("promote.waiting", reason=str(error))
            return True
        return answer not in (Refusal.STALE, Refusal.MISSING)


def _is_fruitless(answer: Claimed) -> bool:
    return not answer.claims and not answer.delayed


def _wait_s(answer: Claimed, *, known: int, idle_s: float) -> float:
    """Return how long to wait before the next claim, unless something wakes the task.

    Args:
        answer: to the last claim.
        known: hosts that were known to be due.
        idle_s: the present wait of a task that finds nothing.
    """
    if answer.state in (ShardState.PAUSED, ShardState.SEALED, ShardState.CLOSED):
        return idle_s
    next_s = answer.wait_ms / 1000 if answer.wait_ms >= 0 else IDLE_S[1]
    if not _is_fruitless(answer):
        return min(next_s, IDLE_S[1])
    if next_s == 0:  # due, but nothing was given: at once if it was not even known
        return 0.0 if known == 0 else idle_s
    return min(next_s, IDLE_S[1]) if answer.wait_ms > 0 else idle_s
