"""Limits that hosts share, in whole crawls: names that lead to one address, names of one domain."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.crawling import Crawling, Crawls
from tests.support.rawserver import Exchange, RawServer, Reply, page, serving

ADDRESS, OTHER = "127.0.0.52", "127.0.0.53"


class _Counted:
    """Pages that take a while, and how many of them were under way at one time."""

    def __init__(self, *, takes_s: float = 0.05) -> None:
        self.takes_s = takes_s
        self.now = self.most = self.answered = 0

    async def __call__(self, exchange: Exchange) -> Reply:
        self.now += 1
        self.most = max(self.most, self.now)
        await exchange.pause(self.takes_s)
        self.now -= 1  # before it is answered: what is counted was surely under way
        self.answered += 1
        return Reply(page(b"<title>page</title>"))


@pytest.fixture
async def cluster(crawling: Crawling) -> AsyncIterator[Crawls]:
    async with crawling(workers=0) as running:
        yield running


@pytest.mark.parametrize(
    ("limits", "most"),
    [({}, None), ({"per_domain": 2}, 2), ({"per_ip": 3}, 3), ({"per_domain": 3, "per_ip": 1}, 1)],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
async def test_hosts_are_limited_together_by_the_address_and_the_domain_of_their_names(
    cluster: Crawls, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], most: int | None
) -> None:
    """Ten names of one domain, all of one machine, crawled by two workers."""
    is_told: list[str] = []

    def names(host: bytes, *_: Any, **__: Any) -> list[Any]:
        is_told.append(host.decode())
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ADDRESS, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", names)
    slow = _Counted()
    paths = ["/robots.txt", "/a", "/b"]
    async with RawServer(dict.fromkeys(paths, slow), address=ADDRESS) as server:
        hosts = [f"www{number}.shop.test:{server.port}" for number in range(10)]
        await cluster.submit(
            *(f"http://{host}{path}" for host in hosts for path in paths[1:]), shards=8, **limits
        )
        cluster.worker("one")
        cluster.worker("two")
        records = await cluster.finished()
    assert {"fetched"} == {one["outcome"] for one in records.values()}
    assert 20 == len(records)
    assert {ADDRESS} == {one["ip"] for one in records.values()}
    assert {host.partition(":")[0] for host in hosts} == set(is_told)
    assert slow.most <= most if most else slow.most > 3


async def test_many_hosts_of_a_slow_address_do_not_hold_up_others(cluster: Crawls) -> None:
    """A worker with few places; each URL that waits for the address would hold one."""
    slow, quick = _Counted(takes_s=0.4), _Counted(takes_s=0.0)
    left: list[int] = []

    async def last(exchange: Exchange) -> Reply:
        left.append(40 - slow.answered)
        return await quick(exchange)

    paths = {f"/{number}": quick for number in range(20)}
    servers = [RawServer({"/": slow}, address=ADDRESS) for _ in range(40)]
    async with (
        serving(servers),
        RawServer({**paths, "/last": last}, address=OTHER) as other,
    ):
        await cluster.submit(
            *(server.url("/") for server in servers),
            *(other.url(path) for path in paths), other.url("/last"),
            per_ip=1, robots="ignore", shards=1,
        )  # fmt: skip
        cluster.worker("small", concurrency=6)
        records = await cluster.finished()
    assert 40 + 20 + 1 == len(records)
    assert 1 == slow.most
    (unanswered,) = left
    assert unanswered > 20, "the other host was done long before"
