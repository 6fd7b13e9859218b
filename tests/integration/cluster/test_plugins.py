"""Plugins in a whole crawl: every hook, and what becomes of pages and jobs where one fails."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from crawlctl.connect import Services
from crawlctl.retrying import put_back_all
from tests.support.crawling import Crawling, Crawls
from tests.support.plugins import FAULTS, BadHeaders, Example, Failing, Slow, Stubborn, plugins
from tests.support.site import Page, Request, Site, redirect
from tests.support.waiting import until, until_true

Heard = dict[str, Request]


def hearing(heard: Heard, page: Page) -> Callable[[Request], Page]:
    """Return what answers with a page and keeps the request."""

    def answer(request: Request) -> Page:
        heard[request.path] = request
        return page

    return answer


async def refusals(running: Crawls) -> Counter[str]:
    """Return how many links each rule refused."""
    found: Counter[str] = Counter()
    for shard in range((await running.job()).spec.shards):
        (flat,) = await running.client.commands([("HGETALL", running.keys(shard).rules)])
        found.update({rule.decode(): int(n) for rule, n in zip(flat[::2], flat[1::2], strict=True)})
    return found


async def test_every_hook_takes_part_in_a_crawl(crawling: Crawling) -> None:
    """Links of plugins are links as others; headers reach the seeds' hosts, and pages alone."""
    Example.events.clear()
    near: Heard = {}
    far: Heard = {}
    with Site({"/": hearing(far, Page(links=["/calendar/3"]))}, addresses=("127.0.0.2",)) as away:
        pages = {
            "/robots.txt": Page(body=b"User-agent: *\nDisallow: /no", content_type="text/plain"),
            "/": Page(title="start", links=["/calendar/1", "/list", "/moved", away.url()]),
            "/list": Page(body=b"<a href=/not-looked-into>", content_type="application/json"),
            "/found": Page(status=404, title="gone", headers=(("X-Server", "s"),)),
            "/moved": redirect("/calendar/9"),
        }
        async with crawling(workers=0) as running:
            with Site({path: hearing(near, page) for path, page in pages.items()}) as site:
                running.worker(plugins=plugins(example=Example))
                await running.submit(
                    site.url(), plugin=["example"], scope="any", header=["Accept-Language: en"]
                )
                found = await running.finished()
            await until_true(lambda: [("opened", "job"), ("closed", "job")] == Example.events)
            assert {"plugin example: calendar": 4} == await refusals(running)
            assert 4 == (await running.counters())["filtered"]
    home = {site.url(path) for path in ("/", "/list", "/found", "/moved", "/%EF%BF%BD")}
    assert home | {away.url()} == found.keys()
    facts = {"status": 200, "title": "start", "links": 4, "server": None, "job": "job"}
    assert {"example": facts} == found[site.url()]["extra"]
    facts = {"status": 404, "title": None, "links": 0, "server": "s", "job": "job"}
    assert {"example": facts} == found[site.url("/found")]["extra"]
    assert 3 == found[site.url("/list")]["outlinks"]
    assert found[site.url("/moved")]["extra"] is None
    assert {"/", "/list", "/found", "/moved", "/robots.txt"} == near.keys()
    for path, request in near.items():
        own = (request.headers["accept-language"], request.headers.get("x-page"))
        expected = ("en", None) if path == "/robots.txt" else ("de", site.url(path))
        assert expected == own, path
    assert not {"accept-language", "x-page"} & far["/"].headers.keys()


async def cancelled() -> None:
    raise asyncio.CancelledError


def wrong() -> Any:
    return ["no mapping"]


def huge() -> Any:
    return {"x": "y" * 1_000_000}


async def test_a_fault_ends_its_page_and_nothing_else(
    crawling: Crawling,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a dead letter after one try, whatever was raised; the worker goes on."""
    kinds = {"raise": int, "exit": sys.exit, "cancel": cancelled, "wrong": wrong, "huge": huge}
    kinds["raise"] = lambda: 1 // 0
    for name, act in kinds.items():
        monkeypatch.setitem(FAULTS, name, act)
    good = [f"/{number}" for number in range(20)]
    pages = {path: Page(links=[f"/{kind}" for kind in kinds]) for path in good}
    pages["/"] = Page(links=good)
    pages |= {f"/{kind}": Page(links=["/unseen"]) for kind in kinds}
    async with crawling(workers=0) as running:
        running.worker(plugins=plugins(failing=Failing))
        with Site(pages) as site:
            await running.submit(site.url(), plugin=["failing"], per_host=4)
            found = await running.finished()
            asked = Counter(site.paths())
    assert {site.url(path) for path in pages} == found.keys()
    for kind in kinds:
        record = found[site.url(f"/{kind}")]
        assert ("dead", 1, 200) == (record["outcome"], record["attempt"], record["status"])
        assert "plugin_failed" == record["error"]["code"]
        assert record["error"]["message"].startswith("plugin failing, enrich: "), record["error"]
        assert 1 == asked[f"/{kind}"]
    assert "ZeroDivisionError" in found[site.url("/raise")]["error"]["message"]
    assert {"fetched"} == {found[site.url(path)]["outcome"] for path in ("/", *good)}


async def test_pages_of_a_plugin_that_was_mended_can_be_put_back(
    crawling: Crawling,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FAULTS, "page", lambda: 1 // 0)
    async with crawling(workers=0) as running:
        running.worker(plugins=plugins(failing=Failing))
        with Site({"/page": Page(title="page")}) as site:
            await running.submit(site.url("/page"), plugin=["failing"], keep_open=True)

            async def counted(name: str) -> bool:
                return (await running.counters())[name] == 1

            await until(lambda: counted("dead"), within_s=60)
            monkeypatch.setitem(FAULTS, "page", dict)
            services = Services(running.coord, running.client, running.settings.cluster)
            assert 1 == await put_back_all(services, "job")
            await until(lambda: counted("fetched"), within_s=60)
            (record,) = (await running.records()).values()
    assert ("fetched", "page", None) == (record["outcome"], record["title"], record["error"])


async def test_headers_that_would_break_the_request_are_never_sent(crawling: Crawling) -> None:
    async with crawling(workers=0) as running:
        running.worker(plugins=plugins(bad=BadHeaders))
        with Site({"/": Page()}) as site:
            await running.submit(site.url(), plugin=["bad"])
            (record,) = (await running.finished()).values()
            assert ["/robots.txt"] == site.paths()
    assert ("dead", "plugin_failed", None) == (
        record["outcome"], record["error"]["code"], record["status"],
    )  # fmt: skip
    assert "Host: it is set for each request" in record["error"]["message"]


async def test_a_job_whose_plugin_does_not_open_is_refused_and_others_go_on(
    crawling: Crawling,
) -> None:
    async with crawling(workers=0) as running:
        running.worker(plugins=plugins(stubborn=Stubborn))

        async def says_why() -> bool:
            nodes = await running.coord.members.list()
            reasons = [reason for node in nodes for reason in node.info.reasons]
            wanted = "job stuck: plugin stubborn, opened: RuntimeError: no door for stubborn"
            return wanted in reasons

        with Site({"/": Page()}) as site:
            await running.submit(site.url(), job="stuck", plugin=["stubborn"])
            await until(says_why, within_s=60)
            await running.submit(site.url(), job="other")
            assert {site.url()} == (await running.finished("other")).keys()


@pytest.mark.parametrize("opens", [True, False])
async def test_no_other_job_waits_for_a_plugin_that_is_slow_to_open(
    crawling: Crawling, opens: bool
) -> None:
    """It is made once, and closed where its worker ends before it is open."""
    Slow.may_open = asyncio.Event()
    Slow.events.clear()
    async with crawling(workers=0) as running:
        worker = running.worker(plugins=plugins(slow=Slow))
        with Site({"/": Page()}) as site:
            await running.submit(site.url(), job="slow", plugin=["slow"])
            await until_true(lambda: ["opening"] == Slow.events)
            await running.submit(site.url(), job="other")
            assert {site.url()} == (await running.finished("other")).keys()
            assert ["opening"] == Slow.events
            if opens:
                Slow.may_open.set()
                assert {site.url()} == (await running.finished("slow")).keys()
            await worker.end()
    assert ["opening", *["opened"] * opens, "closed"] == Slow.events
