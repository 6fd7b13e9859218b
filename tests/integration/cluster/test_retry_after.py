"""Retry-After slows a host for all workers, be it on a page, on robots.txt or on a sitemap."""

from __future__ import annotations

import time

import pytest

from tests.support.crawling import Crawling
from tests.support.rawserver import Exchange, RawServer, Reply, Script, page

REST_S = 4
LINKS = b"".join(b'<a href="/p%d">x</a>' % number for number in range(8))


class _Busy:
    """Answers once that it is busy, then as it should."""

    def __init__(self, status: str, then: Reply) -> None:
        self._status = status
        self._then = then
        self.told_at = 0.0

    async def __call__(self, _: Exchange) -> Reply:
        if self.told_at:
            return self._then
        self.told_at = time.monotonic()
        return Reply(page(b"", status=self._status, headers=(b"Retry-After: %d" % REST_S,)))


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
@pytest.mark.parametrize("where", ["/p3", "/robots.txt", "/sitemap.xml"])
async def test_a_host_is_left_alone_by_all_for_as_long_as_it_asks(
    crawling: Crawling, where: str, status: str
) -> None:
    asked: list[float] = []

    def noted(script: Script) -> Script:
        async def note(exchange: Exchange) -> Reply | None:
            asked.append(time.monotonic())
            return script if isinstance(script, Reply) else await script(exchange)

        return note

    usual = Reply(page(LINKS))
    paths = [*(f"/p{number}" for number in range(8)), "/robots.txt", "/sitemap.xml"]
    answers = dict.fromkeys(paths, usual) | {"/robots.txt": Reply(page(b"", headers=()))}
    busy = _Busy(status, answers[where])
    scripts = {path: noted(busy if path == where else reply) for path, reply in answers.items()}
    async with (
        RawServer(scripts) as site,
        crawling(workers=2) as running,
    ):
        seeds = [site.url(path) for path in answers if path.startswith("/p")]
        await running.submit(*seeds, shard_by="url", sitemaps=True, timeout=60.0)
        records = await running.finished()
    assert {"fetched"} == {record["outcome"] for record in records.values()}
    later = [at - busy.told_at for at in asked if at > busy.told_at]
    assert later
    assert min(later) >= REST_S - 0.01
