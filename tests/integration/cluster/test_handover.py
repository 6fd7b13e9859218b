"""A shard moves to a worker that has joined: its hosts do not wait for its slowest page."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from common.frontier.offers import shard_of_url
from common.model.ids import NodeId
from common.model.job import JobSpec
from tests.support.crawling import Crawling, Crawls
from tests.support.site import Answer, Page, Request, Site
from tests.support.waiting import until

ADDRESSES = [f"127.0.71.{number}" for number in range(1, 17)]
SHARDS = 2
NO_ROBOTS: dict[str, Answer] = {"/robots.txt": Page(status=404)}
SLOW_S, LAME_S = 10.0, 3.5


def endless(request: Request) -> Page:
    """A chain of pages without an end."""
    number = int(re.findall(r"\d+", request.path)[0])
    return Page(links=[f"/{number + 1}"])


def by_shard(site: Site) -> list[list[int]]:
    """Return the hosts of each shard."""
    spec, hosts = JobSpec(shards=SHARDS), range(len(ADDRESSES))
    shards = [shard_of_url(site.url("/", host=host), spec) for host in hosts]
    return [[host for host in hosts if shards[host] == shard] for shard in range(SHARDS)]


async def until_second_is_to_own(running: Crawls) -> None:
    async def is_wished() -> bool:
        _, assigned = await running.coord.assignments.load()
        return NodeId("second") in assigned and bool(assigned[NodeId("second")].tasks)

    await until(is_wished)


async def until_second_owns(running: Crawls, *, within_s: float) -> None:
    async def has_moved() -> bool:
        locks = await running.coord.locks.list()
        return {lock.owner for lock in locks if lock.kind == "task"} == {"w0", "second"}

    await until(has_moved, within_s=within_s)


def longest_wait_s(site: Site, hosts: list[int], *, since: float) -> float:
    """Return the longest time any of the hosts was not asked from then until now."""
    longest = 0.0
    for host in hosts:
        starts = [one.start for one in site.requests if one.host == host and one.start > since]
        times = [since, *starts, time.monotonic()]
        longest = max(longest, *(later - one for one, later in itertools.pairwise(times)))
    return longest


class Crawl(NamedTuple):
    """In each shard a host with one slow page and one with lame pages, beside quick hosts."""

    site: Site
    running: Crawls
    quick: list[int]
    lame: dict[int, list[float]]
    """By host, when lame pages were asked for."""
    begun_at: float


@pytest.fixture
async def crawl(crawling: Crawling) -> AsyncIterator[Crawl]:
    lame: dict[int, list[float]] = defaultdict(list)

    def answer(request: Request) -> Page:
        page = endless(request)
        if not request.path.startswith("/lame"):
            return page
        lame[request.host].append(time.monotonic())
        return Page(links=[f"/lame{page.links[0][1:]}"], delay_s=LAME_S)

    pages = NO_ROBOTS | {"/slow": Page(delay_s=SLOW_S)}
    with Site(pages, addresses=ADDRESSES, otherwise=answer) as site:
        shards = by_shard(site)
        quick = [host for hosts in shards for host in hosts[2:]]
        async with crawling() as running:
            seeds = [site.url("/slow", host=hosts[0]) for hosts in shards]
            seeds += [site.url("/lame0", host=hosts[1]) for hosts in shards]
            seeds += [site.url("/0", host=host) for host in quick]
            await running.submit(*seeds, delay=0.1, shards=SHARDS)

            async def are_all_asked() -> bool:
                return {one.host for one in site.requests if one.path == "/0"} == set(quick)

            await until(are_all_asked)
            yield Crawl(site, running, quick, lame, time.monotonic())


async def test_the_hosts_of_a_shard_that_moves_do_not_wait_for_a_slow_page(crawl: Crawl) -> None:
    crawl.running.worker("second")
    await until_second_is_to_own(crawl.running)
    wished_at = time.monotonic()
    await until_second_owns(crawl.running, within_s=60)
    asked = [sum(at > wished_at for at in times) for times in crawl.lame.values()]
    assert "/slow" in crawl.site.paths(), "let go with a page under way"
    assert longest_wait_s(crawl.site, crawl.quick, since=crawl.begun_at) < SLOW_S / 2
    # In the shard that moves at most one began with the wish.
    assert min(asked) <= 1, "slow pages were begun that put off the move"


async def test_a_shard_that_is_to_stay_after_all_stays_without_a_break(crawl: Crawl) -> None:
    running = crawl.running

    async def tokens() -> set[int]:
        return {lock.token for lock in await running.coord.locks.list() if lock.kind == "task"}

    before = await tokens()
    second = running.worker("second")
    await until_second_is_to_own(running)
    await second.end()

    async def is_over() -> bool:
        return crawl.site.paths().count("/slow") == SHARDS

    await until(is_over)
    await asyncio.sleep(2)  # where it let go, another claim would follow
    assert before == await tokens()
    assert longest_wait_s(crawl.site, crawl.quick, since=crawl.begun_at) < SLOW_S / 2


async def test_a_shard_whose_pages_are_all_slow_moves_after_one_of_them(crawling: Crawling) -> None:
    """Sixteen hosts whose pages take turns: at no moment would none of them be slow."""
    longest_s = 3.5 + len(ADDRESSES) / 10

    def always_slow(request: Request) -> Page:
        page = endless(request)
        return Page(links=page.links, delay_s=longest_s - request.host / 10)

    with Site(NO_ROBOTS, addresses=ADDRESSES, otherwise=always_slow) as site:
        async with crawling() as running:
            seeds = [site.url("/0", host=host) for host in range(len(ADDRESSES))]
            await running.submit(*seeds, shards=SHARDS, timeout=60.0)

            async def is_crawling() -> bool:
                return len(site.requests) > 2 * len(ADDRESSES)  # a page each, after robots.txt

            await until(is_crawling)
            running.worker("second")
            await until_second_owns(running, within_s=4 * longest_s)
