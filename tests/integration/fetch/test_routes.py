"""Requests go to the address that was chosen for them: what --per-ip counts by."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from typing import Any, Self

import pytest

from common.model.ids import HostKey
from common.model.job import JobSpec
from tests.support.fetching import at_once, code_of
from tests.support.rawserver import RawServer, Reply, full_backlog, page
from worker.dns import Addresses, Resolver, Route
from worker.fetch import NEXT_ADDRESS_S, Fetcher
from worker.fetched import Fetched

PAGE = {"/": Reply(page(b"<title>page</title>"))}
FIRST, SECOND = "127.0.0.48", "127.0.0.49"


class _Names:
    """What the name server says, and how often it was asked."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked = 0

    def __call__(self, *_: Any, **__: Any) -> list[Any]:
        self.asked += 1
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        kinds = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in self.addresses]
        return [
            (kind, socket.SOCK_STREAM, 6, "", (one, 0))
            for kind, one in zip(kinds, self.addresses, strict=True)
        ]


class _Job:
    """One job's fetcher, as a visit to a host uses it."""

    def __init__(self, **options: Any) -> None:
        self.fetcher = Fetcher(
            JobSpec(**{"per_ip": 1, "timeout": 5.0, "allow_private": True} | options),
            connections=8,
        )
        self.leaves = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fetcher.close()

    def route(self, url: str) -> Route:
        assert self.fetcher.addresses is not None
        return Route(self.fetcher.addresses, HostKey(url[: url.index("/", 8)]))

    async def fetch(self, url: str, route: Route) -> Fetched:
        async def next_turn(_ended_at: float) -> bool:
            self.leaves += 1
            await route.choose(within_s=5.0)
            return True

        await route.choose(within_s=5.0)
        return await self.fetcher.fetch(
            url, wait_before_hop=next_turn, is_bounce=lambda _: False, route=route
        )


def address_of(route: Route) -> str | None:
    assert route.choice is not None
    return route.choice.address


async def test_an_address_in_the_url_is_its_own_choice() -> None:
    async with RawServer(PAGE, address=FIRST) as server, _Job() as job:
        route = job.route(server.url("/"))
        fetched = await job.fetch(server.url("/"), route)
        assert (200, FIRST, FIRST) == (fetched.status, fetched.ip, address_of(route))


async def test_a_kept_connection_is_used_for_its_own_address_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two requests to one host, whose name leads elsewhere the second time."""
    async with RawServer(PAGE, address="0.0.0.0") as server, _Job() as job:
        url, names = f"http://many.test:{server.port}/", _Names(FIRST)
        monkeypatch.setattr(socket, "getaddrinfo", names)
        first, again = await job.fetch(url, job.route(url)), await job.fetch(url, job.route(url))
        assert (FIRST, FIRST, 1) == (first.ip, again.ip, server.connections)

        job.fetcher.addresses = Addresses(Resolver(), allow_private=True, wait_s=5.0)
        names.addresses = (SECOND,)
        moved = await job.fetch(url, job.route(url))
        assert (200, SECOND, 2) == (moved.status, moved.ip, server.connections)
        assert 2 == names.asked


async def test_where_an_address_does_not_answer_the_next_one_is_asked_with_a_turn_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with RawServer(PAGE, address=SECOND) as server, _Job() as job:
        monkeypatch.setattr(socket, "getaddrinfo", _Names(FIRST, SECOND))
        url = f"http://half.test:{server.port}/"
        for _ in range(2):
            fetched = await job.fetch(url, job.route(url))
            assert (200, SECOND) == (fetched.status, fetched.ip)
        assert job.leaves <= 1, "known from then on"
        assert 2 == len(server.requests)


async def test_an_address_that_swallows_connections_leaves_time_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within the time in which a claimed URL may be sent, and not after the whole limit."""
    async with RawServer(PAGE, address=SECOND) as server, _Job(timeout=60.0) as job:
        monkeypatch.setattr(socket, "getaddrinfo", _Names(FIRST, SECOND))
        monkeypatch.setattr(random, "randrange", lambda _: 0)
        url = f"http://hole.test:{server.port}/"
        with full_backlog(FIRST, server.port):
            began = time.monotonic()
            fetched = await job.fetch(url, job.route(url))
            took_s = time.monotonic() - began
        assert (200, SECOND, 1) == (fetched.status, fetched.ip, job.leaves)
        assert NEXT_ADDRESS_S <= took_s < 10, "the first one was tried, for less than its 10 s"


async def test_where_no_address_answers_the_fetch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with RawServer(PAGE) as server, _Job() as job:
        monkeypatch.setattr(socket, "getaddrinfo", _Names(FIRST, SECOND))
        url = f"http://down.test:{server.port}/"
        fetched = await job.fetch(url, job.route(url))
        assert ("connect_refused", 1) == (code_of(fetched), job.leaves)


@pytest.mark.parametrize("addresses", [(), ("10.0.0.1", "::1")], ids=["unknown", "private"])
async def test_names_that_lead_nowhere_are_told_as_without_the_option(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _Names(*addresses))
    async with _Job(allow_private=False) as job:
        route = job.route("http://nowhere.test/")
        fetched = await job.fetch("http://nowhere.test/", route)
        assert ("private_address" if addresses else "dns_not_found") == code_of(fetched)
        assert (address_of(route) is None) == (not addresses)


async def test_an_address_that_is_not_public_is_not_chosen_where_another_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _Names("10.0.0.1", "9.9.9.9", "::1"))
    for _ in range(10):  # where it begins is random
        chosen = await Addresses(Resolver(), allow_private=False, wait_s=5.0).choose(
            HostKey("http://mixed.test"), within_s=5.0
        )
        assert "9.9.9.9" == chosen.address


async def test_a_name_is_looked_up_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _Names(FIRST, SECOND)
    monkeypatch.setattr(socket, "getaddrinfo", names)
    addresses = Addresses(Resolver(), allow_private=True, wait_s=5.0)
    host = HostKey("http://many.test")
    gone, *asking = [asyncio.create_task(addresses.choose(host, within_s=5.0)) for _ in range(20)]
    await asyncio.sleep(0)
    gone.cancel()
    assert 1 == len({one.address for one in await asyncio.gather(*asking)})
    assert 1 == names.asked


async def test_a_look_up_without_end_is_a_failure_in_time_and_its_answer_is_used_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A URL was given back again and again, since its name server said nothing."""
    answered = threading.Event()

    def slow(*_: Any, **__: Any) -> list[Any]:
        answered.wait(60)
        return _Names(FIRST)()

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    async with RawServer(PAGE, address=FIRST) as server, _Job() as job:
        url = f"http://slow.test:{server.port}/"
        route = job.route(url)
        try:
            await route.choose(within_s=0.05)
            fetched = await job.fetcher.fetch(
                url, wait_before_hop=at_once, is_bounce=lambda _: False, route=route
            )
            assert ("connect_timeout", None) == (code_of(fetched), address_of(route))
        finally:
            answered.set()
        assert (200, FIRST) == ((again := await job.fetch(url, route)).status, again.ip)
