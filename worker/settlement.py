"""What the work on a claim comes to: given back, tried again, or ended with a record.

Made while a page is worked on, written by the committer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from common.frontier import items
from common.frontier.items import Item
from common.frontier.ledger import Spent
from common.frontier.replies import Claim
from common.frontier.settling import NOTHING, Finished, Release, Retry, SitemapRead
from common.model.ids import HostKey, Token
from common.model.records import ErrorInfo, Outcome
from common.runtime.clock import utc_now
from common.web.retry import ErrorCode, GiveUp, RetryAfter
from worker.fetched import Fetched
from worker.heavy import Load
from worker.job import JobContext
from worker.record import record_of
from worker.sitemaps import SitemapRecord

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to become of a claim, and what must be offered before."""

    claim: int
    ended_at: float | None
    """Monotonic; when the last response for it ended. None = no request was sent."""
    settle: Callable[[int], Finished | Retry | Release | SitemapRead]
    """Given the ms since ``ended_at`` (-1: no request), what to write."""
    offers: list[Item]
    filtered: Mapping[str, int] = field(default_factory=dict)
    """Links refused, by rule."""
    outcome: Outcome | None = None
    """None for what is not finished, and for a sitemap."""
    elapsed_ms: int = 0
    rest_ms: int | None = None
    """For how long its host rests from ``ended_at`` on, where nothing else holds it back; 0 = its
    slot is free already. None: to be seen when this is settled."""
    spent: Spent | None = None
    """What its host's ledger must be told before."""


class ClaimedPage(NamedTuple):
    """A claim being worked on."""

    claim: Claim
    item: Item
    send_before: float
    """Monotonic time after which no request for it may start."""
    load: Load
    """What it holds of the process."""


class Settling:
    """Settles the claims of one task."""

    def __init__(self, context: JobContext, token: Token) -> None:
        """Prepare.

        Args:
            context: the job.
            token: under which the task is owned.
        """
        self._context = context
        self._token = token

    def failed(
        self,
        page: ClaimedPage,
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
                delay_ms = max(self.delay_ms(item.host), int(asked_s * 1000))
                return self.retry(page, after_s, ended_at, delay_ms)
            case GiveUp(outcome=outcome):
                return self.end(page, outcome, fetched=fetched, error=error, ended_at=ended_at)

    def retry(
        self,
        page: ClaimedPage,
        after_s: float,
        ended_at: float | None,
        delay_ms: int,
        *,
        attempt: int | None = None,
    ) -> Settlement:
        """Give the URL back for a later try.

        Args:
            page: what is tried again.
            after_s: when, at the earliest.
            ended_at: when the last request for it ended.
            delay_ms: for how long its host is not asked, from then on.
            attempt: which it will be; the next one unless said otherwise.
        """
        claim, host = page.claim.number, page.item.host
        again = items.encode(page.item._replace(attempt=attempt or page.item.attempt + 1))
        after_ms = int(after_s * 1000)
        return Settlement(
            claim,
            ended_at,
            lambda ago: Retry(claim, host, ago, delay_ms, after_ms, again),
            [],
        )

    def release(
        self, page: ClaimedPage, ended_at: float | None, *, wait_s: float = 0.0
    ) -> Settlement:
        """Give the URL back without blame; its host is not asked for before ``wait_s``."""
        claim, host = page.claim.number, page.item.host
        delay_ms, wait_ms = self.delay_ms(host), int(wait_s * 1000)
        return Settlement(
            claim, ended_at, lambda ago: Release(claim, host, ago, delay_ms, wait_ms), []
        )

    def end(
        self,
        page: ClaimedPage,
        outcome: Outcome,
        *,
        fetched: Fetched | None = None,
        ended_at: float | None = None,
        offers: list[Item] | None = None,
        filtered: Mapping[str, int] = NOTHING,
        **facts: object,
    ) -> Settlement:
        """End the URL with a record.

        Args:
            page: what ends.
            outcome: how.
            fetched: its answer, if there is one.
            ended_at: when the last request for it ended, where there is no answer.
            offers: what is to be offered before.
            filtered: links refused, by rule.
            facts: further fields of its record.
        """
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
        claim, host, delay_ms = page.claim.number, item.host, self.delay_ms(item.host)
        # Where nothing but the slot holds the host back, its next page need not wait for the commit
        # of this one. Other outcomes may bring a delay with them, and above one connection a delay
        # counts from the start.
        is_got = outcome in (Outcome.FETCHED, Outcome.NOT_MODIFIED)
        is_known = is_got and (delay_ms > 0 or self._context.robots.delay_s(host) == 0)
        return Settlement(
            claim,
            fetched.ended_at if fetched else ended_at,
            lambda ago: Finished(claim, host, ago, delay_ms, outcome, record, letter, visit),
            offers or [],
            filtered,
            outcome,
            fetched.elapsed_ms if fetched else 0,
            delay_ms if is_known else None,
        )

    def _end_sitemap(
        self,
        page: ClaimedPage,
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
        delay_ms = self.delay_ms(item.host)
        return Settlement(
            claim,
            fetched.ended_at if fetched else ended_at,
            lambda ago: SitemapRead(claim, item.host, ago, delay_ms, item.url, record),
            offers,
            filtered,
        )

    def delay_ms(self, host: HostKey) -> int:
        """Return the delay that counts from the end of a response (with one connection a host)."""
        if self._context.spec.per_host > 1:
            return 0
        return int(self._context.robots.delay_s(host) * 1000)

    def accounted(self, page: ClaimedPage, settlement: Settlement) -> Settlement:
        """Return a settlement with what the ledger of its host must be told."""
        if self._context.ledger is None or page.item.sitemap or page.item.is_paid:
            return settlement
        is_page = settlement.outcome in (Outcome.FETCHED, Outcome.NOT_MODIFIED)
        return replace(settlement, spent=Spent(page.item.host, page.item.url, is_page))


def error_of(code: ErrorCode, message: str) -> ErrorInfo:
    """Return an error as records name it."""
    return ErrorInfo(code=code.value, message=message)
