"""Field report about clocks: the wall clock of a worker jumps while it crawls.

The data server's clock and its jumps: tests/integration/frontier/test_claim.py and tests/chaos.
"""

from __future__ import annotations

import itertools
import time

import pytest

from tests.support.crawling import crawls
from tests.support.rawserver import Exchange, RawServer, Reply, page
from tests.support.servers import EtcdServer, RedisServer
from tests.support.waiting import until_true

HOUR_S = 3600.0


async def test_h28_a_clock_that_jumps_neither_stalls_nor_hurries_a_crawl(
    etcd_server: EtcdServer,
    redis_server: RedisServer,
    cluster_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Set back, the scheduler did nothing until the clock had caught up."""
    times: list[float] = []
    jump_s = 0.0
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)

    async def timed(_: Exchange) -> Reply:
        times.append(time.monotonic())
        return Reply(page(b"<title>x</title>", headers=(b"Set-Cookie: a=1; Max-Age=5",)))

    pages = [f"/{number}" for number in range(15)]
    async with (
        RawServer(dict.fromkeys(pages, timed)) as site,
        crawls(etcd_server.endpoint, redis_server.url, cluster=cluster_name) as running,
    ):
        await running.submit(*map(site.url, pages), delay=0.2)
        await until_true(lambda: len(times) >= 4, within_s=60)
        jump_s = -HOUR_S
        await until_true(lambda: len(times) >= 8, within_s=60)
        jump_s = HOUR_S
        found = await running.finished()
    assert len(pages) == len(found)
    assert {"fetched"} == {record["outcome"] for record in found.values()}
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.19
