"""Scrapy, or with ``--redis URL`` scrapy-redis, on the same work, writing one record a page.

usage: scrapy_spider.py PAGES OUT [--redis URL] START...

Prints one JSON line; times are of the Unix epoch.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor

pages, out, *rest = sys.argv[1:]
redis = rest[1] if rest[0] == "--redis" else None
starts = rest[2:] if redis else rest
facts: dict[str, Any] = {"pages": 0}


class Spider(scrapy.Spider):
    name = "race"
    links = LinkExtractor(allow=[f"^http://{re.escape(one.split('/')[2])}/" for one in starts])

    async def start(self) -> AsyncIterator[Any]:
        facts["started"] = time.time()
        for one in starts:
            yield scrapy.Request(one)

    def parse(self, response: Response) -> Iterator[Any]:
        facts["pages"] += 1
        facts["ended"] = time.time()
        if "text/html" not in (response.headers.get("content-type") or b"").decode():
            return
        title = response.css("title::text").get()
        yield {"url": response.url, "status": response.status, "title": title}
        for link in self.links.extract_links(response):
            yield scrapy.Request(link.url)


settings: dict[str, Any] = {
    "CONCURRENT_REQUESTS": 32,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
    "DOWNLOAD_DELAY": 0,
    "ROBOTSTXT_OBEY": True,
    "LOG_LEVEL": "WARNING",
    "CLOSESPIDER_PAGECOUNT": int(pages),
    "FEEDS": {out: {"format": "jsonlines", "overwrite": True}},
    "TELNETCONSOLE_ENABLED": False,
    "RETRY_ENABLED": True,
}
if redis:
    settings |= {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "REDIS_URL": redis,
        "SCHEDULER_FLUSH_ON_START": True,
        "SCHEDULER_IDLE_BEFORE_CLOSE": 2,
    }
process = CrawlerProcess(settings)
process.crawl(Spider)
process.start()
print(json.dumps(facts))
