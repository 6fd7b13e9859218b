"""Pages that take up much of a process: memory has its bounds, and other hosts go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from common.frontier.items import Item
from common.frontier.offers import Offers
from common.frontier.replies import Offered, Refusal
from tests.support.crawling import Crawling
from tests.support.rawserver import Exchange, RawServer, Reply, page
from tests.support.waiting import until_true
from worker import committer
from worker.aside import Aside
from worker.heavy import HeavyPages, Load

HTML = b"Content-Type: text/html; charset=utf-8"
PART = b"<p>" + b"x" * 300_000


class Watched(HeavyPages):
    """Remembers what it did."""

    def __init__(self) -> None:
        super().__init__(room_bytes=500_000)
        self.most = 0
        self.refused = 0

    def hold(self, load: Load, size: int) -> bool:
        has_room = super().hold(load, size)
        self.most = max(self.most, self.held_bytes)
        self.refused += not has_room
        return has_room


async def test_pages_for_which_there_is_no_room_are_fetched_later(
    crawling: Crawling, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Watched()
    monkeypatch.setattr("worker.capacity.HeavyPages", lambda: pages)
    half_sent = 0

    async def in_halves(exchange: Exchange) -> None:
        nonlocal half_sent
        head = b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n" % (HTML, 2 * len(PART))
        await exchange.send(head + PART)
        half_sent += 1
        while half_sent < 2:
            await exchange.pause(0.01)
        await exchange.send(PART)

    async with AsyncExitStack() as stack:
        sites = [
            await stack.enter_async_context(RawServer({"/": in_halves}, f"127.0.5.{number}"))
            for number in range(1, 5)
        ]
        running = await stack.enter_async_context(crawling())
        await running.submit(*(site.url("/") for site in sites))
        found = await running.finished()
    assert {site.url("/"): ("fetched", 1) for site in sites} == {
        url: (record["outcome"], record["attempt"]) for url, record in found.items()
    }
    assert 0 < pages.refused
    assert pages.most <= 500_000 + 2 * len(PART)
    assert 0 == pages.held_bytes


async def test_a_page_of_many_links_holds_up_its_own_host_alone(
    crawling: Crawling, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = committer.OFFER_AT_ONCE + 1
    many = b"".join(b"<a href=/%d?%b>x</a>" % (number, b"x" * 60) for number in range(count))
    chain: dict[str, Reply] = {
        f"/{n}": Reply(page(b'<a href="/%d">x</a>' % (n + 1), headers=(HTML,))) for n in range(6)
    }
    done = asyncio.Event()
    offer = Offers.offer

    async def held_up(self: Offers, shard: int, found: Sequence[Item]) -> Offered | Refusal:
        if len(found) > 100:
            await done.wait()
        return await offer(self, shard, found)

    monkeypatch.setattr(Offers, "offer", held_up)
    async with (
        RawServer({"/": Reply(page(many, headers=(HTML,))), "/next": Reply(page(b""))}) as heavy,
        RawServer({**chain}, "127.0.5.1") as other,
        crawling() as running,
    ):
        seeds = [heavy.url("/"), heavy.url("/next"), other.url("/0")]
        await running.submit(*seeds, shards=1, delay=1.0, max_depth=6, max_pages_per_host=7)
        await until_true(lambda: any(one.target == "/6" for one in other.requests))
        asked = {one.target for one in heavy.requests} - {"/robots.txt", "/sitemap.xml"}
        done.set()
        found = await running.finished()
    assert 1 == len(asked)
    assert count == found[heavy.url("/")]["outlinks"]
    assert "fetched" == found[heavy.url("/next")]["outcome"]
    assert count + 2 == sum(url.startswith(heavy.url("/")) for url in found)


async def test_a_page_that_cannot_be_read_in_time_is_one_failed_page(
    crawling: Crawling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.heavy.Aside", lambda: Aside(limit_s=0.001))
    async with (
        RawServer({"/": Reply(page(PART, headers=(HTML,))), "/b": Reply(page(b""))}) as site,
        crawling() as running,
    ):
        await running.submit(site.url("/"), site.url("/b"), retries=0)
        found = await running.finished()
    assert "fetched" == found[site.url("/b")]["outcome"]
    error = found[site.url("/")]["error"]
    assert ("internal_error", "the body is unreadable: it took longer than 0.001 s to read") == (
        error["code"],
        error["message"],
    )
