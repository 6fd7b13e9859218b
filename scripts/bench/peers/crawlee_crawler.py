"""Crawlee for Python (ParselCrawler) on the same work, writing one record a page.

usage: crawlee_crawler.py PAGES OUT START...

Prints one JSON line; times are of the Unix epoch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from crawlee import ConcurrencySettings
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext

pages, out, *starts = sys.argv[1:]
facts: dict[str, Any] = {"pages": 0}


async def main() -> None:
    with Path(out).open("w") as records:  # noqa: ASYNC230 - opened once, before all work
        crawler = ParselCrawler(
            max_requests_per_crawl=int(pages),
            respect_robots_txt_file=True,
            configure_logging=False,
            concurrency_settings=ConcurrencySettings(
                min_concurrency=32, max_concurrency=32, desired_concurrency=32
            ),
        )

        @crawler.router.default_handler
        async def handle(context: ParselCrawlingContext) -> None:
            facts["pages"] += 1
            facts["ended"] = time.time()
            record = {
                "url": context.request.loaded_url,
                "status": context.http_response.status_code,
                "title": context.selector.css("title::text").get(),
            }
            records.write(json.dumps(record) + "\n")
            await context.enqueue_links(strategy="same-hostname")

        facts["started"] = time.time()
        await crawler.run(starts)


asyncio.run(main())
print(json.dumps(facts))
