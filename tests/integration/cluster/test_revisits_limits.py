"""Pages visited again where something limits that: budgets, rules, blocked hosts, shared hosts."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import pytest

from common.frontier.hosts import Hosts, HostView
from common.model.ids import HostKey, JobId
from crawlctl.connect import services
from crawlctl.explaining import explain
from tests.support.crawling import Crawling, Crawls
from tests.support.revisits import (
    AGAIN,
    assert_sound,
    closed,
    ended,
    visited_more,
    visits_to_come,
)
from tests.support.site import Page, Request, Site, redirect
from tests.support.waiting import until

ELSEWHERE = "http://elsewhere.invalid/"


@pytest.mark.parametrize(
    "limits",
    [
        {"max_pages": 1},
        {"max_pages_per_host": 1},
        {"max_pages_per_host": 1, "shard_by": "url"},
    ],
    ids=["of the job", "of a host", "of a host in several shards"],
)
async def test_what_no_budget_is_left_for_is_not_brought_back_for_ever(
    crawling: Crawling, limits: dict[str, Any]
) -> None:
    """Each interval brought it back, only to be dropped."""
    pages = {"/": Page(), "/moved": redirect("/down"), "/down": Page(status=503)}
    with Site(pages) as site:
        async with crawling() as running:
            unpaid = [site.url("/moved"), site.url("/down")]
            await running.submit(*unpaid, retries=0, **limits, **AGAIN)
            await visited_more(site, ["/moved", "/down"], 2)
            assert await visits_to_come(running) == 2
            await running.add(site.url("/"))

            async def is_left_alone() -> bool:
                return await visits_to_come(running) == 1

            await until(is_left_alone)
            asked = Counter(site.paths())
            await visited_more(site, ["/"], 2)
            now = Counter(site.paths())
            assert (now["/moved"], now["/down"]) == (asked["/moved"], asked["/down"])
            async with services(running.settings) as connected:
                said = await explain(connected, await running.job(), unpaid[0])
            assert said.reason.startswith("redirected to")
            assert said.reason.endswith("it is not visited again")
            await closed(running)
            records = await running.records()
    outcomes = {url: (one["outcome"], one["rule"]) for url, one in records.items()}
    (rule, *_) = limits
    assert outcomes == {
        site.url("/"): ("fetched", None),
        unpaid[0]: ("redirected", None),
        unpaid[1]: ("dropped", rule),
    }


async def test_a_link_refused_at_each_visit_is_counted_once(crawling: Crawling) -> None:
    """What rules refused grew with the visits, so that it said nothing of the links."""

    def page(request: Request) -> Page:
        """Get a second such link, and lose both for a while."""
        links = ["/moved", ELSEWHERE, f"{ELSEWHERE}2"]
        return Page(links={1: links[:2], 3: []}.get(request.nth, links), title=f"{request.nth}")

    with Site({"/": page, "/moved": redirect(ELSEWHERE)}) as site:
        async with crawling() as running:
            await running.submit(site.url("/"), **AGAIN)
            await visited_more(site, ["/", "/moved"], 5)
            await closed(running)
            assert (await running.counters())["filtered"] == 2 + 1


async def test_visits_of_a_blocked_host_wait_and_keep_their_records(crawling: Crawling) -> None:
    paths = ["/", "/a", "/b"]
    pages = {"/": Page(links=paths[1:]), "/a": Page(), "/b": Page()}
    with Site(pages, addresses=["127.0.0.1", "127.0.0.2"]) as site:
        async with crawling() as running:
            await running.submit(site.url("/"), site.url("/", host=1), **AGAIN)
            await visited_more(site, paths, 1, host=1)
            await _set(running, site, "block")

            async def are_all_queued() -> bool:
                there = await _view(running, site)
                return there is not None and (there.queued, there.in_flight) == (len(paths), 0)

            await until(are_all_queued)
            asked = Counter(site.paths(1))
            await visited_more(site, paths, 3)
            assert Counter(site.paths(1)) == asked, "blocked"
            there = await _view(running, site)
            assert there is not None
            assert (there.is_blocked, there.queued) == (True, len(paths)), "each is due once"
            assert len(await running.records()) == 2 * len(paths)
            await running.change(keep_open=False)  # what is queued is visited before the end
            await _set(running, site, "unblock")
            await running.finished()
            await assert_sound(running)
            assert Counter(site.paths(1)) == asked + Counter(paths)
            assert len(await running.records()) == 2 * len(paths)


async def _hosts(running: Crawls) -> Hosts:
    spec = (await running.job()).spec
    return Hosts(running.client, cluster=running.settings.cluster, job=JobId("job"), spec=spec)


async def _view(running: Crawls, site: Site) -> HostView | None:
    """Return the second host, if the frontier knows it just now."""
    key = f"http://{site.authority(1)}"
    hosts = await _hosts(running)
    return next(iter([one async for one in hosts.views() if one.host == key]), None)


async def _set(running: Crawls, site: Site, to: Literal["block", "unblock"]) -> None:
    """Do what ``job host`` does, again where the job has changed meanwhile."""
    key = HostKey(f"http://{site.authority(1)}")

    async def is_set() -> bool:
        stored = await running.coord.jobs.get(JobId("job"))
        assert stored is not None
        return await (await _hosts(running)).change(key, to, revision=stored.revision) is None

    await until(is_set)


async def test_a_host_in_several_shards_is_visited_again_within_its_limits(
    crawling: Crawling,
) -> None:
    paths = [f"/{number}" for number in range(6)]
    pages = {path: Page(title=path, delay_s=0.02) for path in paths} | {"/": Page(links=paths)}
    with Site(pages) as site:
        async with crawling(workers=2) as running:
            how = {"shard_by": "url", "shards": 4, "per_host": 2, "max_pages_per_host": 5}
            await running.submit(site.url("/"), **{**AGAIN, **how})
            await ended(running, dropped=2)
            pages_got = [path for path in pages if path in site.paths()]
            assert len(pages_got) == 5
            await visited_more(site, pages_got, 3)
            await closed(running)
            records = await running.records()
            counted = await running.counters()
        requests = Counter(site.paths())
        assert site.max_concurrency() <= 2
    assert counted["fetched"] == 5
    assert counted["dropped"] == 2
    assert set(records) == {site.url(path) for path in pages}
    for path in pages_got:
        assert records[site.url(path)]["visit"] == requests[path] >= 4
