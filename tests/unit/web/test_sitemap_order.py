"""In which order the pages of a sitemap are taken."""

from __future__ import annotations

from common.web.sitemap import parse, resolved

BASE = "http://h.test/deep/sitemap.xml"


def urlset(*entries: str) -> bytes:
    return f"<urlset>{''.join(f'<url>{entry}</url>' for entry in entries)}</urlset>".encode()


def test_pages_stand_by_priority_then_newest_first_and_undated_last() -> None:
    found = urlset(
        "<loc>/undated</loc>",
        "<loc>/old</loc><lastmod>2020-01-01</lastmod>",
        "<loc>/new</loc><lastmod>2024-01-01T10:00:00Z</lastmod>",
        "<loc>/low</loc><lastmod>2025-01-01</lastmod><priority>0.1</priority>",
        "<loc>/high</loc><priority>0.9</priority>",
        "<loc>/usual</loc><priority>0.5</priority><lastmod>2022-01-01</lastmod>",
    )
    order = [entry.url for entry in resolved(parse(found), BASE).pages]
    wanted = ["high", "new", "usual", "old", "undated", "low"]
    assert [f"http://h.test/{name}" for name in wanted] == order


def test_where_a_sitemap_says_neither_its_own_order_is_kept() -> None:
    found = urlset(*(f"<loc>/{number}</loc>" for number in range(50)))
    order = [entry.url for entry in resolved(parse(found), BASE).pages]
    assert [f"http://h.test/{number}" for number in range(50)] == order


def test_urls_are_canonical_and_those_that_cannot_be_crawled_left_out() -> None:
    pages = urlset("<loc>HTTP://H.test:80/a/../b#c</loc>", "<loc>ftp://h.test/</loc>")
    assert ["http://h.test/b"] == [entry.url for entry in resolved(parse(pages), BASE).pages]
    index = b"<sitemapindex><sitemap><loc>a.xml</loc></sitemap></sitemapindex>"
    children = resolved(parse(index), BASE).children
    assert ["http://h.test/deep/a.xml"] == [entry.url for entry in children]
