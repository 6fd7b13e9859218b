"""One URL from claim to settlement: robots, pace, fetch, parse, links.

:meth:`PageWorker.work` never touches the frontier; it returns what is to become of the claim, and
the committer writes it. It may be cancelled at any moment: a claim that is not settled is found
again by whoever owns the task next.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from common.frontier import items
from common.frontier.items import Item
from common.frontier.ledger import Entry, Spent
from common.frontier.owner import (
    HOLD_MS,
    MAX_OWNERS,
    SUSPECT_OWNERS,
    Finished,
    Release,
    Retry,
    SitemapRead,
    item_of,
)
from common.frontier.replies import Claim, Refusal
from common.model.errors import FrontierUnavailable
from common.model.ids import HostKey, Token
from common.model.records import ErrorInfo, Outcome
from common.plugins.api import Request
from common.runtime.clock import utc_now
from common.web import sitemap, url
from common.web.retry import ErrorCode, GiveUp, RetryAfter
from worker.aside import UnreadableError
from worker.fetched import Fetched
from worker.heavy import AGAIN_S, Load
from worker.job import JobContext
from worker.outlinks import Selected
from worker.patience import Standing
from worker.plugins import JobPlugins, PluginFailed
from worker.reading import read
from worker.record import record_of
from worker.revisits import condition_of
from worker.robots import Later
from worker.settlement import Settlement
from worker.sitemaps import SitemapRecord
from worker.suspects import GIVEN_UP, Suspects
from worker.visit import Visit

FULL_S: Final = 0.5
"""How long a URL waits while others in flight may use up the budget of its host."""
MAX_REDIRECTS: Final = 20
"""In a row, from URL to URL; as many as browsers follow (Fetch standard, HTTP-redirect fetch)."""

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})

_encode = msgspec.json.Encoder().encode


class _Page(NamedTuple):
    """A claim being worked on."""

    claim: Claim
    item: Item
    send_before: float
    """Monotonic time after which no request for it may start."""
    load: Load
    """What it holds of the process."""


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
        self._suspects = Suspects(context.places, may_send=may_send, count_owners=count_owners)

    async def work(self, claim: Claim, *, claimed_at: float, load: Load) -> Settlement:
        """Return what is to become of a claim.

        Args:
            claim: the claim.
            claimed_at: monotonic time at which the claim call was *sent*.
            load: to hold what the page takes up; of a heavy one it may still have the turn.
        """
        page = _Page(claim, item_of(claim), claimed_at + HOLD_MS / 1000, load)
        return self._accounted(page, await self._outcome(page))

    async def _outcome(self, page: _Page) -> Settlement:
        if page.claim.rule:
            return self._end(page, Outcome.DROPPED, rule=page.claim.rule)
        if page.item.owners >= MAX_OWNERS:
            return self._end(page, Outcome.DEAD, error=_error(ErrorCode.OWNERS_LOST, GIVEN_UP))
        standing, rest_s = self._context.patience.standing(page.item.host)
        if standing is Standing.PARKED:
            return self._release(page, None, wait_s=rest_s)
        if standing is Standing.DOWN:
            message = "the host was silent for minutes; 'crawlctl dead --retry' puts the URL back"
            return self._end(page, Outcome.DEAD, error=_error(ErrorCode.HOST_DOWN, message))
        if (refused := await self._over_budget(page)) is not None:
            return refused
        is_suspect = page.item.owners >= SUSPECT_OWNERS
        settlement = await (self._alone(page) if is_suspect else self._request(page))
        found = await self._context.sitemaps.of_host(page.item.host)
        return replace(settlement, offers=[*settlement.offers, *found]) if found else settlement

    async def _alone(self, page: _Page) -> Settlement:
        def request(send_before: float) -> Awaitable[Settlement]:
            return self._request(page._replace(send_before=send_before))

        settlement = await self._suspects.tried(page.claim.number, page.item, request)
        # Not a release: that would leave the item as it may have been written for the try.
        return settlement or self._retry(page, 0.0, None, 0, attempt=page.item.attempt)

    async def _over_budget(self, page: _Page) -> Settlement | None:
        """Enter the page against the budget of its host; None = it may be fetched."""
        ledger, item = self._context.ledger, page.item
        if ledger is None or item.sitemap or item.is_paid:
            return None
        try:
            entry = await ledger.enter(item.host, item.url, token=self._token)
        except FrontierUnavailable:
            return self._release(page, None, wait_s=FULL_S)
        match entry:
            case Entry.ENTERED:
                return None
            case Entry.SPENT:
                return self._end(page, Outcome.DROPPED, rule="max_pages_per_host")
            case Entry.FULL | Refusal():
                # To the end of the queue: one that is entered already may stand behind it.
                return self._retry(page, FULL_S, None, 0, attempt=item.attempt)

    def _accounted(self, page: _Page, settlement: Settlement) -> Settlement:
        if self._context.ledger is None or page.item.sitemap or page.item.is_paid:
            return settlement
        is_page = settlement.outcome in (Outcome.FETCHED, Outcome.NOT_MODIFIED)
        return replace(settlement, spent=Spent(page.item.host, page.item.url, is_page))

    async def _request(self, page: _Page) -> Settlement:
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
                return self._release(page, time.monotonic(), wait_s=answer.wait_s)
            known, asked = answer, answer.asked
        if known.rules is None:
            assert known.error is not None
            if asked is None:  # nothing was asked for this page: it keeps its attempt
                return self._release(page, None, wait_s=known.until - time.monotonic())
            return self._failed(page, known.error, None, ended_at=asked, rest_s=known.rest_s)
        verdict = known.rules.verdict(item.url)
        if not verdict.allowed:
            return self._end(page, Outcome.DENIED, rule=verdict.rule, ended_at=asked)
        if asked is not None and known.delay_s > 0:
            return self._release(page, asked)
        if not item.sitemap:
            return await self._fetch(page, known.delay_s, trusted=trusted, asked=asked)
        if not self._context.sitemaps.may_read(item.host):
            return self._end(page, Outcome.DROPPED, rule="sitemaps: too many of one host")
        async with self._context.sitemaps.gate:
            return await self._fetch(page, known.delay_s, trusted=trusted, asked=asked)

    async def _fetch(
        self, page: _Page, delay_s: float, *, trusted: bool, asked: float | None
    ) -> Settlement:
        item, clean, plugins = page.item, self._context.outlinks.clean, self._context.plugins
        condition = condition_of(item) if item.known else None
        headers = None
        if plugins is not None and trusted:
            try:
                headers = await self._prepared(page, plugins)
            except PluginFailed as failed:
                error = _error(ErrorCode.PLUGIN_FAILED, str(failed))
                return self._failed(page, error, None, ended_at=asked)

        def is_bounce(target: str) -> bool:
            there = url.canonicalize(target)
            return there is not None and (there == item.url or clean(there) == item.url)

        with self._context.pacer.visit(item.host, delay_s) as visit:
            turn = self._turn(page, visit)
            if not await turn(0.0):
                return self._release(page, asked, wait_s=visit.wait_s)
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
            return self._release(page, fetched.ended_at, wait_s=AGAIN_S)
        if not fetched.abandoned:
            try:
                await page.load.turn(len(fetched.body))
                return await self._judge(page, fetched, is_ours=condition is not None)
            except PluginFailed as failed:
                error = _error(ErrorCode.PLUGIN_FAILED, str(failed))
                return self._failed(page, error, fetched, ended_at=fetched.ended_at)
            except UnreadableError as failed:
                error = _error(ErrorCode.INTERNAL_ERROR, f"the body is unreadable: {failed}")
                return self._failed(page, error, fetched, ended_at=fetched.ended_at)
        if not self._may_send():
            return self._release(page, fetched.ended_at)
        # Its next hop would start too late for this claim. The page may answer next time (cookies
        # are kept), but a page that always sends back to itself must come to an end.
        return self._bounced(page, fetched)

    async def _prepared(self, page: _Page, plugins: JobPlugins) -> Mapping[str, str] | None:
        item = page.item
        request = Request(
            url=item.url, depth=item.depth, attempt=item.attempt, is_sitemap=bool(item.sitemap)
        )
        with self._context.stages.plugins.timed():
            return await plugins.prepare(request)

    def broken(self, claim: Claim, error: Exception) -> Settlement:
        """Return what is to become of a claim on which our own code failed."""
        page = _Page(claim, item_of(claim), 0.0, self._context.places.heavy.load())
        message = f"{type(error).__name__} while working on the page; see the worker's log"
        error_info = _error(ErrorCode.INTERNAL_ERROR, message)
        return self._accounted(page, self._failed(page, error_info, None, ended_at=None))

    def _turn(self, page: _Page, visit: Visit) -> Callable[[float], Awaitable[bool]]:
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

    async def _judge(self, page: _Page, fetched: Fetched, *, is_ours: bool) -> Settlement:
        """Return what an answer means for the URL; ``is_ours``: it was asked whether it changed."""
        status = fetched.status
        is_retried_status = status is not None and (status >= 500 or status == 429)
        if fetched.error is not None or is_retried_status or status is None:
            error = fetched.error or _error(
                ErrorCode.TOO_MANY_REQUESTS if status == 429 else ErrorCode.SERVER_ERROR,
                f"the server answered {status}",
            )
            return self._failed(page, error, fetched, ended_at=fetched.ended_at)
        if 300 <= status < 400 and fetched.location is not None:
            return await self._redirected(page, fetched, fetched.location)
        if page.item.sitemap:
            return await self._sitemap(page, fetched)
        if status == 304 and not fetched.is_conditional:
            error = _error(ErrorCode.UNASKED_304, "the server answered 304, which nobody asked for")
            return self._failed(page, error, fetched, ended_at=fetched.ended_at)
        if status == 304 and is_ours:
            return self._end(page, Outcome.NOT_MODIFIED, fetched=fetched)
        return await self._fetched(page, fetched)

    async def _sitemap(self, page: _Page, fetched: Fetched) -> Settlement:
        if fetched.status is None or not 200 <= fetched.status < 300:
            return self._end(page, Outcome.FETCHED, fetched=fetched)
        named = await self._context.sitemaps.read(page.item, fetched)
        return self._end(
            page,
            Outcome.FETCHED,
            fetched=fetched,
            offers=named.offers,
            filtered=named.filtered,
            kind=named.kind,
            pages=named.pages,
            sitemaps=named.sitemaps,
            is_whole=named.is_whole,
        )

    async def _fetched(self, page: _Page, fetched: Fetched) -> Settlement:
        item, context = page.item, self._context
        links, refused, facts = await read(context, item, fetched)
        with context.stages.links.timed():
            selected = await context.outlinks.select(links, depth=item.depth + 1, referrer=item.url)
        return self._end(
            page,
            Outcome.FETCHED,
            fetched=fetched,
            offers=selected.offers,
            filtered={**selected.filtered, **refused},
            **facts,  # type: ignore[arg-type]
        )

    async def _redirected(self, page: _Page, fetched: Fetched, location: str) -> Settlement:
        item, outlinks = page.item, self._context.outlinks
        target = url.canonicalize(location)
        if target is None:
            message = "the redirect's target is not a usable http(s) URL"
            error = _error(ErrorCode.INVALID_LOCATION, message)
            return self._failed(page, error, fetched, ended_at=fetched.ended_at)
        if item.sitemap:
            below = await self._context.sitemaps.below(item, [target])
            return self._end(
                page,
                Outcome.REDIRECTED,
                fetched=fetched,
                offers=below.offers,
                filtered=below.filtered,
                kind="redirect",
            )
        if item.redirects >= MAX_REDIRECTS:
            rule = f"redirects: more than {MAX_REDIRECTS} in a row"
            selected = Selected([], {rule: 1})
        else:
            if item.depth == 0:  # a seed, or where one was sent: redirects keep the depth
                await outlinks.widen(target)
            selected = await outlinks.select([target], depth=item.depth, referrer=item.url)
        return self._end(
            page,
            Outcome.REDIRECTED,
            fetched=fetched,
            location=target,
            offers=[one._replace(redirects=item.redirects + 1) for one in selected.offers],
            filtered=selected.filtered,
        )

    def _failed(
        self,
        page: _Page,
        error: ErrorInfo,
        fetched: Fetched | None,
        *,
        ended_at: float | None,
        rest_s: float = 0.0,
    ) -> Settlement:
        """Try again later, or give up.

        Args:
            page: what failed.
            error: why.
            fetched: its answer, if it was asked for.
            ended_at: when the last request for it ended.
            rest_s: for how long the host asked to be left alone, by another answer than its own.
        """
        item = page.item
        asked_s = rest_s if fetched is None else fetched.retry_after_s
        match self._context.retry.decide(
            attempt=item.attempt,
            error_code=error.code,
            status=fetched.status if fetched else None,
            jitter=random.random(),  # noqa: S311 - spreads retries, guards nothing
            retry_after_s=asked_s,
        ):
            case RetryAfter(delay_s=after_s):
                # What the host asked for holds for all its URLs.
                delay_ms = max(self._delay_ms(item.host), int(asked_s * 1000))
                return self._retry(page, after_s, ended_at, delay_ms)
            case GiveUp(outcome=outcome):
                return self._end(page, outcome, fetched=fetched, error=error, ended_at=ended_at)

    def _bounced(self, page: _Page, fetched: Fetched) -> Settlement:
        if page.item.attempt <= self._context.spec.retries:
            return self._retry(page, 0.0, fetched.ended_at, self._delay_ms(page.item.host))
        message = f"redirected to itself {fetched.hops + 1} times, and at every attempt before"
        error = _error(ErrorCode.TOO_MANY_REDIRECTS, message)
        return self._failed(page, error, fetched, ended_at=fetched.ended_at)

    def _retry(
        self,
        page: _Page,
        after_s: float,
        ended_at: float | None,
        delay_ms: int,
        *,
        attempt: int | None = None,
    ) -> Settlement:
        claim, host = page.claim.number, page.item.host
        again = items.encode(page.item._replace(attempt=attempt or page.item.attempt + 1))
        after_ms = int(after_s * 1000)
        return Settlement(
            claim,
            ended_at,
            lambda ago: Retry(claim, host, ago, delay_ms, after_ms, again),
            [],
        )

    def _release(self, page: _Page, ended_at: float | None, *, wait_s: float = 0.0) -> Settlement:
        """Give the URL back without blame; its host is not asked for before ``wait_s``."""
        claim, host = page.claim.number, page.item.host
        delay_ms, wait_ms = self._delay_ms(host), int(wait_s * 1000)
        return Settlement(
            claim, ended_at, lambda ago: Release(claim, host, ago, delay_ms, wait_ms), []
        )

    def _end(
        self,
        page: _Page,
        outcome: Outcome,
        *,
        fetched: Fetched | None = None,
        ended_at: float | None = None,
        offers: list[Item] | None = None,
        filtered: Mapping[str, int] = _NOTHING,
        **facts: object,
    ) -> Settlement:
        item = page.item
        if item.sitemap:
            return self._end_sitemap(page, fetched, ended_at, offers or [], filtered, facts)
        node, token = self._context.node, self._token
        ended = record_of(item, outcome, fetched, facts, worker=node, token=token)
        visit = b""
        if (revisits := self._context.revisits) is not None:
            ended, visit, filtered = revisits.noted(item, ended, fetched, filtered)
        record = _encode(ended)
        letter = items.encode(item._replace(attempt=1)) if outcome is Outcome.DEAD else b""
        claim, host, delay_ms = page.claim.number, item.host, self._delay_ms(item.host)
        # Where nothing but the slot holds the host back, its next page need not wait for the commit
        # of this one. Other outcomes may bring a delay with them.
        is_got = outcome in (Outcome.FETCHED, Outcome.NOT_MODIFIED)
        is_free = is_got and self._context.robots.delay_s(host) == 0
        return Settlement(
            claim,
            fetched.ended_at if fetched else ended_at,
            lambda ago: Finished(claim, host, ago, delay_ms, outcome, record, letter, visit),
            offers or [],
            filtered,
            outcome,
            fetched.elapsed_ms if fetched else 0,
            host if is_free else None,
        )

    def _end_sitemap(
        self,
        page: _Page,
        fetched: Fetched | None,
        ended_at: float | None,
        offers: list[Item],
        filtered: Mapping[str, int],
        facts: dict[str, object],
    ) -> Settlement:
        if fetched is not None:
            facts.setdefault("error", fetched.error)
            facts["status"] = fetched.status
        record = _encode(SitemapRecord(at=utc_now(), **facts))  # type: ignore[arg-type]
        item, claim = page.item, page.claim.number
        delay_ms = self._delay_ms(item.host)
        return Settlement(
            claim,
            fetched.ended_at if fetched else ended_at,
            lambda ago: SitemapRead(claim, item.host, ago, delay_ms, item.url, record),
            offers,
            filtered,
        )

    def _delay_ms(self, host: HostKey) -> int:
        """Return the delay that counts from the end of a response (with one connection a host)."""
        if self._context.spec.per_host > 1:
            return 0
        return int(self._context.robots.delay_s(host) * 1000)


def _error(code: ErrorCode, message: str) -> ErrorInfo:
    return ErrorInfo(code=code.value, message=message)
