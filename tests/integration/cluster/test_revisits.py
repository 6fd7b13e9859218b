"""Pages visited again by real workers: what the site is asked, what stands in the records."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import redis.asyncio
from redis.asyncio.client import Monitor

from common.model.job import JobState
from crawlctl.connect import services
from crawlctl.explaining import explain
from crawlctl.export.reading import Reader
from tests.support.crawling import Crawling, Crawls
from tests.support.revisits import AGAIN, closed, ended, visited_more
from tests.support.site import Page, Request, Site
from tests.support.waiting import until, until_true

SINCE = "Mon, 30 Nov 2026 10:00:00 GMT"


class Asked:
    """Answers of a page, and on which conditions it was asked for."""

    def __init__(self, answer: Callable[[Request], Page]) -> None:
        self._answer = answer
        self.conditions: list[tuple[str | None, str | None]] = []

    def __call__(self, request: Request) -> Page:
        headers = request.headers
        asked = (headers.get("if-none-match"), headers.get("if-modified-since"))
        self.conditions.append(asked)
        return self._answer(request)

    @property
    def visits(self) -> int:
        return len(self.conditions)


def unchanged(request: Request) -> Page:
    fields = [("ETag", 'W/"v,1"'), ("Last-Modified", SINCE)]
    if request.headers.get("if-none-match") == 'W/"v,1"':
        return Page(status=304, body=b"", headers=fields)
    return Page(title="still", links=["/moved"], headers=fields)


def always_new(request: Request) -> Page:
    return Page(title=f"visit {request.nth}", headers=[("ETag", "*")])


def gone_later(request: Request) -> Page:
    return Page(title="here") if request.nth == 1 else Page(status=404, title=f"{request.nth}")


def answers_304_unasked(request: Request) -> Page:
    return Page(status=304, body=b"")


def down_at_first(request: Request) -> Page:
    return Page(status=503) if request.nth == 1 else Page(title="up")


async def test_pages_are_visited_again_and_their_servers_asked_what_has_changed(
    crawling: Crawling,
) -> None:
    pages = {
        "/same": Asked(unchanged), "/new": Asked(always_new), "/gone": Asked(gone_later),
        "/304": Asked(answers_304_unasked), "/down": Asked(down_at_first),
        "/moved": Asked(lambda _: Page(status=301, body=b"", headers=[("Location", "/new")])),
        "/": Asked(lambda _: Page(links=["/same", "/new", "/gone", "/304", "/down"])),
    }  # fmt: skip
    with Site(pages) as site:
        async with crawling() as running:
            await running.submit(site.url("/"), retries=0, **AGAIN)
            wanted = {"/same": 3, "/new": 3, "/gone": 4, "/304": 2, "/down": 2, "/moved": 2, "/": 3}

            async def is_seen() -> bool:
                return all(pages[path].visits >= count for path, count in wanted.items())

            await until(is_seen)
            assert (await running.job()).state is JobState.RUNNING
            await closed(running)
            records = {url[len(site.url("/")) - 1 :]: one
                       for url, one in (await running.records()).items()}  # fmt: skip
            counted = await running.counters()
    assert set(records) == set(pages)
    same, new = records["/same"], records["/new"]
    assert (same["outcome"], same["status"], same["changed"]) == ("not_modified", 304, False)
    assert same["visit"] == pages["/same"].visits
    assert (same["title"], same["outlinks"], same["bytes"] > 0) == ("still", 1, True)
    assert same["sha256"]
    assert pages["/same"].conditions[0] == (None, None)
    assert set(pages["/same"].conditions[1:]) == {('W/"v,1"', SINCE)}, "as it came"
    assert set(pages["/new"].conditions) == {(None, None)}, "that tag would match anything"
    assert (new["changed"], new["title"]) == (True, f"visit {pages['/new'].visits}")
    assert records["/"]["changed"] is False
    assert (records["/gone"]["status"], records["/gone"]["visit"]) == (404, 4)
    assert pages["/gone"].visits == 4, "gone three times in a row: not asked again"
    assert records["/304"]["error"]["code"] == "unasked_304"
    assert records["/down"]["title"] == "up", "a page that was dead is visited again"
    assert records["/moved"]["outcome"] == "redirected"
    visits = sum(one["visit"] for one in records.values())
    assert counted["revisits"] == visits - len(records)
    assert counted["revisiting"] == 0


async def test_a_killed_worker_costs_no_visit_and_doubles_no_record(crawling: Crawling) -> None:
    paths = [f"/{number}" for number in range(30)]
    pages = {path: Page(title=path, delay_s=0.02) for path in paths} | {"/": Page(links=paths)}
    with Site(pages) as site:
        async with crawling(workers=0) as running:
            first = running.process("first")
            await running.submit(site.url("/"), per_host=4, **AGAIN)

            def visits() -> int:
                counted = Counter(site.paths())
                return min(counted[path] for path in pages)

            async def has(count: int) -> bool:
                await running.records()  # none twice, whenever one looks
                return visits() >= count

            await until(lambda: has(2))
            first.kill()
            before = visits()
            running.worker("second")
            await until(lambda: has(before + 2))
            await closed(running)
            records = await running.records()
    assert set(records) == {site.url(path) for path in pages}
    assert min(one["visit"] for one in records.values()) >= before + 1
    assert {one["outcome"] for one in records.values()} == {"fetched"}


async def test_why_and_export_tell_of_visits(crawling: Crawling) -> None:
    with Site({"/": Asked(unchanged), "/moved": Page()}) as site:
        async with (
            crawling() as running,
            services(running.settings) as connected,
        ):
            await running.submit(site.url("/"), recrawl=3600.0, keep_open=True)

            async def has_both() -> bool:
                return (await running.counters())["fetched"] == 2

            await until(has_both)
            said = await explain(connected, await running.job(), site.url("/"))
            assert said.state == "finished"
            recrawl = said.detail["recrawl"]
            assert (recrawl["interval_seconds"], recrawl["visits"]) == (3600.0, 1)
            assert recrawl["etag"] == 'W/"v,1"'
            assert recrawl["next_visit_at"] in said.reason
            await running.change(state=JobState.PAUSED)
            rests = await explain(connected, await running.job(), site.url("/"))
            assert rests.reason == f"{said.reason}, if the job is resumed by then"
            await running.change(state=JobState.RUNNING)
            # A record that a visit has put behind those already read comes once.
            shard = connected.lookup(await running.job()).shard(site.url("/"))
            results = running.keys(shard).results
            (((entry, (_, record)), *_),) = await running.client.commands(
                [("XRANGE", results, "-", "+")]
            )
            await running.client.commands([("XADD", results, "*", "r", record)])
            read = [record async for page in Reader(connected, "job").pages() for record in page]
            assert len(read) == 2
            await running.client.commands([("XDEL", results, entry)])
            await closed(running)
            over = await explain(connected, await running.job(), site.url("/"))
            assert "not visited again" in over.reason
            assert over.detail["recrawl"]["next_visit_at"] is None


@asynccontextmanager
async def looks_at_what_is_due(running: Crawls) -> AsyncIterator[list[str]]:
    """Collect the questions which pages of shard 0 are due, as its owner asks them."""
    asked: list[str] = []
    due = running.keys(0).due

    async def listen(monitor: Monitor) -> None:
        async for told in monitor.listen():
            command = told["command"]
            if command.startswith("ZRANGE ") and due in command and told["client_type"] != "lua":
                asked.append(command)

    (url,) = running.settings.redis_urls
    async with redis.asyncio.from_url(url) as client, client.monitor() as monitor:
        listening = asyncio.create_task(listen(monitor))
        yield asked
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_a_shard_with_no_page_due_is_left_alone_until_one_is(crawling: Crawling) -> None:
    """It was looked at once a second, for the whole of an interval of days as well."""
    interval = {"recrawl": 9.0, "recrawl_max": 9.0, "recrawl_min": 9.0}
    with Site({"/": Page(), "/more": Page()}) as site:
        async with crawling() as running:
            await running.submit(site.url("/"), **AGAIN | interval, shards=1)
            await ended(running, fetched=1)
            async with looks_at_what_is_due(running) as looks:
                await running.add(site.url("/more"))
                await until_true(lambda: "/more" in site.paths())
                await visited_more(site, ["/", "/more"], 1)
            assert 1 <= len(looks) <= 5, looks  # about when a visit is due, of which there are two
            await closed(running)
