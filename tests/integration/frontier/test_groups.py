"""Groups of hosts, by the turns that workers take on a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from common.frontier.client import FrontierClient
from common.frontier.pace import Permits, domain_group, taken
from common.model.ids import HostKey, Token
from tests.support.waiting import until, until_true
from worker import groups
from worker.groups import BACK_S, LONGEST_LINE, Group, Groups
from worker.pacer import Pacer
from worker.visit import Visit

HOSTS = [HostKey(f"http://h{number}.example.org") for number in range(12)]
DOMAIN = domain_group("example.org")
LATER_S = 60.0
LASTS_MS = 120_000
"""No permit comes free by itself while a test runs."""


class _Requests:
    """What is on the wire, and the most that ever was."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.most = 0

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        self.open.append(name)
        self.most = max(self.most, len(self.open))
        yield
        self.open.remove(name)


async def served(visit: Visit) -> bool:
    """Come back until the turn is there; False = it is late."""
    before = time.monotonic() + LATER_S
    while time.monotonic() < before:
        if await visit.next(before=before):
            return True
        await asyncio.sleep(visit.wait_s)
    return False


MakePacer = Callable[..., Pacer]
Taken = Callable[[], Awaitable[int]]


@pytest.fixture
async def pacer(client: FrontierClient, cluster_name: str) -> AsyncIterator[MakePacer]:
    """Makes what paces one job in one worker."""
    made: list[Pacer] = []

    def make(*, per_domain: int | None = None, per_host: int = 1) -> Pacer:
        permits = Permits(client, cluster=cluster_name, token=Token(10), lasts_ms=LASTS_MS)
        shared = per_domain and Groups(per_domain=per_domain, per_ip=None, addresses=None)
        made.append(Pacer(permits, per_host=per_host, groups=shared or None))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
def domain_taken(client: FrontierClient, cluster_name: str) -> Taken:
    """Tells how many turns of the domain are taken."""
    return lambda: taken(client, cluster=cluster_name, key=DOMAIN)


async def crawl(
    pacer: Pacer, hosts: Sequence[HostKey], requests: _Requests, *, name: str = "x", count: int = 3
) -> None:
    """Send some requests to each host, coming back as often as it takes."""

    async def ask(host: HostKey) -> None:
        left = count
        while left:
            with pacer.visit(host, 0.0) as visit:
                if await visit.next(before=time.monotonic() + 5):
                    with requests.one(name):
                        await asyncio.sleep(0.01)
                    left -= 1
            await asyncio.sleep(visit.wait_s)

    await asyncio.gather(*map(ask, hosts))


@pytest.mark.parametrize("per_domain", [None, 1, 3])
async def test_hosts_of_a_domain_never_have_more_requests_at_once(
    pacer: MakePacer, per_domain: int | None
) -> None:
    """Over several workers; without the option there are more."""
    requests = _Requests()
    workers = [pacer(per_domain=per_domain) for _ in range(3)]
    await asyncio.gather(
        *(crawl(one, HOSTS[number::3], requests) for number, one in enumerate(workers))
    )
    assert requests.most > 3 if per_domain is None else requests.most == per_domain


async def test_the_smaller_limit_holds_for_all_who_use_a_domain(pacer: MakePacer) -> None:
    wide, narrow, requests = pacer(per_domain=6), pacer(per_domain=1), _Requests()
    with narrow.visit(HOSTS[0], 0.0) as visit:  # so that its limit is known
        assert await served(visit)
    await asyncio.gather(
        crawl(wide, HOSTS[1:7], requests, name="wide"),
        crawl(narrow, HOSTS[7:], requests, name="narrow"),
    )
    assert 1 == requests.most


async def test_who_waits_for_a_domain_keeps_no_turn_of_its_host(pacer: MakePacer) -> None:
    limited, other = pacer(per_domain=1), pacer()
    with limited.visit(HOSTS[0], 0.0) as holding, limited.visit(HOSTS[1], 0.0) as waiting:
        assert await served(holding)
        turn = asyncio.create_task(served(waiting))
        line = limited.group(Group(DOMAIN, 1))
        await until_true(lambda: line.waiting)
        with other.visit(HOSTS[1], 0.0) as unlimited:
            assert await served(unlimited)
            assert not turn.done()
        holding.ended()
        assert await turn


async def test_who_waits_for_its_host_gives_the_domain_back(
    pacer: MakePacer, domain_taken: Taken
) -> None:
    """And asks for both again."""
    other, limited, rival = pacer(), pacer(per_domain=1), pacer(per_domain=1)
    with other.visit(HOSTS[0], 0.0) as busy, limited.visit(HOSTS[0], 0.0) as waiting:
        assert await served(busy)
        turn = asyncio.create_task(served(waiting))
        await until(domain_taken)
        with rival.visit(HOSTS[1], 0.0) as rivals:
            assert await served(rivals)
            assert not turn.done()
        busy.ended()
        assert await turn


async def test_a_turn_that_does_not_come_in_time_leaves_nothing_taken(pacer: MakePacer) -> None:
    other, limited = pacer(), pacer(per_domain=1)
    with other.visit(HOSTS[0], 0.0) as busy, limited.visit(HOSTS[0], 0.0) as late:
        assert await served(busy)
        assert not await late.next(before=time.monotonic() + 0.3)
        with limited.visit(HOSTS[1], 0.0) as free:
            assert await served(free)


async def test_who_is_cancelled_leaves_nothing_taken(pacer: MakePacer, domain_taken: Taken) -> None:
    other, limited = pacer(), pacer(per_domain=1)

    async def request() -> None:
        with limited.visit(HOSTS[0], 0.0) as visit:
            await visit.next(before=time.monotonic() + LATER_S)

    with other.visit(HOSTS[0], 0.0) as busy:
        assert await served(busy)
        asking = asyncio.create_task(request())
        await until(domain_taken)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        with limited.visit(HOSTS[1], 0.0) as free:
            assert await served(free)


@pytest.mark.parametrize(("limit", "line"), [(2, 2), (30, LONGEST_LINE)])
async def test_few_wait_in_line_and_the_others_come_back_one_after_the_other(
    pacer: MakePacer, monkeypatch: pytest.MonkeyPatch, limit: int, line: int
) -> None:
    """Each that waits holds a place of its process, which other hosts need."""
    monkeypatch.setattr(groups, "LINE_S", LATER_S)
    limited = pacer(per_domain=limit)
    hosts = [HostKey(f"http://h{number}.example.org") for number in range(limit + line + 5)]
    visits = [limited.visit(host, 0.0) for host in hosts]
    before = time.monotonic() + LATER_S
    assert all([await visit.next(before=before) for visit in visits[:limit]])
    waiting = [asyncio.create_task(visit.next(before=before)) for visit in visits[limit:]]
    await until_true(lambda: 5 == sum(one.done() for one in waiting))
    told = [visit.wait_s for visit in visits[limit + line :]]
    assert [False] * 5 == [one.result() for one in waiting[line:]]
    assert told == sorted(told)
    assert 0 < told[0] <= told[-1] <= BACK_S[1]

    async def comes_back_later() -> bool:
        """The longer nobody gets a turn, the later the next one is to come."""
        with limited.visit(HostKey("http://late.example.org"), 0.0) as late:
            assert not await late.next(before=before)
            return late.wait_s > 10 * BACK_S[0]

    await until(comes_back_later)
    for visit in visits[:limit]:
        visit.ended()
    assert all(await asyncio.gather(*waiting[:line]))
    for visit in visits:
        visit.ended()
