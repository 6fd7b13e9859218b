"""The sites tests and newcomers crawl: they are what they say they are."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar
from urllib.parse import urlsplit

import pytest

from crawlctl import demo
from tests.support.fetching import Fetching
from tests.support.site import Page, Request, Site, closure, plain_get, redirect
from tests.support.waiting import until_true


@asynccontextmanager
async def demo_site(pages: int, *, crawl_delay_s: float | None = None) -> AsyncIterator[str]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        demo.serve(0, pages=pages, crawl_delay_s=crawl_delay_s, on_ready=ready.set_result)
    )
    try:
        async with asyncio.timeout(60):
            yield await ready
    finally:
        serving.cancel()
        await asyncio.wait([serving])


@pytest.mark.parametrize("pages", [1, 30, 60])
async def test_demo_site_holds_what_it_says(pages: int) -> None:
    expected = demo.expected(pages)
    async with demo_site(pages) as url:
        found = await asyncio.to_thread(closure, [url], follow=lambda found: found.startswith(url))

    denied = [one for one in found if urlsplit(one).path.startswith("/private/")]
    redirected = [one for one in found if one.endswith("/moved")]
    assert len(found) == expected["discovered"]
    assert len(denied) == expected["denied"]
    assert len(redirected) == expected["redirected"]
    assert len(found) - len(denied) - len(redirected) == expected["fetched"]
    assert expected["discovered"] == sum(
        count for name, count in expected.items() if name not in ("discovered", "filtered")
    )
    assert found[url + "missing"] == 404


async def test_demo_site_is_busy_twice_and_bounces_once(fetch: Fetching) -> None:
    async with demo_site(3, crawl_delay_s=0.5) as url:
        statuses = [(await fetch(url + "busy")).status for _ in range(6)]
        welcome = await fetch(url + "welcome")
        robots = await fetch(url + "robots.txt")

    assert statuses == [503, 503, 200, 503, 503, 200]
    assert (welcome.status, welcome.hops) == (200, 1)
    assert robots.body == b"User-agent: *\nDisallow: /private/\nCrawl-delay: 0.5\n"


def test_closure_is_the_link_graph() -> None:
    pages = {
        "/": Page(links=["/a", "b?x=1#top", "http://elsewhere.test/", "/moved"]),
        "/a": Page(links=["/", "/gone"], gzip=False),
        "/b?x=1": Page(links=["/a"]),
        "/moved": redirect("/target"),
        "/target": Page(title="target"),
        "/island": Page(),
    }
    with Site(pages) as site:
        root = site.url()
        found = closure([root], follow=lambda url: url.startswith(root))

        assert found == {
            site.url("/"): 200,
            site.url("/a"): 200,
            site.url("/b?x=1"): 200,
            site.url("/moved"): 301,
            site.url("/target"): 200,
            site.url("/gone"): 404,
        }
        assert sorted(site.paths()) == ["/", "/a", "/b?x=1", "/gone", "/moved", "/target"]


def test_log_tells_gaps_and_concurrency_of_each_host() -> None:
    pages = {"/slow": Page(delay_s=1.5), "/quick": Page()}
    with Site(pages, addresses=("127.0.0.1", "127.1.0.2")) as site:
        for _ in range(3):
            plain_get(site.url("/quick", host=1))
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(plain_get, [site.url("/slow")] * 3))

        assert site.max_concurrency(0) == 3
        assert site.max_concurrency(1) == 1
        assert site.max_concurrency() == 3
        assert site.min_gap(0) < 0 < site.min_gap(1)
        assert 0 <= site.min_start_gap(0) < 1.5
        assert {entry.host for entry in site.requests} == {0, 1}
        assert all(entry.complete for entry in site.requests)
        assert all(entry.end - entry.start >= 1.5 for entry in site.requests if entry.host == 0)


def test_site_answers_by_request_and_keeps_hosts_apart() -> None:
    def flaky(request: Request) -> Page:
        return Page(status=503 if request.nth < 3 else 200)

    def bounce(request: Request) -> Page:
        if request.cookie == "s=1":
            return Page()
        return redirect(request.path, status=302, headers=[("Set-Cookie", "s=1")])

    with Site(
        [{"/": flaky}, {"/": bounce}],
        addresses=("127.0.0.1", "::1"),
        otherwise=lambda request: Page(title=f"made up {request.path}"),
    ) as site:
        assert [plain_get(site.url()).status for _ in range(4)] == [503, 503, 200, 200]
        assert plain_get(site.url(host=1)).status == 302
        jar = urllib.request.HTTPCookieProcessor(CookieJar())
        with urllib.request.build_opener(jar).open(site.url(host=1)) as answer:
            assert answer.status == 200
        assert b"made up /other" in plain_get(site.url("/other")).body
        assert site.authority(1).startswith("[::1]:")


async def test_log_notes_requests_that_were_left(fetch: Fetching) -> None:
    with Site({"/": Page(delay_s=5)}) as site:
        fetched = await fetch(site.url(), spec={"timeout": 0.2})
        await until_true(lambda: site.requests)

    assert fetched.status is None
    assert [entry.complete for entry in site.requests] == [False]
    assert site.requests[0].end - site.requests[0].start < 2
