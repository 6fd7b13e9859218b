"""One URL from claim to settlement: whether it may be asked for, robots, pace, the fetch.

What the answer means is said in ``worker.answers``, what becomes of the claim in
``worker.settlement``.

:meth:`PageWorker.work` never touches the frontier; it returns what is to become of the claim, and
the committer writes it. It may be cancelled at any moment: a claim that is not settled is found
again by whoever owns the task next.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from common.frontier.items import Item
from common.frontier.ledger import Entry
from common.frontier.owner import HOLD_MS, MAX_OWNERS, SUSPECT_OWNERS, item_of
from common.frontier.replies import Claim, Refusal
from common.model.errors import FrontierUnavailable
from common.model.ids import Token
from common.model.records import Outcome
from common.plugins.api import Request
from common.web import sitemap, url
from common.web.retry import ErrorCode
from worker.answers import Answers
from worker.heavy import AGAIN_S, Load
from worker.job import JobContext
from worker.patience import Standing
from worker.plugin_faults import PluginFailed
from worker.plugins import JobPlugins
from worker.revisits import condition_of
from worker.robots import Later
from worker.settlement import ClaimedPage, Settlement, Settling, error_of
from worker.suspects import GIVEN_UP, Suspects
from worker.visit import Visit

FULL_S: Final = 0.5
"""How long a URL waits while others in flight may use up the budget of its host."""


class PageWorker:
    """Works on the claims of one task."""

    def __init__(
        self,
        context: JobContext,
        *,
        token: Token,
        may_send: Callable[[], bool],
        count_owners: Callable[[int, Item], Awaitable[bool]],
    ) -> None:
        """Prepare.

        Args:
            context: the job.
            token: under which the task is owned.
            may_send: asked just before each request: the session is live and the task still ours.
            count_owners: ``TaskFrontier.count_owners``.
        """
        self._context = context
        self._token = token
        self._may_send = may_send
        self._settling = Settling(context, token)
        self._answers = Answers(context, self._settling)
        self._suspects = Suspects(context.places, may_send=may_send, count_owners=count_owners)

    async def work(self, claim: Claim, *, claimed_at: float, load: Load) -> Settlement:
        """Return what is to become of a claim.

        Args:
            claim: the claim.
            claimed_at: monotonic time at which the claim call was *sent*.
            load: to hold what the page takes up; of a heavy one it may still have the turn.
        """
        page = ClaimedPage(claim, item_of(claim), claimed_at + HOLD_MS / 1000, load)
        return self._settling.accounted(page, await self._outcome(page))

    async def _outcome(self, page: ClaimedPage) -> Settlement:
        if page.claim.rule:
            return self._settling.end(page, Outcome.DROPPED, rule=page.claim.rule)
        if page.item.owners >= MAX_OWNERS:
            return self._settling.end(
                page, Outcome.DEAD, error=error_of(ErrorCode.OWNERS_LOST, GIVEN_UP)
            )
        standing, rest_s = self._context.patience.standing(page.item.host)
        if standing is Standing.PARKED:
            return self._settling.release(page, None, wait_s=rest_s)
        if standing is Standing.DOWN:
            message = "the host was silent for minutes; 'crawlctl dead --retry' puts the URL back"
            return self._settling.end(
                page, Outcome.DEAD, error=error_of(ErrorCode.HOST_DOWN, message)
            )
        if (refused := await self._over_budget(page)) is not None:
            return refused
        is_suspect = page.item.owners >= SUSPECT_OWNERS
        settlement = await (self._alone(page) if is_suspect else self._request(page))
        found = await self._context.sitemaps.of_host(page.item.host)
        return replace(settlement, offers=[*settlement.offers, *found]) if found else settlement

    async def _alone(self, page: ClaimedPage) -> Settlement:
        def request(send_before: float) -> Awaitable[Settlement]:
            return self._request(page._replace(send_before=send_before))

        settlement = await self._suspects.tried(page.claim.number, page.item, request)
        # Not a release: that would leave the item as it may have been written for the try.
        return settlement or self._settling.retry(page, 0.0, None, 0, attempt=page.item.attempt)

    async def _over_budget(self, page: ClaimedPage) -> Settlement | None:
        """Enter the page against the budget of its host; None = it may be fetched."""
        ledger, item = self._context.ledger, page.item
        if ledger is None or item.sitemap or item.is_paid:
            return None
        try:
            entry = await ledger.enter(item.host, item.url, token=self._token)
        except FrontierUnavailable:
            return self._settling.release(page, None, wait_s=FULL_S)
        match entry:
            case Entry.ENTERED:
                return None
            case Entry.SPENT:
                return self._settling.end(page, Outcome.DROPPED, rule="max_pages_per_host")
            case Entry.FULL | Refusal():
                # To the end of the queue: one that is entered already may stand behind it.
                return self._settling.retry(page, FULL_S, None, 0, attempt=item.attempt)

    async def _request(self, page: ClaimedPage) -> Settlement:
        item = page.item
        trusted = await self._context.outlinks.is_trusted(item.host)
        robots = self._context.robots
        known = robots.known(item.host)
        asked = None
        if known is None:
            with self._context.stages.robots.timed():
                answer = await robots.ask(item.host, is_allowed=self._may_send, trusted=trusted)
            if isinstance(answer, Later):
                # Requests may have been sent for it; one delay too many does no harm.
                return self._settling.release(page, time.monotonic(), wait_s=answer.wait_s)
            known, asked = answer, answer.asked
        if known.rules is None:
            assert known.error is not None
            if asked is None:  # nothing was asked for this page: it keeps its attempt
                return self._settling.release(page, None, wait_s=known.until - time.monotonic())
            return self._settling.failed(
                page, known.error, None, ended_at=asked, rest_s=known.rest_s
            )
        verdict = known.rules.verdict(item.url)
        if not verdict.allowed:
            return self._settling.end(page, Outcome.DENIED, rule=verdict.rule, ended_at=asked)
        if asked is not None and known.delay_s > 0:
            return self._settling.release(page, asked)
        if not item.sitemap:
            return await self._fetch(page, known.delay_s, trusted=trusted, asked=asked)
        if not self._context.sitemaps.may_read(item.host):
            return self._settling.end(page, Outcome.DROPPED, rule="sitemaps: too many of one host")
        async with self._context.sitemaps.gate:
            return await self._fetch(page, known.delay_s, trusted=trusted, asked=asked)

    async def _fetch(
        self, page: ClaimedPage, delay_s: float, *, trusted: bool, asked: float | None
    ) -> Settlement:
        item, clean, plugins = page.item, self._context.outlinks.clean, self._context.plugins
        condition = condition_of(item) if item.known else None
        headers = None
        if plugins is not None and trusted:
            try:
                headers = await self._prepared(page, plugins)
            except PluginFailed as failed:
                error = error_of(ErrorCode.PLUGIN_FAILED, str(failed))
                return self._settling.failed(page, error, None, ended_at=asked)

        def is_bounce(target: str) -> bool:
            there = url.canonicalize(target)
            return there is not None and (there == item.url or clean(there) == item.url)

        with self._context.pacer.visit(item.host, delay_s) as visit:
            turn = self._turn(page, visit)
            if not await turn(0.0):
                return self._settling.release(page, asked, wait_s=visit.wait_s)
            fetched = await self._context.fetcher.fetch(
                item.url,
                wait_before_hop=turn,
                is_bounce=is_bounce,
                trusted=trusted,
                headers=headers,
                condition=condition,
                any_type=bool(item.sitemap),
                max_body=sitemap.MAX_BYTES if item.sitemap else None,
                cut=bool(item.sitemap),
                route=visit.route,
                load=page.load,
            )
            visit.ended(pause_s=fetched.retry_after_s)
        self._context.patience.heard(
            item.host,
            status=fetched.status,
            error_code=fetched.error.code if fetched.error else None,
            elapsed_s=fetched.elapsed_ms / 1000,
        )
        if fetched.had_no_room:
            return self._settling.release(page, fetched.ended_at, wait_s=AGAIN_S)
        if not fetched.abandoned:
            return await self._answers.judge(page, fetched, is_ours=condition is not None)
        if not self._may_send():
            return self._settling.release(page, fetched.ended_at)
        # Its next hop would start too late for this claim. The page may answer next time (cookies
        # are kept), but a page that always sends back to itself must come to an end.
        return self._answers.bounced(page, fetched)

    async def _prepared(self, page: ClaimedPage, plugins: JobPlugins) -> Mapping[str, str] | None:
        item = page.item
        request = Request(
            url=item.url, depth=item.depth, attempt=item.attempt, is_sitemap=bool(item.sitemap)
        )
        with self._context.stages.plugins.timed():
            return await plugins.prepare(request)

    def broken(self, claim: Claim, error: Exception) -> Settlement:
        """Return what is to become of a claim on which our own code failed."""
        page = ClaimedPage(claim, item_of(claim), 0.0, self._context.places.heavy.load())
        message = f"{type(error).__name__} while working on the page; see the worker's log"
        error_info = error_of(ErrorCode.INTERNAL_ERROR, message)
        return self._settling.accounted(
            page, self._settling.failed(page, error_info, None, ended_at=None)
        )

    def _turn(self, page: ClaimedPage, visit: Visit) -> Callable[[float], Awaitable[bool]]:
        async def wait(_ended_at: float) -> bool:
            # The slot was taken for one request of the full timeout after send_before; a hop must
            # start early enough to end within it.
            with self._context.stages.pace.timed():
                if not await visit.next(before=page.send_before):
                    return False
            if not self._may_send() or time.monotonic() > page.send_before:
                visit.unused()
                return False
            return True

        return wait
