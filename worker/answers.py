"""What the answer to a request means for its URL: a page, a sitemap, a redirect, a failure."""

from __future__ import annotations

from typing import Final

from common.model.records import Outcome
from common.web import url
from common.web.retry import ErrorCode
from worker.aside import UnreadableError
from worker.fetched import Fetched
from worker.job import JobContext
from worker.outlinks import Selected
from worker.plugin_faults import PluginFailed
from worker.reading import read
from worker.settlement import ClaimedPage, Settlement, Settling, error_of

MAX_REDIRECTS: Final = 20
"""In a row, from URL to URL; as many as browsers follow (Fetch standard, HTTP-redirect fetch)."""


class Answers:
    """The answers to the requests of one task."""

    def __init__(self, context: JobContext, settling: Settling) -> None:
        self._context = context
        self._settling = settling

    async def judge(self, page: ClaimedPage, fetched: Fetched, *, is_ours: bool) -> Settlement:
        """Return what is to become of a claim.

        Args:
            page: the claim.
            fetched: the answer to its last request.
            is_ours: it was asked whether the page has changed since our last visit.
        """
        status = fetched.status
        is_retried_status = status is not None and (status >= 500 or status == 429)
        try:
            await page.load.turn(len(fetched.body))
            if fetched.error is not None or is_retried_status or status is None:
                error = fetched.error or error_of(
                    ErrorCode.TOO_MANY_REQUESTS if status == 429 else ErrorCode.SERVER_ERROR,
                    f"the server answered {status}",
                )
            elif 300 <= status < 400 and fetched.location is not None:
                return await self._redirected(page, fetched, fetched.location)
            elif page.item.sitemap:
                return await self._sitemap(page, fetched)
            elif status == 304 and not fetched.is_conditional:
                message = "the server answered 304, which nobody asked for"
                error = error_of(ErrorCode.UNASKED_304, message)
            elif status == 304 and is_ours:
                return self._settling.end(page, Outcome.NOT_MODIFIED, fetched=fetched)
            else:
                return await self._fetched(page, fetched)
        except PluginFailed as failed:
            error = error_of(ErrorCode.PLUGIN_FAILED, str(failed))
        except UnreadableError as failed:
            error = error_of(ErrorCode.INTERNAL_ERROR, f"the body is unreadable: {failed}")
        return self._settling.failed(page, error, fetched, ended_at=fetched.ended_at)

    def bounced(self, page: ClaimedPage, fetched: Fetched) -> Settlement:
        """Return what is to become of a claim whose page sent back to itself for too long."""
        if page.item.attempt <= self._context.spec.retries:
            delay_ms = self._settling.delay_ms(page.item.host)
            return self._settling.retry(page, 0.0, fetched.ended_at, delay_ms)
        message = f"redirected to itself {fetched.hops + 1} times, and at every attempt before"
        error = error_of(ErrorCode.TOO_MANY_REDIRECTS, message)
        return self._settling.failed(page, error, fetched, ended_at=fetched.ended_at)

    async def _sitemap(self, page: ClaimedPage, fetched: Fetched) -> Settlement:
        if fetched.status is None or not 200 <= fetched.status < 300:
            return self._settling.end(page, Outcome.FETCHED, fetched=fetched)
        named = await self._context.sitemaps.read(page.item, fetched)
        return self._settling.end(
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

    async def _fetched(self, page: ClaimedPage, fetched: Fetched) -> Settlement:
        item, context = page.item, self._context
        links, refused, facts = await read(context, item, fetched)
        with context.stages.links.timed():
            selected = await context.outlinks.select(links, depth=item.depth + 1, referrer=item.url)
        return self._settling.end(
            page,
            Outcome.FETCHED,
            fetched=fetched,
            offers=selected.offers,
            filtered={**selected.filtered, **refused},
            **facts,  # type: ignore[arg-type]
        )

    async def _redirected(self, page: ClaimedPage, fetched: Fetched, location: str) -> Settlement:
        item, outlinks = page.item, self._context.outlinks
        target = url.canonicalize(location)
        if target is None:
            message = "the redirect's target is not a usable http(s) URL"
            error = error_of(ErrorCode.INVALID_LOCATION, message)
            return self._settling.failed(page, error, fetched, ended_at=fetched.ended_at)
        if item.sitemap:
            below = await self._context.sitemaps.below(item, [target])
            return self._settling.end(
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
        return self._settling.end(
            page,
            Outcome.REDIRECTED,
            fetched=fetched,
            location=target,
            offers=[one._replace(redirects=item.redirects + 1) for one in selected.offers],
            filtered=selected.filtered,
        )
