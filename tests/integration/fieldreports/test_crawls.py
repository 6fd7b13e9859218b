"""Field reports about whole crawls: ends, fairness, spacing, traps, robots.txt.

Every scenario is a real crawl with its own cluster; they run together (tests/support/concert.py).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import Final

from common.model.job import JobState
from tests.support.concert import Concert, Stage
from tests.support.crawling import crawls
from tests.support.rawserver import Exchange, RawServer, Reply, Script, page, serving
from tests.support.waiting import until, until_true

CONCERT: Final = Concert()
HTML = b"Content-Type: text/html; charset=utf-8"


def linking(*targets: str) -> Reply:
    anchors = "".join(f'<a href="{target}">x</a>' for target in targets)
    return Reply(page(f"<title>good</title>{anchors}".encode(), headers=(HTML,)))


def robots(text: str) -> Reply:
    return Reply(page(text.encode(), headers=(b"Content-Type: text/plain",)))


def after(seconds: float, reply: Reply) -> Script:
    async def script(exchange: Exchange) -> Reply:
        await exchange.pause(seconds)
        return reply

    return script


def counted(server: RawServer) -> Counter[str]:
    return Counter(request.target for request in server.requests)


@CONCERT.test
async def test_h13_both_spellings_of_an_ipv6_host_are_one_host(stage: Stage) -> None:
    """Brackets were lost: wrong Host header, or no parse at all."""
    async with (
        RawServer({"/x": linking(), "/y": linking()}, address="::1") as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        site.scripts["/"] = linking("/x", f"http://[0:0:0:0:0:0:0:1]:{site.port}/y")
        await running.submit(site.url("/"))
        found = await running.finished()
    assert {site.url(path) for path in ("/", "/x", "/y")} == found.keys()
    assert 1 == counted(site)["/robots.txt"]
    assert {f"[::1]:{site.port}"} == {request.header("Host") for request in site.requests}


@CONCERT.test
async def test_h14_nothing_is_fetched_while_robots_txt_is_unavailable(stage: Stage) -> None:
    """An error page of status 500 was read as rules: everything was allowed."""
    states: dict[str, Script] = {
        "127.0.1.1": Reply(page(b"<p>User-agent: *\nAllow: /", status="500 Oops")),
        "127.0.1.2": Reply(page(b"", status="503 Busy")),
        "127.0.1.3": Reply(b"", end="hang"),
        "127.0.1.4": Reply(b"", end="reset"),
    }
    sites = [RawServer({"/robots.txt": s, "/": linking()}, a) for a, s in states.items()]
    async with (
        serving(sites),
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(*(site.url("/") for site in sites), timeout=1.0, retries=2)
        found = await running.finished()
    for site in sites:
        assert {"/robots.txt"} == counted(site).keys()
        assert 2 <= len(site.requests) <= 4
        record = found[site.url("/")]
        assert "dead" == record["outcome"]
        assert record["error"]["code"] in (
            "robots_unavailable", "read_timeout", "connection_reset",
        )  # fmt: skip


def busy_once(retry_after: str, times: list[float]) -> Script:
    async def script(_: Exchange) -> Reply:
        times.append(time.monotonic())
        if len(times) > 1:
            return linking()
        field = f"Retry-After: {retry_after}".encode()
        return Reply(page(b"", status="429 Slow", headers=(field,)))

    return script


@CONCERT.test
async def test_h15_an_absurd_retry_after_neither_cancels_nor_stretches_the_back_off(
    stage: Stage,
) -> None:
    """Retry-After: -5 set the throttle in the past."""
    asked: dict[str, list[float]] = {}
    sites = {}
    past = "Wed, 21 Oct 2015 07:28:00 GMT"
    for number, value in enumerate(("-5", "abc", "", "0", past, "1e9", "9" * 30)):
        asked[value] = []
        script = busy_once(value, asked[value])
        sites[value] = RawServer({"/": script}, f"127.0.2.{number + 1}")
    async with (
        serving(sites.values()),
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        huge = {sites["9" * 30].url("/")}
        await running.submit(*(site.url("/") for site in sites.values()), shards=1)

        async def is_only_huge_left() -> bool:
            counters = await running.counters()
            return counters["delayed"] == len(huge) and counters["fetched"] == len(sites) - 1

        await until(is_only_huge_left, within_s=40)
        (delayed,) = await running.client.commands(
            [("ZRANGE", running.keys(0).delayed, 0, -1, "WITHSCORES")]
        )
        waits_s = [float(at) / 1000 - time.time() for at in delayed[1::2]]
        await running.change(state=JobState.CANCELLED)
    for value, times in asked.items():
        if value != "9" * 30:
            assert 2 == len(times), value
            assert times[1] - times[0] >= 0.9, value
    assert all(3000 < wait < 3700 for wait in waits_s), waits_s


@CONCERT.test
async def test_h16_a_path_that_grows_by_itself_comes_to_an_end(stage: Stage) -> None:
    """href="www.o.test/p/" on a permissive site made ever longer paths."""
    trap = linking("www.o.test/p/")

    class Permissive(dict[str, Script]):
        def get(self, key: str, default: object = None) -> Script:  # type: ignore[override]
            return super().get(key, trap)

    async with (
        RawServer(Permissive({"/robots.txt": robots("")})) as site,
        RawServer({"/": linking("/a", "/b")}, "127.0.0.2") as other,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(site.url("/"), other.url("/"))
        found = await running.finished()
        filtered = (await running.counters())["filtered"]
    assert 2 <= len(site.requests) < 100
    assert 1 == filtered
    assert {other.url(path) for path in ("/", "/a", "/b")} < found.keys()


@CONCERT.test
async def test_h17_a_calendar_does_not_starve_the_pages_beside_it(stage: Stage) -> None:
    """ "Next month" links went on for centuries and used up the crawl."""
    pages = [f"/page/{number}" for number in range(30)]

    class Calendar(dict[str, Script]):
        def get(self, key: str, default: object = None) -> Script:  # type: ignore[override]
            if not key.startswith("/cal"):
                return super().get(key, default)  # type: ignore[return-value]
            month = int(key.partition("=")[2])
            return linking(f"/cal?m={month - 1}", f"/cal?m={month + 1}")

    scripts: dict[str, Script] = {path: linking() for path in pages}
    async with (
        RawServer(Calendar({**scripts, "/": linking("/cal?m=500", *pages)})) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(site.url("/"), max_pages=60)
        found = await running.finished()
    asked = [request.target for request in site.requests if request.target != "/robots.txt"]
    assert set(pages) <= set(asked[:45])
    assert 60 == sum(record["outcome"] == "fetched" for record in found.values())
    assert {"max_pages"} == {r["rule"] for r in found.values() if r["outcome"] == "dropped"}


@CONCERT.test
async def test_h21_a_job_does_not_end_while_its_only_page_is_in_flight(stage: Stage) -> None:
    """An empty queue was taken for the end, though a page was in flight."""
    pages = [f"/{number}" for number in range(100)]
    async with (
        RawServer({path: linking() for path in pages}) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=2) as running,
    ):
        site.scripts["/"] = after(3.0, linking(*pages))
        await running.submit(site.url("/"), per_host=16)
        found = await running.finished()
    assert {site.url(path) for path in ["/", *pages]} == found.keys()


@CONCERT.test
async def test_h22_a_page_that_outlasts_the_lease_is_fetched_once(stage: Stage) -> None:
    """Work held longer than a visibility timeout was handed to a second worker."""
    async with (
        RawServer({"/": after(20.0, linking())}) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=0) as running,
    ):
        running.worker("a", ttl_s=15.0)
        running.worker("b", ttl_s=15.0)
        await running.submit(site.url("/"), timeout=60.0)
        found = await running.finished()
    assert 1 == counted(site)["/"]
    assert [("fetched", 1)] == [(one["outcome"], one["attempt"]) for one in found.values()]


@CONCERT.test
async def test_h25_a_slow_host_does_not_hold_up_the_others(stage: Stage) -> None:
    """All places were filled by one slow host; other hosts waited."""
    slow_pages = [f"/{number}" for number in range(300)]
    few = [f"/{number}" for number in range(5)]
    quick = [RawServer({p: linking() for p in few}, f"127.0.3.{n}") for n in range(1, 11)]
    async with (
        RawServer({"/robots.txt": robots("User-agent: *\nCrawl-delay: 2")}) as slow,
        serving(quick),
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        for path in slow_pages:
            slow.scripts[path] = linking()
        seeds = [site.url(path) for site in [slow] for path in slow_pages]
        seeds += [site.url(path) for site in quick for path in few]
        await running.submit(*seeds)

        async def are_quick_done() -> bool:
            return all(len(site.requests) == len(few) + 1 for site in quick)

        await until(are_quick_done, within_s=60)
        assert len(slow.requests) < 20
        before = len(slow.requests)
        await until_true(lambda: len(slow.requests) > before, within_s=60)
        await running.change(state=JobState.CANCELLED)


@CONCERT.test
async def test_h26_the_delay_of_a_host_holds_over_all_workers(stage: Stage) -> None:
    """Three processes asked one host at three times the rate."""
    times: list[float] = []

    async def timed(_: Exchange) -> Reply:
        times.append(time.monotonic())
        return linking()

    pages = [f"/{number}" for number in range(12)]
    async with (
        RawServer(dict.fromkeys(pages, timed)) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=2) as running,
    ):
        leaving = running.worker("leaves")
        site.scripts["/"] = linking(*pages)
        await running.submit(site.url("/"), delay=0.3, shards=1)
        await until_true(lambda: len(times) >= 4, within_s=60)
        await leaving.end()
        found = await running.finished()
    assert 13 == len(found)
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.29


@CONCERT.alone
async def test_h30_a_heavy_page_fails_no_request_of_other_hosts(stage: Stage) -> None:
    """Parsing stopped the event loop, and requests timed out that had been answered."""
    heavy = "".join(f'<p><a href="http://out.test/{n}">x</a>' for n in range(60_000))
    heavy += "<div>text " * 300_000
    chain = {f"/{n}": linking(f"/{n + 1}") for n in range(10)}
    quick = [RawServer({"/": linking("/0"), **chain}, f"127.0.4.{n}") for n in range(1, 11)]
    async with (
        RawServer({"/": Reply(page(heavy.encode(), headers=(HTML,)))}) as site,
        serving(quick),
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        seeds = [one.url("/") for one in [site, *quick]]
        await running.submit(*seeds, timeout=4.0, retries=0)
        found = await running.finished()
    assert {"fetched"} == {record["outcome"] for record in found.values()}
    assert 60_000 == found[site.url("/")]["outlinks"]


@CONCERT.test
async def test_h32_robots_rules_behind_five_redirects_are_obeyed(stage: Stage) -> None:
    """Only one hop was followed, so rules behind two were missed."""
    rules = robots("User-agent: *\nDisallow: /private")
    async with (
        RawServer({"/": linking("/private", "/open"), "/open": linking()}) as site,
        RawServer({}, "127.0.0.2") as other,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        hops = [site.url("/robots.txt")]
        hops += [[site, other][number % 2].url(f"/hop{number}") for number in range(1, 6)]
        for here, there in itertools.pairwise(hops):
            server = site if here.startswith(site.url("/")) else other
            moved = page(b"", status="301 Moved", headers=(b"Location: " + there.encode(),))
            server.scripts[here[here.index("/", 8) :]] = Reply(moved)
        other.scripts["/hop5"] = rules
        await running.submit(site.url("/"))
        found = await running.finished()
    assert "Disallow: /private" == found[site.url("/private")]["rule"]
    assert "fetched" == found[site.url("/open")]["outcome"]


@CONCERT.test
async def test_h35_a_crawl_whose_limit_is_reached_ends_whatever_fails_then(stage: Stage) -> None:
    """One task stayed counted as running, and the crawl never ended."""
    pages = [f"/{number}" for number in range(30)]
    scripts: dict[str, Script] = {path: linking(*pages) for path in pages[::3]}
    scripts |= dict.fromkeys(pages[1::3], Reply(b"", end="reset"))
    scripts |= dict.fromkeys(pages[2::3], Reply(b"", end="hang"))
    sites = [RawServer(dict(scripts), f"127.0.5.{number}") for number in range(1, 4)]
    async with (
        serving(sites),
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=2) as running,
    ):
        for site in sites:
            site.scripts["/"] = linking(*pages)
        await running.submit(
            *(site.url("/") for site in sites), max_pages=20, per_host=8, timeout=1.0, retries=1
        )
        found = await running.finished()
    assert 20 == sum(record["outcome"] == "fetched" for record in found.values())


@CONCERT.test
async def test_h36_workers_that_were_idle_take_work_at_once(stage: Stage) -> None:
    """Workers stopped taking from a queue that had been empty for a while."""
    sites = [RawServer({"/": linking("/x"), "/x": linking()}, f"127.0.6.{n}") for n in range(1, 13)]
    async with (
        serving(sites),
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(sites[0].url("/"), keep_open=True, shards=8)

        async def is_drained() -> bool:
            return (await running.counters())["fetched"] == 2

        await until(is_drained, within_s=60)
        running.worker("joins")
        await asyncio.sleep(4)  # the symptom: being idle for a while
        added = time.monotonic()
        await running.add(*(site.url("/") for site in sites))

        async def are_done() -> bool:
            return (await running.counters())["fetched"] == 2 * len(sites)

        await until(are_done, within_s=60)
        took_s = time.monotonic() - added
        await running.change(keep_open=False)
        found = await running.finished()
    assert 2 == len({record["worker"] for record in found.values()})
    assert took_s < 60


@CONCERT.test
async def test_h38_a_page_that_timed_out_is_tried_again_after_its_back_off(stage: Stage) -> None:
    """A task that timed out kept its lock until that expired."""
    times: list[float] = []

    async def hangs_once(exchange: Exchange) -> Reply:
        times.append(time.monotonic())
        return linking() if len(times) > 1 else Reply(b"", end="hang")

    async with (
        RawServer({"/": hangs_once}) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=0) as running,
    ):
        running.worker(ttl_s=300.0)
        await running.submit(site.url("/"), timeout=1.0)
        found = await running.finished()
    assert [2] == [record["attempt"] for record in found.values()]
    assert 1.9 <= times[1] - times[0] < 60


@CONCERT.test
async def test_h39_urls_that_wait_long_are_counted_and_none_is_lost(stage: Stage) -> None:
    """An item that waited too long in a host's queue was acknowledged without a status."""
    pages = [f"/{number}" for number in range(25)]
    async with (
        RawServer({path: linking() for path in pages}) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        # Longer than a claim may wait: the first robots.txt tells the delay of a claimed batch.
        site.scripts["/robots.txt"] = robots("User-agent: *\nCrawl-delay: 0.3")
        await running.submit(*(site.url(path) for path in pages), per_host=8)

        async def is_half_done() -> bool:
            counters = await running.counters()
            return counters["fetched"] >= 5 and counters["queued"] + counters["in_flight"] > 0

        await until(is_half_done, within_s=60)
        found = await running.finished()
    assert {site.url(path) for path in pages} == found.keys()
    assert {"fetched"} == {record["outcome"] for record in found.values()}
