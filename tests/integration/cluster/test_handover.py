"""A shard moves to a worker that has joined: its hosts do not wait for its slowest page."""

from __future__ import annotations

import itertools
import re
import time

from common.frontier.offers import shard_of_url
from common.model.job import JobSpec
from tests.support.crawling import Crawling, Crawls
from tests.support.site import Answer, Page, Request, Site
from tests.support.waiting import until

ADDRESSES = [f"127.0.71.{number}" for number in range(1, 17)]
SHARDS = 2
NO_ROBOTS: dict[str, Answer] = {"/robots.txt": Page(status=404)}
SLOW_S = 7.0


def endless(request: Request) -> Page:
    """A chain of pages without an end."""
    number = int(re.findall(r"\d+", request.path)[0])
    return Page(links=[f"/{number + 1}"])


def slow_hosts(site: Site) -> list[int]:
    """Return one host of each shard."""
    spec = JobSpec(shards=SHARDS)
    shards = [shard_of_url(site.url("/", host=host), spec) for host in range(len(ADDRESSES))]
    return [shards.index(shard) for shard in range(SHARDS)]


async def until_second_owns(running: Crawls, *, within_s: float) -> None:
    async def has_moved() -> bool:
        locks = await running.coord.locks.list()
        return {lock.owner for lock in locks if lock.kind == "task"} == {"w0", "second"}

    await until(has_moved, within_s=within_s)


async def test_the_hosts_of_a_shard_that_moves_do_not_wait_for_a_slow_page(
    crawling: Crawling,
) -> None:
    asked: list[float] = []

    def slow(_: Request) -> Page:
        asked.append(time.monotonic())
        return Page(delay_s=SLOW_S)

    with Site(NO_ROBOTS | {"/slow": slow}, addresses=ADDRESSES, otherwise=endless) as site:
        slow_ones = slow_hosts(site)
        others = [host for host in range(len(ADDRESSES)) if host not in slow_ones]
        async with crawling() as running:
            seeds = [site.url("/0", host=host) for host in others]
            seeds += [site.url("/slow", host=host) for host in slow_ones]
            await running.submit(*seeds, delay=0.1, shards=SHARDS)

            async def are_slow() -> bool:
                return len(asked) == SHARDS

            await until(are_slow)
            running.worker("second")
            await until_second_owns(running, within_s=60)
            moved_at = time.monotonic()
            assert moved_at - asked[0] >= SLOW_S - 0.1, "let go with a page under way"
        for host in others:
            times = [one.start for one in site.requests if one.host == host]
            times = [asked[0], *(at for at in times if asked[0] < at < moved_at), moved_at]
            longest = max(later - one for one, later in itertools.pairwise(times))
            assert longest < SLOW_S / 2, f"host {host} waited {longest:.1f} s"


async def test_a_shard_moves_though_its_pages_are_always_slow(crawling: Crawling) -> None:
    """Sixteen hosts whose pages take turns: at no moment is none of them slow."""

    def always_slow(request: Request) -> Page:
        page = endless(request)
        return Page(links=page.links, delay_s=1.5 + request.host / 10)

    timeout_s = 4.0
    with Site(NO_ROBOTS, addresses=ADDRESSES, otherwise=always_slow) as site:
        async with crawling() as running:
            seeds = [site.url("/0", host=host) for host in range(len(ADDRESSES))]
            await running.submit(*seeds, shards=SHARDS, timeout=timeout_s)

            async def is_crawling() -> bool:
                return len(site.requests) > len(ADDRESSES)

            await until(is_crawling)
            running.worker("second")
            await until_second_owns(running, within_s=60)
