"""Reading pages and sitemaps without stopping the event loop for the heavy ones.

A usual page takes about a millisecond, less than handing it to another process would cost. A page
of megabytes may take seconds, during which heartbeats must go on: it is read aside.
"""

from __future__ import annotations

from typing import Final

from common.web import sitemap
from common.web.html import HtmlParser, Page
from common.web.sitemap_reader import Sitemap
from worker.aside import Aside
from worker.heavy import LIGHT_BYTES
from worker.reader import PageRequest, SitemapRequest

HEAVY_SITEMAP_BYTES: Final = 16 * 1024
"""Less than of a page: a scan in Python is slower, and the file may be compressed."""


class PageParser:
    """Reads what one job fetches in one process."""

    def __init__(
        self, follow: frozenset[str], aside: Aside, *, agent: str, with_simhash: bool = False
    ) -> None:
        self._follow = follow
        self._aside = aside
        self._agent = agent
        self._with_simhash = with_simhash
        self._here = HtmlParser(agent=agent, with_simhash=with_simhash)

    async def parse(self, body: bytes, *, url: str, content_type: str | None) -> Page:
        """Return title and links of a page.

        Raises:
            UnreadableError: it takes too long or too much to read.
        """
        if len(body) < LIGHT_BYTES:
            return self._here.parse(body, url=url, content_type=content_type, follow=self._follow)
        return await self._aside.page(
            PageRequest(body, url, content_type, self._follow, self._agent, self._with_simhash)
        )

    async def read_sitemap(self, body: bytes, *, url: str) -> Sitemap:
        """Return what a sitemap names: ``sitemap.resolved``.

        Raises:
            UnreadableError: it takes too long or too much to read.
        """
        if len(body) < HEAVY_SITEMAP_BYTES:
            return sitemap.resolved(sitemap.parse(body), url)
        return await self._aside.sitemap(SitemapRequest(body, url))
