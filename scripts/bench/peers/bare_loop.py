"""The bare loop: what these libraries do in one process when nothing is kept, checked or shared.

usage: bare_loop.py PAGES START...

aiohttp on uvloop fetches, lexbor parses, ada joins and parses URLs; queue and seen-set are in
memory. No robots.txt, no politeness, no records: the practical limit of Python on this work.
Prints one JSON line; times are of the Unix epoch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp
import can_ada
import uvloop
from ada_url import join_url
from selectolax.lexbor import LexborHTMLParser

WORKERS = 32


class Loop:
    def __init__(self, pages: int, starts: list[str]) -> None:
        self.wanted = pages
        self.done = 0
        self.hosts = {start.split("/")[2] for start in starts}
        self.seen = set(starts)
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.over = asyncio.Event()

    async def run(self) -> tuple[float, float]:
        for start in list(self.seen):
            self.queue.put_nowait(start)
        connector = aiohttp.TCPConnector(limit=64, limit_per_host=32)
        async with aiohttp.ClientSession(connector=connector) as session:
            started = time.time()
            workers = [asyncio.create_task(self.work(session)) for _ in range(WORKERS)]
            exhausted = asyncio.create_task(self.queue.join())
            over = asyncio.create_task(self.over.wait())
            await asyncio.wait({exhausted, over}, return_when=asyncio.FIRST_COMPLETED)
            ended = time.time()
            for task in (*workers, exhausted, over):
                task.cancel()
        return started, ended

    async def work(self, session: aiohttp.ClientSession) -> None:
        while not self.over.is_set():
            await self.page(session, await self.queue.get())
            self.queue.task_done()

    async def page(self, session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url) as response:
            body = await response.read()
            is_html = response.status == 200 and response.content_type == "text/html"
            base = str(response.url)
        self.done += 1
        if self.done >= self.wanted:
            self.over.set()
            return
        if is_html:
            self.follow(LexborHTMLParser(body), base)

    def follow(self, tree: LexborHTMLParser, base: str) -> None:
        for node in tree.css("a[href]"):
            href = node.attributes.get("href")
            try:
                target = can_ada.parse(join_url(base, href))
            except Exception:  # noqa: BLE001 - whatever cannot be joined is no link
                continue
            target.hash = ""
            if target.host in self.hosts and target.href not in self.seen:
                self.seen.add(target.href)
                self.queue.put_nowait(target.href)


loop = Loop(int(sys.argv[1]), sys.argv[2:])
begin, end = uvloop.run(loop.run())
print(json.dumps({"pages": loop.done, "started": begin, "ended": end, "seen": len(loop.seen)}))
