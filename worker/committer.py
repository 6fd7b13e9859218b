"""Settlements of one task, written in batches: outlinks are offered first, then claims settled.

What the records point to in the archive is on disk before they are committed.

A page whose outlinks were not all taken for good is never committed (design section 3): an offer
that must wait (sealed shard, restarted server) is repeated, and one answered "closed" means that
the job is over and the page is dropped uncommitted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from common.frontier.items import Item
from common.frontier.owner import TaskFrontier
from common.frontier.replies import Offered, Refusal
from common.frontier.settling import Finished, Release, Retry, Settled, SitemapRead
from common.model.errors import FrontierUnavailable
from worker.job import JobContext
from worker.settlement import Settlement

BATCH: Final = 64
OFFER_AT_ONCE: Final = 4000
"""Links offered together; the event loop does other things in between."""
LINGER_S: Final = 0.004
"""How long a first settlement waits for others to share its round trip."""
PAUSE_S: Final = (0.02, 1.0)
"""First and longest wait before an offer or a settlement is repeated."""

log = structlog.get_logger()


class Committer:
    """Writes the settlements of one task until it is told that no more come."""

    def __init__(
        self,
        context: JobContext,
        frontier: TaskFrontier,
        *,
        shard: int,
        may_write: Callable[[], bool],
        readopt: Callable[[], Awaitable[bool]],
        on_settled: Callable[[Sequence[Settlement]], None],
        is_undone: Callable[[int], bool],
    ) -> None:
        """Prepare.

        Args:
            context: the job.
            frontier: the task's own shard.
            shard: its number.
            may_write: asked before each write: the session is live and the task still ours.
            readopt: called when the server was restarted; False = the task is lost.
            on_settled: told which settlements are done, whatever became of them.
            is_undone: tells of a claim whether the server may have lost links of its page since it
                was made: then it is given back, so that the page is fetched again.
        """
        self._context = context
        self._frontier = frontier
        self._shard = shard
        self._may_write = may_write
        self._readopt = readopt
        self._on_settled = on_settled
        self._is_undone = is_undone
        self._waiting: list[tuple[Settlement, float]] = []
        """With the time of their arrival."""
        self._arrived = asyncio.Event()
        self._closing = False

    @property
    def backlog(self) -> int:
        """Settlements that wait to be written."""
        return len(self._waiting)

    def add(self, settlement: Settlement) -> None:
        """Take a settlement in; bounded by the claims the task may hold."""
        self._waiting.append((settlement, time.monotonic()))
        self._arrived.set()

    async def lightened(self, settlement: Settlement) -> Settlement:
        """Offer the links of a page that has very many; return what is left to be written.

        The other pages of the task need not wait for it. Where the offers end early, the batch it
        is written in will meet the same refusal.
        """
        if len(settlement.offers) <= OFFER_AT_ONCE:
            return settlement
        try:
            refusal = await self._offer_all(settlement.offers)
        except Exception:
            log.exception("offer.broken", shard=self._shard)
            return settlement
        return settlement if refusal is not None else replace(settlement, offers=[])

    def finish(self) -> None:
        """No more settlements will come: :meth:`run` returns when all are written."""
        self._closing = True
        self._arrived.set()

    async def run(self) -> Refusal | None:
        """Write until finished; return the refusal that ended it early, if any.

        Raises:
            ArchiveFailed: what the records would point to cannot be written.
        """
        while True:
            await self._arrived.wait()
            if not self._closing and len(self._waiting) < BATCH:
                await asyncio.sleep(LINGER_S)
            taken, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            batch = [settlement for settlement, _ in taken]
            if not self._waiting and not self._closing:
                self._arrived.clear()
            if not batch:
                if self._closing:
                    return None
                continue
            refusal = await self._write(batch)
            if refusal is not None:
                return refusal
            now = time.monotonic()
            for _, arrived_at in taken:
                self._context.stages.settle.add(now - arrived_at)
            self._on_settled(batch)

    async def _write(self, batch: Sequence[Settlement]) -> Refusal | None:
        found = list({item.identity: item for one in batch for item in one.offers}.values())
        if (refusal := await self._offer_all(found)) is not None:
            return refusal
        stages = self._context.stages
        if self._context.archive is not None:
            with stages.archive.timed():
                await self._context.archive.sync()
        with stages.commit.timed():
            return await self._settle(batch)

    async def _offer_all(self, found: Sequence[Item]) -> Refusal | None:
        for start in range(0, len(found), OFFER_AT_ONCE):
            with self._context.stages.offer.timed():
                refusal = await self._offer(found[start : start + OFFER_AT_ONCE])
            if refusal is not None:
                return refusal
        return None

    async def _offer(self, found: Sequence[Item]) -> Refusal | None:
        """Offer links until every shard has taken its own; None = all taken."""
        todo = self._context.offers.by_shard(found)
        pause = PAUSE_S[0]
        while True:
            runs = {shard: self._context.offers.run(shard) for shard in todo}
            answers = await asyncio.gather(
                *(self._offer_one(shard, links) for shard, links in todo.items())
            )
            taken: dict[int, str] = {}
            for shard, answer in zip(list(todo), answers, strict=True):
                match answer:
                    case Offered(admitted=admitted):
                        taken[shard] = runs[shard]
                        if admitted:
                            self._context.offered(shard, {item.host for item in todo[shard]})
                    case Refusal.CLOSED | Refusal.MISSING | Refusal.STALE:
                        return answer
                    case Refusal.RUN if shard == self._shard and not await self._readopt():
                        return Refusal.STALE
            for shard in await self._kept(taken):
                self._context.outlinks.taken(todo.pop(shard))
            if not todo:
                return None
            if not self._may_write():
                return Refusal.STALE
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_S[1])

    async def _offer_one(self, shard: int, links: Sequence[Item]) -> Offered | Refusal:
        try:
            return await self._context.offers.offer(shard, links)
        except FrontierUnavailable as error:
            log.warning("offer.waiting", shard=shard, reason=str(error))
            return Refusal.RETRY

    async def _kept(self, taken: Mapping[int, str]) -> list[int]:
        """Return the shards that have what they took for good; the others are offered it again."""
        try:
            return await self._context.offers.kept(taken)
        except FrontierUnavailable as error:
            log.warning("offer.not_kept", shard=self._shard, reason=str(error))
            return []

    async def _settle(self, batch: Sequence[Settlement]) -> Refusal | None:
        pause = PAUSE_S[0]
        while True:
            if not self._may_write():
                return Refusal.STALE
            try:
                answer = await self._settle_once(batch)
            except FrontierUnavailable as error:
                # Settled or not, the same call again changes nothing more: a settled claim is gone.
                log.warning("commit.waiting", shard=self._shard, reason=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_S[1])
                continue
            match answer:
                case Settled(gone=gone):
                    if gone:
                        log.info("commit.gone", shard=self._shard, claims=len(gone))
                    return None
                case Refusal.RUN:
                    if not await self._readopt():
                        return Refusal.STALE
                case refusal:
                    return refusal

    async def _settle_once(self, batch: Sequence[Settlement]) -> Settled | Refusal:
        if self._context.ledger is not None:
            spent = [one.spent for one in batch if one.spent is not None]
            await self._context.ledger.settle(spent, token=self._frontier.token)
        now = time.monotonic()
        finished: list[Finished] = []
        retries: list[Retry] = []
        releases: list[Release] = []
        sitemaps: list[SitemapRead] = []
        for one in batch:
            ago = -1 if one.ended_at is None else int((now - one.ended_at) * 1000)
            match one.settle(ago):
                case Finished() | SitemapRead() as lost if self._is_undone(one.claim):
                    releases.append(
                        Release(lost.claim, lost.host, lost.ended_ago_ms, lost.delay_ms)
                    )
                case Finished() as done:
                    finished.append(done)
                case Retry() as again:
                    retries.append(again)
                case Release() as back:
                    releases.append(back)
                case SitemapRead() as read:
                    sitemaps.append(read)
        filtered: Counter[str] = Counter()
        for one in batch:
            if not self._is_undone(one.claim):
                filtered.update(one.filtered)
        return await self._frontier.settle(
            finished=finished,
            retries=retries,
            releases=releases,
            sitemaps=sitemaps,
            filtered=filtered,
        )
