"""Sitemaps of the hosts of a job: which there are, and what they name.

A sitemap is an item of the frontier like a page: it is claimed, robots rules and the host's pace
hold for it, it is tried again and taken over. So a job cannot end while one waits or is read, and
its requests are spaced. It is no page: it leaves no result record and counts against no budget.

Bounds against hostile hosts: ``MAX_NAMED`` sitemaps of one robots.txt, ``MAX_LEVELS`` of them below
each other, ``MAX_PER_HOST`` read by one process for a host, a few read at one time (each may be 50
MiB), and those of ``common.web.sitemap``. Only what is in scope is asked for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from common.frontier.items import Item
from common.model.ids import HostKey
from common.model.job import JobSpec
from common.model.records import ErrorInfo
from common.web.sitemap_reader import Entry
from common.web.url import canonicalize
from worker.fetched import Fetched
from worker.outlinks import Outlinks
from worker.parsing import PageParser
from worker.robots import RobotsCache
from worker.steps import in_steps

MAX_NAMED: Final = 100
MAX_LEVELS: Final = 4
MAX_PER_HOST: Final = 2_000
MAX_AT_ONCE: Final = 4
_MAX_HOSTS: Final = 100_000


class SitemapRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a sitemap; kept beside the frontier for ``why``."""

    at: str
    status: int | None = None
    kind: str | None = None
    pages: int = 0
    """URLs it names that can be crawled; those refused by scope or rules among them."""
    sitemaps: int = 0
    is_whole: bool = True
    rule: str | None = None
    error: ErrorInfo | None = None


class Named(NamedTuple):
    """What a sitemap leads to."""

    offers: list[Item]
    filtered: Mapping[str, int]
    kind: str
    pages: int
    sitemaps: int
    is_whole: bool


class Sitemaps:
    """The sitemaps of one job in one process."""

    def __init__(
        self, spec: JobSpec, outlinks: Outlinks, robots: RobotsCache, parser: PageParser
    ) -> None:
        self._is_on = spec.sitemaps and spec.max_depth != 0
        self._outlinks = outlinks
        self._robots = robots
        self._parser = parser
        self._found: set[HostKey] = set()
        """Hosts whose sitemaps were all offered."""
        self._read: dict[HostKey, int] = {}
        self.gate = asyncio.Semaphore(MAX_AT_ONCE)
        """Held while one is fetched and read."""

    async def of_host(self, host: HostKey) -> list[Item]:
        """Return the sitemaps of a host that are to be offered; none once they were."""
        if not self._is_on or host in self._found:
            return []
        known = self._robots.known(host)
        if known is None or known.rules is None:
            return []
        named = (*known.rules.sitemaps[:MAX_NAMED], "/sitemap.xml")
        base = host + "/robots.txt"
        links = dict.fromkeys(canonicalize(one, base) for one in named)
        selected = await self._outlinks.select_sitemaps(
            [one for one in links if one], host=host, level=1
        )
        if not selected.offers:  # all taken, or none to be had
            if len(self._found) >= _MAX_HOSTS:
                self._found.clear()
            self._found.add(host)
        return selected.offers

    def may_read(self, host: HostKey) -> bool:
        """Count one more sitemap of a host; False when it has had its share."""
        if len(self._read) >= _MAX_HOSTS:
            self._read.clear()
        count = self._read[host] = self._read.get(host, 0) + 1
        return count <= MAX_PER_HOST

    async def read(self, item: Item, fetched: Fetched) -> Named:
        """Return what a fetched sitemap leads to; its pages by priority, then newest first."""
        found = await self._parser.read_sitemap(fetched.body, url=fetched.final_url)
        entries: dict[str, Entry] = {}
        async for some in in_steps(found.pages):
            for entry in some:
                entries.setdefault(self._outlinks.clean(entry.url), entry)
        selected = await self._outlinks.select(
            list(entries), depth=1, referrer=item.url, is_sitemap=True
        )
        offers = [
            one._replace(lastmod=entries[one.url].lastmod, priority=entries[one.url].priority)
            for one in selected.offers
        ]
        filtered = Counter(selected.filtered)
        children = list(dict.fromkeys(entry.url for entry in found.children))
        if children:
            deeper = await self.below(item, children)
            offers += deeper.offers
            filtered += Counter(deeper.filtered)
        is_whole = found.is_whole and not fetched.truncated
        return Named(offers, filtered, found.kind, len(entries), len(children), is_whole)

    async def below(self, item: Item, links: list[str]) -> Named:
        """Return what to offer of the sitemaps that one leads to."""
        if item.sitemap >= MAX_LEVELS:
            return Named([], {"sitemap: too many levels": len(links)}, "index", 0, 0, True)
        selected = await self._outlinks.select_sitemaps(
            links, host=item.host, level=item.sitemap + 1
        )
        return Named(selected.offers, dict(selected.filtered), "index", 0, len(links), True)
