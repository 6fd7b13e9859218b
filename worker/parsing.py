"""Parsing pages without stopping the event loop for the heavy ones.

A usual page takes about a millisecond, less than handing it to a thread would cost. A page of
megabytes may take seconds, during which heartbeats must go on; it is parsed in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from common.web import sitemap
from common.web.html import HtmlParser, Page
from common.web.sitemap import Sitemap
from worker.heavy import LIGHT_BYTES

HEAVY_SITEMAP_BYTES: Final = 16 * 1024
"""Less than of a page: a scan in Python is slower, and the file may be compressed."""

_Read = TypeVar("_Read")


class PageParser:
    """The parsers of one job in one process (a parser serves one thread at a time)."""

    def __init__(
        self, follow: frozenset[str], *, agent: str = "crawlctl", with_simhash: bool = False
    ) -> None:
        self._follow = follow
        self._here = HtmlParser(agent=agent, with_simhash=with_simhash)
        self._aside = HtmlParser(agent=agent, with_simhash=with_simhash)
        self._thread: ThreadPoolExecutor | None = None

    async def parse(self, body: bytes, *, url: str, content_type: str | None) -> Page:
        """Return title and links of a page."""
        if len(body) < LIGHT_BYTES:
            return self._here.parse(body, url=url, content_type=content_type, follow=self._follow)

        def parse() -> Page:
            return self._aside.parse(body, url=url, content_type=content_type, follow=self._follow)

        return await self._in_thread(parse)

    async def read_sitemap(self, body: bytes) -> Sitemap:
        """Return what a sitemap names."""
        if len(body) < HEAVY_SITEMAP_BYTES:
            return sitemap.parse(body)
        return await self._in_thread(partial(sitemap.parse, body))

    async def _in_thread(self, read: Callable[[], _Read]) -> _Read:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="heavy-pages")
        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    def close(self) -> None:
        """Let the thread go; a page it works on is not waited for."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
