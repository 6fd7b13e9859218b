"""Field reports about sitemaps, and what a crawl makes of them: real crawls, run together."""

from __future__ import annotations

import gzip
import itertools
import time
from typing import Any, Final

import msgspec

from tests.support.concert import Concert, Stage
from tests.support.crawling import Crawls, crawls
from tests.support.rawserver import Exchange, RawServer, Reply, Script, page
from tests.support.waiting import until_true

CONCERT: Final = Concert()
HTML = b"Content-Type: text/html"
XML = b"Content-Type: application/xml"
GZIP = b"Content-Encoding: gzip"


def urlset(*entries: str) -> bytes:
    body = "".join(f"<url>{entry}</url>" for entry in entries)
    return f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{body}</urlset>'.encode()


def locs(*urls: str) -> bytes:
    return urlset(*(f"<loc>{url}</loc>" for url in urls))


def index(*urls: str) -> bytes:
    found = "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls)
    return f"<sitemapindex>{found}</sitemapindex>".encode()


def xml(body: bytes, *fields: bytes) -> Reply:
    return Reply(page(body, headers=(XML, *fields)))


async def any_page(_: Exchange) -> Reply:
    return Reply(page(b"<title>page</title>", headers=(HTML,)))


class Pages(dict[str, Script]):
    """Every path without a script of its own is a page, but for robots.txt and sitemaps."""

    def get(self, key: str, default: Any = None) -> Any:
        if key in self or "sitemap" in key or key == "/robots.txt":
            return super().get(key, default)
        return any_page


def named(*paths: str) -> Reply:
    lines = "".join(f"Sitemap: {path}\n" for path in paths)
    return Reply(page(f"User-agent: *\nDisallow: /no\n{lines}".encode()))


async def sitemaps_of(running: Crawls, shards: int = 2) -> dict[str, dict[str, Any]]:
    """Return what became of every sitemap, by path."""
    found = {}
    for shard in range(shards):
        (flat,) = await running.client.commands([("HGETALL", running.keys(shard).sitemaps)])
        for url, record in zip(flat[::2], flat[1::2], strict=True):
            found["/" + url.decode().split("/", 3)[3]] = msgspec.json.decode(record)
    return found


@CONCERT.test
async def test_h19_a_sitemap_is_gzip_when_its_bytes_are(stage: Stage) -> None:
    """A .gz that was decoded already, or never was gzip, failed to parse; CDATA was missed."""
    files = {
        "/sitemap-plain.xml.gz": xml(locs("/plain")),
        "/sitemap-packed.xml.gz": xml(gzip.compress(locs("/packed"))),
        "/sitemap-coded.xml.gz": xml(gzip.compress(locs("/coded")), GZIP),
        "/sitemap-twice.xml.gz": xml(gzip.compress(gzip.compress(locs("/twice"))), GZIP),
        "/sitemap-named.xml": xml(gzip.compress(locs("/named"))),
        "/sitemap-cdata.xml": xml(locs("<![CDATA[/cdata?a=1&b=2]]>")),
    }
    async with (
        RawServer(Pages({**files, "/robots.txt": named(*files)})) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(site.url("/"), sitemaps=True)
        found = await running.finished()
    expected = ["/", "/plain", "/packed", "/coded", "/twice", "/named", "/cdata?a=1&b=2"]
    assert {site.url(path) for path in expected} == found.keys()
    assert site.url("/sitemap-cdata.xml") == found[site.url("/cdata?a=1&b=2")]["referrer"]


@CONCERT.test
async def test_h34_blanks_before_the_xml_do_not_matter(stage: Stage) -> None:
    """A blank line before the declaration: parse error, and no URL at all."""
    head = b"\n\n  \t\r\n<?xml version='1.0' encoding='UTF-8'?>\n"
    async with (
        RawServer(Pages({"/sitemap.xml": xml(head + locs("/a", "/b"))})) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(site.url("/"), sitemaps=True)
        found = await running.finished()
    assert {site.url(path) for path in ("/", "/a", "/b")} == found.keys()


@CONCERT.test
async def test_sitemaps_are_found_spaced_and_no_pages(stage: Stage) -> None:
    """An index of several, each request a delay apart; they count as no pages and no records."""
    times: list[float] = []

    def timed(reply: Reply) -> Script:
        async def script(_: Exchange) -> Reply:
            times.append(time.monotonic())
            return reply

        return script

    ranked = urlset(
        "<loc>/low</loc><priority>0.1</priority>",
        "<loc>/top</loc><lastmod>2026-11-01</lastmod><priority>1.0</priority>",
        "<loc>/usual</loc>",
    )
    scripts = {
        "/robots.txt": named("/sitemap-index.xml", "http://elsewhere.test/sitemap.xml"),
        "/sitemap-index.xml": xml(index("/sitemap-1.xml", "/no/sitemap.xml", "/sitemap-down.xml")),
        "/sitemap-1.xml": xml(ranked),
        "/sitemap-down.xml": Reply(b"", end="reset"),
    }
    pages = {path: Reply(page(b"<title>x</title>")) for path in ("/", "/low", "/top", "/usual")}
    async with (
        RawServer({path: timed(reply) for path, reply in (scripts | pages).items()}) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(
            site.url("/"), sitemaps=True, delay=0.3, retries=1, max_pages=5, shards=1
        )
        found = await running.finished()
        counters = await running.counters()
        sitemaps = await sitemaps_of(running, shards=1)
    assert {site.url(path) for path in pages} == found.keys()
    assert {"fetched"} == {record["outcome"] for record in found.values()}
    assert (4, 4, 5) == (counters["discovered"], counters["fetched"], counters["sitemaps"])
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.29
    top = found[site.url("/top")]
    assert ("2026-11-01", 1.0, 1) == (top["lastmod"], top["priority"], top["depth"])
    asked = [request.target for request in site.requests]
    assert asked.index("/top") < asked.index("/usual") < asked.index("/low")
    assert "/no/sitemap.xml" not in asked
    assert "Disallow: /no" == sitemaps["/no/sitemap.xml"]["rule"]
    assert ("urlset", 3) == (
        sitemaps["/sitemap-1.xml"]["kind"],
        sitemaps["/sitemap-1.xml"]["pages"],
    )
    assert 404 == sitemaps["/sitemap.xml"]["status"]
    assert "connection_reset" == sitemaps["/sitemap-down.xml"]["error"]["code"]


@CONCERT.test
async def test_a_job_does_not_end_while_a_sitemap_loads(stage: Stage) -> None:
    async def slow(exchange: Exchange) -> Reply:
        await exchange.pause(3.0)
        return xml(locs("/late"))

    async with (
        RawServer(Pages({"/sitemap.xml": slow})) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=2) as running,
    ):
        await running.submit(site.url("/"), sitemaps=True)
        found = await running.finished()
    assert {site.url("/"), site.url("/late")} == found.keys()


@CONCERT.test
async def test_a_sitemap_whose_worker_dies_is_read_by_the_next(stage: Stage) -> None:
    async def slow_once(exchange: Exchange) -> Reply:
        asked = [one for one in site.requests if one.target == "/sitemap.xml"]
        if len(asked) == 1:
            await exchange.pause(60.0)
        return xml(locs("/late"))

    async with (
        RawServer(Pages({"/sitemap.xml": slow_once})) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=0) as running,
    ):
        dies = running.process("dies")
        await running.submit(site.url("/"), sitemaps=True, timeout=5.0)
        await until_true(
            lambda: any(one.target == "/sitemap.xml" for one in site.requests), within_s=60
        )
        dies.kill()
        running.worker("next")
        found = await running.finished()
        counters = await running.counters()
    assert {site.url("/"), site.url("/late")} == found.keys()
    assert 1 == counters["sitemaps"]


@CONCERT.test
async def test_bombs_loops_and_entities_of_sitemaps_are_harmless(stage: Stage) -> None:
    """Nothing is expanded, no index leads on for ever, and the crawl ends with what is real."""
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    entities = (
        f'<!DOCTYPE urlset [<!ENTITY l0 "ha">{laughs}<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    )
    bomb = gzip.compress(locs("/before") + b" " * 120_000_000)

    async def deeper(exchange: Exchange) -> Reply:
        here = exchange.request.target
        return xml(index(*(f"{here}{n}" for n in range(3))))

    class Endless(Pages):
        def get(self, key: str, default: Any = None) -> Any:
            return deeper if key.startswith("/sitemap-deeper") else super().get(key, default)

    tricky = locs("/l?&l9;", "/x?&x;", "/real?a=1&amp;b=2", "/with&#x26;number")
    scripts: dict[str, Script] = {
        "/robots.txt": named(
            "/sitemap-entities.xml", "/sitemap-bomb.xml", "/sitemap-deeper", "/sitemap-self.xml",
            "/sitemap-html.xml", "/sitemap-moved.xml",
        ),
        "/sitemap-entities.xml": xml(entities.encode() + tricky),
        "/sitemap-bomb.xml": xml(bomb),
        "/sitemap-self.xml": xml(index("/sitemap-self.xml", "/sitemap-self.xml#x")),
        "/sitemap-html.xml": Reply(page(b"<html><a href=/soft404>x</a></html>")),
        "/sitemap-moved.xml": Reply(
            page(b"", status="301 Moved", headers=(b"Location: /sitemap-there.xml",))
        ),
        "/sitemap-there.xml": xml(locs("/moved")),
    }  # fmt: skip
    async with (
        RawServer(Endless(scripts)) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(site.url("/"), sitemaps=True, per_host=4)
        found = await running.finished()
        sitemaps = await sitemaps_of(running)
    paths = ["/", "/before", "/real?a=1&b=2", "/with&number", "/moved"]
    assert {site.url(path) for path in paths} == found.keys()
    assert not sitemaps["/sitemap-bomb.xml"]["is_whole"]
    assert "not_sitemap" == sitemaps["/sitemap-html.xml"]["kind"]
    assert 1 + 3 + 9 + 27 == sum(path.startswith("/sitemap-deeper") for path in sitemaps)


@CONCERT.test
async def test_without_the_option_no_sitemap_is_asked_for(stage: Stage) -> None:
    async with (
        RawServer(Pages({"/robots.txt": named("/sitemap.xml")})) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(site.url("/"))
        await running.finished()
        await running.submit(site.url("/"), job="seeds-only", sitemaps=True, max_depth=0)
        await running.finished("seeds-only")
    assert not [one for one in site.requests if "sitemap" in one.target]


@CONCERT.test
async def test_sitemaps_lie_outside_of_the_folder_that_a_crawl_keeps_to(stage: Stage) -> None:
    """With ``--scope prefix`` none was read: most stand at the top of their host."""
    async with (
        RawServer(Pages({"/other-sitemap.xml": xml(locs("/docs/other"))})) as other,
        RawServer(
            Pages(
                {
                    "/robots.txt": named("/top/sitemap-index.xml", other.url("/other-sitemap.xml")),
                    "/top/sitemap-index.xml": xml(index("/top/sitemap-1.xml")),
                    "/top/sitemap-1.xml": xml(locs("/docs/deep", "/blog/out")),
                    "/sitemap.xml": xml(locs("/docs/top")),
                }
            )
        ) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        await running.submit(site.url("/docs/"), sitemaps=True, scope="prefix")
        found = await running.finished()
        filtered = (await running.counters())["filtered"]
    assert {site.url(f"/docs/{name}") for name in ("", "deep", "top")} == found.keys()
    assert not other.requests
    assert 1 == filtered, "the page outside"
