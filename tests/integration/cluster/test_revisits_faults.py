"""Visits again go on when clocks are set, logs come back older, and older versions went before."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from common.frontier import items
from common.frontier.letters import DeadLetters
from common.frontier.visits import Known, parse
from common.model.ids import HostKey, JobId, Revision
from tests.chaos.clocks import Clocks, is_possible
from tests.support.crawling import Crawling, Crawls, crawls
from tests.support.revisits import (
    AGAIN,
    assert_sound,
    closed,
    ended,
    visited_more,
    visits_to_come,
    waiting_visits,
)
from tests.support.servers import EtcdServer, start_redis, stopping
from tests.support.site import Page, Request, Site

HOUR_S = 3600.0
PATHS = [f"/{number}" for number in range(8)]
SELDOM = {"recrawl": HOUR_S, "recrawl_max": HOUR_S}
FIRST_FIELDS = 7
"""What the first version notes of a page (``Known``)."""
PAGES = {path: Page(title=path) for path in PATHS} | {"/": Page(links=PATHS)}


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    if not is_possible():
        pytest.skip("NO CC: stepping the clock of Redis needs Linux and a C compiler (cc) on PATH")
    return Clocks(tmp_path / "clocks")


async def test_visits_go_on_while_the_clock_of_redis_is_set(
    etcd_server: EtcdServer, cluster_name: str, tmp_path: Path, clocks: Clocks
) -> None:
    own = os.environ | clocks.environment("redis")
    redis = start_redis(tmp_path / "redis", environment=own)
    with stopping(redis), Site(PAGES) as site:
        async with crawls(etcd_server.endpoint, redis.url, cluster=cluster_name) as running:
            await running.submit(site.url("/"), **AGAIN)
            await visited_more(site, PAGES, 2)
            for step_s in (HOUR_S, -HOUR_S, -2 * HOUR_S, 0.0):
                clocks.step("redis", step_s)
                await visited_more(site, PAGES, 3)
            await closed(running)
            records = await running.records()
        requests = Counter(site.paths())
    assert {url: one["visit"] for url, one in records.items()} == {
        site.url(path): requests[path] for path in PAGES
    }


async def test_a_clock_set_forward_and_back_brings_each_page_back_once(
    etcd_server: EtcdServer, cluster_name: str, tmp_path: Path, clocks: Clocks
) -> None:
    own = os.environ | clocks.environment("redis")
    redis = start_redis(tmp_path / "redis", environment=own)
    with stopping(redis), Site(PAGES) as site:
        async with crawls(etcd_server.endpoint, redis.url, cluster=cluster_name) as running:
            await running.submit(site.url("/"), **{**AGAIN, "recrawl": 3 * HOUR_S,
                                                   "recrawl_max": 3 * HOUR_S})  # fmt: skip
            await ended(running, fetched=len(PAGES))
            clocks.step("redis", 4 * HOUR_S)
            await ended(running, revisits=len(PAGES), revisiting=0)
            clocks.step("redis", 0.0)
            # Anything claimed: from then on the shards go on from the time they had come to.
            await running.add(site.url("/late"))
            await ended(running, fetched=len(PAGES) + 1)
            (now_ms,) = await running.client.times_ms([running.keys(0).meta])
            there = await waiting_visits(running)
            assert there.pages == len(PAGES) + 1
            assert there.next_at_ms is not None
            assert 0 < there.next_at_ms - now_ms <= 3 * HOUR_S * 1000, "by the clock as it is now"
            await closed(running)
        assert {Counter(site.paths())[path] for path in PAGES} == {2}


async def test_a_crash_of_redis_that_takes_visits_back_loses_none_to_come(
    etcd_server: EtcdServer, cluster_name: str, tmp_path: Path
) -> None:
    """With appendfsync everysec: a visit may be made again, and no page has two records."""
    redis = start_redis(tmp_path / "redis", appendfsync="everysec")
    log, synced = redis.folder / "appendonlydir", tmp_path / "synced"
    with stopping(redis), Site(PAGES) as site:
        async with crawls(etcd_server.endpoint, redis.url, cluster=cluster_name) as running:
            await running.submit(site.url("/"), **AGAIN)
            await visited_more(site, PAGES, 2)
            shutil.copytree(log, synced)
            await visited_more(site, PAGES, 2)
            redis.kill()
            shutil.rmtree(log)
            shutil.copytree(synced, log)
            redis.launch()
            redis.wait_ready()
            await visited_more(site, PAGES, 3)
            await closed(running)
            records = await running.records()
        requests = Counter(site.paths())
    assert set(records) == {site.url(path) for path in PAGES}
    assert all(3 <= records[site.url(path)]["visit"] <= requests[path] for path in PAGES)
    assert any(records[site.url(path)]["visit"] < requests[path] for path in PAGES), "none was lost"


@pytest.fixture
async def running(crawling: Crawling) -> AsyncIterator[Crawls]:
    """A master, and no worker yet."""
    async with crawling(workers=0) as one:
        yield one


async def _make_older(running: Crawls) -> None:
    """Leave in the shards what a version that knew nothing of visits has there."""
    for shard in range((await running.job()).spec.shards):
        keys = running.keys(shard)
        paid = ("paid", "paid_in_flight", "paid_ended")
        await running.client.commands(
            [
                ("DEL", keys.due, keys.visited),
                ("HDEL", keys.meta, "revisits", "revisiting", *paid),
            ]
        )


async def test_a_job_begun_before_there_were_visits_goes_on(running: Crawls) -> None:
    with Site(PAGES) as site:
        await running.submit(site.url("/"), max_pages=5, keep_open=True)
        await ended(running, queued=1)
        await _make_older(running)
        running.worker()
        await ended(running, fetched=5)
        await closed(running)
        counted = await running.counters()
    assert (counted["fetched"], counted["dropped"]) == (5, 4)
    assert (counted["revisits"], counted["revisiting"]) == (0, 0)


async def test_pages_that_an_older_version_took_no_note_of_are_left_and_others_visited(
    running: Crawls,
) -> None:
    pages = PAGES | {"/down": Page(status=503), "/late": Page()}
    with Site(pages) as site:
        node = running.worker("older")
        await running.submit(site.url("/"), site.url("/down"), retries=0, **{**AGAIN, **SELDOM})
        await ended(running, fetched=len(PAGES), dead=1)
        await node.end()
        await _make_older(running)
        running.worker("newer")
        await running.add(site.url("/late"))
        await ended(running, fetched=len(PAGES) + 1)
        assert await visits_to_come(running) == 1
        spec = (await running.job()).spec
        letters = DeadLetters(
            running.client, cluster=running.settings.cluster, job=JobId("job"), spec=spec
        )
        stored = await running.coord.jobs.get(JobId("job"))
        assert stored is not None
        async for shard, found in letters.pages():
            assert await letters.put_back(shard, found, revision=Revision(stored.revision)) == 1
        await ended(running, dead=1, revisiting=0)
        assert await visits_to_come(running) == 2, "what ends from now on is visited again"
        await assert_sound(running)
        await closed(running)
        assert len(await running.records()) == len(pages)


async def test_a_worker_of_a_newer_version_goes_on_with_what_an_older_one_knew(
    running: Crawls,
) -> None:
    """It was drained, and what it had noted of each page ends before what came in later."""

    def page(request: Request) -> Page:
        if request.headers.get("if-none-match") == '"1"':
            return Page(status=304, body=b"", headers=[("ETag", '"1"')])
        return Page(title="still", links=["http://elsewhere.invalid/"], headers=[("ETag", '"1"')])

    pages = dict.fromkeys(PATHS, page) | {"/": Page(links=PATHS)}
    with Site(pages) as site:
        first = running.process("older")
        await running.submit(site.url("/"), **AGAIN)
        await visited_more(site, pages, 2)
        first.signal(signal.SIGTERM)
        assert await first.ended(within_s=60) == 0
        assert await _forget_what_is_new(running, site) == len(pages)
        before = Counter(site.paths())
        running.worker("newer")
        await visited_more(site, pages, 2)
        await closed(running)
        records = await running.records()
    for path in PATHS:
        record = records[site.url(path)]
        assert (record["outcome"], record["title"]) == ("not_modified", "still")
        assert record["visit"] >= before[path] + 2


async def _forget_what_is_new(running: Crawls, site: Site) -> int:
    """Cut what is known of each page down to what the first version noted; return how many."""
    host, cut = HostKey(site.url("")), 0
    for shard in range(2):
        keys = running.keys(shard)
        visited, queued = await running.client.commands(
            [("HGETALL", keys.visited), ("LRANGE", keys.queue(host), 0, -1)]
        )
        changes: list[tuple[str | bytes | int, ...]] = [
            ("LSET", keys.queue(host), at, _older(host, raw)) for at, raw in enumerate(queued)
        ]
        for mark, value in zip(visited[::2], visited[1::2], strict=True):
            if raw := parse(value).item:  # else it is on its way, and queued
                changes.append(("HSET", keys.visited, mark, value[: -len(raw)] + _older(host, raw)))
        if changes:
            await running.client.commands(changes)
        cut += len(changes)
    return cut


def _older(host: HostKey, raw: bytes) -> bytes:
    item = items.decode(host, raw)
    known = msgspec.msgpack.decode(item.known)
    assert len(known) == len(Known.__struct_fields__)
    return items.encode(item._replace(known=msgspec.msgpack.encode(known[:FIRST_FIELDS])))
