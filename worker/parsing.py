"""Parsing pages without stopping the event loop for the heavy ones.

A usual page takes about a millisecond, less than handing it to a thread would cost. A page of
megabytes may take seconds, during which heartbeats must go on; it is parsed in a thread of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from common.web.html import HtmlParser, Page

HEAVY_BYTES: Final = 256 * 1024


class PageParser:
    """The parsers of one job in one process (a parser serves one thread at a time)."""

    def __init__(self, follow: frozenset[str]) -> None:
        self._follow = follow
        self._here = HtmlParser()
        self._aside = HtmlParser()
        self._thread: ThreadPoolExecutor | None = None

    async def parse(self, body: bytes, *, url: str, content_type: str | None) -> Page:
        """Return title and links of a page."""
        if len(body) < HEAVY_BYTES:
            return self._here.parse(body, url=url, content_type=content_type, follow=self._follow)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="heavy-pages")

        def parse() -> Page:
            return self._aside.parse(body, url=url, content_type=content_type, follow=self._follow)

        return await asyncio.get_running_loop().run_in_executor(self._thread, parse)

    def close(self) -> None:
        """Let the thread go; a page it works on is not waited for."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
