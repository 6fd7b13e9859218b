"""Redirects to ever new URLs come to an end."""

from __future__ import annotations

import pytest

from tests.support.crawling import Crawling
from tests.support.rawserver import Exchange, RawServer, Reply, page
from worker.answers import MAX_REDIRECTS


@pytest.mark.parametrize("first", ["a seed", "a link"])
async def test_a_chain_of_redirects_to_ever_new_urls_ends(crawling: Crawling, first: str) -> None:
    async def onward(exchange: Exchange) -> Reply:
        number = int(exchange.request.target.removeprefix("/c"))
        return Reply(page(b"", status="302 Found", headers=(b"Location: /c%d" % (number + 1),)))

    chain = {f"/c{number}": onward for number in range(MAX_REDIRECTS + 5)}
    async with (
        RawServer({"/": Reply(page(b"<a href=/c0>x</a>")), **chain}) as site,
        crawling() as running,
    ):
        await running.submit(site.url("/c0" if first == "a seed" else "/"))
        found = await running.finished()
    hops = {url: one for url, one in found.items() if one["outcome"] == "redirected"}
    assert {site.url(f"/c{number}") for number in range(MAX_REDIRECTS + 1)} == hops.keys()
    assert {int(first == "a link")} == {one["depth"] for one in hops.values()}
    assert site.url(f"/c{MAX_REDIRECTS + 1}") == hops[site.url(f"/c{MAX_REDIRECTS}")]["location"]
