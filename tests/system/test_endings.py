"""Every crawl ends, whatever its pages do."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.cli import assert_none_left, crawlctl, records
from tests.support.site import Page, Request, Site, redirect


def crawl(out: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """Crawl, and return the records by path."""
    ran = crawlctl("crawl", *arguments, "-o", str(out), "--allow-private", "--workers", "1")
    assert 0 == ran.code, ran.err
    assert_none_left(out)
    found = records(out / "results.jsonl")
    assert len(found) == len({one["url"] for one in found})
    return {"/" + str(one["url"]).split("/", 3)[3]: one for one in found}


def test_a_page_that_always_sends_back_to_itself_ends_as_failed(tmp_path: Path) -> None:
    """Hops that did not fit the time of a claim began again with every claim, for ever."""
    pages = {
        "/": Page(links=["/loop", "/after"]),
        "/loop": redirect("/loop#again"),
        "/after": Page(),
    }
    with Site(pages) as site:
        found = crawl(tmp_path / "out", site.url("/"), "--delay", "1", "--retries", "1")
        asked = site.paths().count("/loop")
    assert "failed" == found["/loop"]["outcome"]
    assert "too_many_redirects" == found["/loop"]["error"]["code"]  # type: ignore[index]
    assert "fetched" == found["/after"]["outcome"]
    assert 2 <= asked <= 22


def test_a_bounce_that_takes_longer_than_a_claim_is_answered_at_the_next_attempt(
    tmp_path: Path,
) -> None:
    def bounce(request: Request) -> Page:
        if "ok=1" in request.cookie:
            return Page(title="in")
        return redirect("/", headers=[("Set-Cookie", "ok=1")])

    with Site({"/": bounce}) as site:
        started = time.monotonic()
        found = crawl(tmp_path / "out", site.url("/"), "--delay", "5.5")
        assert time.monotonic() - started < 60
    assert ("fetched", 200) == (found["/"]["outcome"], found["/"]["status"])


def test_robots_rules_behind_a_redirect_are_reached_however_long_the_delay(tmp_path: Path) -> None:
    pages = {
        "/robots.txt": redirect("/robots2.txt"),
        "/robots2.txt": Page(body=b"User-agent: *\nDisallow: /no\n", content_type="text/plain"),
        "/": Page(links=["/no"]),
    }
    with Site(pages) as site:
        found = crawl(tmp_path / "out", site.url("/"), "--delay", "2", "--timeout", "1")
        assert site.min_gap() >= 2
    assert ("fetched", "denied") == (found["/"]["outcome"], found["/no"]["outcome"])


def test_a_chain_of_redirects_from_a_seed_takes_the_scope_along(tmp_path: Path) -> None:
    """As from http to https to www: each host on the way joins."""
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    pages: list[dict[str, Page]] = [{}, {}, {"/": Page(links=["/more"]), "/more": Page()}]
    with Site(pages, addresses=addresses) as site:
        pages[0]["/"] = redirect(site.url("/", host=1))
        pages[1]["/"] = redirect(site.url("/", host=2))
        ran = crawlctl(
            "crawl", site.url("/"), "-o", str(tmp_path / "out"), "--allow-private",
            "--delay", "0.1", "--workers", "1",
        )  # fmt: skip
        assert 0 == ran.code, ran.err
        found = {one["url"]: one["outcome"] for one in records(tmp_path / "out" / "results.jsonl")}
        expected = {
            site.url("/"): "redirected",
            site.url("/", host=1): "redirected",
            site.url("/", host=2): "fetched",
            site.url("/more", host=2): "fetched",
        }
    assert expected == found


def test_a_page_with_very_many_links_costs_no_session(tmp_path: Path) -> None:
    """Heartbeats go on while its links are looked at."""
    links = [f"http://host-{number}.example/" for number in range(150_000)]
    pages = {"/": Page(links=["/big", "/small"]), "/big": Page(links=links), "/small": Page()}
    out = tmp_path / "out"
    with Site(pages) as site:
        found = crawl(out, site.url("/"), "--delay", "0.1")
        assert 1 == site.paths().count("/big")
    assert ("fetched", 150_000) == (found["/big"]["outcome"], found["/big"]["outlinks"])
