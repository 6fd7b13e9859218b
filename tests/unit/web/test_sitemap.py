"""Sitemaps: bounds and oddities beyond the corpus, and the order in which pages are taken."""

from __future__ import annotations

import gzip
import time
import tracemalloc

import pytest

from common.web.sitemap import MAX_BYTES, parse, resolved
from common.web.sitemap_reader import MAX_CHILDREN, MAX_ENTRIES

BASE = "http://h.test/deep/sitemap.xml"
URL = b"<url><loc>http://h.test/%d</loc></url>"


def urls(count: int) -> bytes:
    return b"<urlset>" + b"".join(URL % number for number in range(count)) + b"</urlset>"


@pytest.mark.parametrize(("count", "is_whole"), [(MAX_ENTRIES, True), (MAX_ENTRIES + 1, False)])
def test_a_file_names_as_many_pages_as_the_protocol_allows(
    count: int,
    is_whole: bool,
) -> None:
    found = parse(urls(count))
    assert (len(found.pages), found.is_whole) == (MAX_ENTRIES, is_whole)


def test_an_index_names_a_bounded_number_of_sitemaps() -> None:
    one = b"<sitemap><loc>/s%d</loc></sitemap>"
    body = b"<sitemapindex>" + b"".join(one % number for number in range(MAX_CHILDREN + 5))
    found = parse(body)
    assert (found.kind, len(found.children), found.is_whole) == ("index", MAX_CHILDREN, False)
    assert found.pages == []


def test_a_bomb_costs_neither_memory_nor_what_came_before_it() -> None:
    bomb = gzip.compress(urls(3) + b" " * (2 * MAX_BYTES), 9)
    tracemalloc.start()
    try:
        found = parse(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found.pages), found.is_whole) == (3, False)
    assert peak < 5_000_000


@pytest.mark.parametrize(
    "evil",
    [
        b"<urlset>" + b"<" * 400_000,
        b"<urlset>" + b"<url>" * 100_000,
        b"<urlset><url><loc>" + b"&" * 3_000_000,
        b"<urlset>" + b"<!--" * 700_000,
        b"<urlset><url><loc>" + b"<![CDATA[" * 300_000,
        b"<feed><entry>" + (b"<link " + b"a" * 60_000 + b">") * 50,
        b"<feed><entry><link " + b"a=" * 1_500_000,
        b"<!DOCTYPE urlset [" + b"<!ENTITY a '" * 200_000,
    ],
)
def test_what_a_file_costs_grows_with_its_size_at_most(evil: bytes) -> None:
    began = time.process_time()
    parse(evil)
    assert time.process_time() - began < 15


def test_entities_are_undone_once_and_unknown_ones_spoil_their_url_only() -> None:
    body = b"""<!DOCTYPE u [<!ENTITY x "http://evil.test/">]><urlset>
    <url><loc>/a?b=1&amp;amp;c</loc></url><url><loc>&x;</loc></url><url><loc>/z&#0;</loc></url>
    <url><loc>/n&#38;m&#x27;</loc></url><url><loc><![CDATA[/raw&amp;]]></loc></url></urlset>"""
    assert [entry.url for entry in parse(body).pages] == ["/a?b=1&amp;c", "/n&m'", "/raw&amp;"]


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("<urlset><!--{}-->", "<url><loc>http://h.test/?a=1&amp;b=\u00e4\u2603</loc></url>"),
        (
            "<urlset><!--{}-->",
            "<url><loc><![CDATA[http://h.test/?a=1&b=\u00e4\u2603]]></loc></url>",
        ),
        ("{}", "http://h.test/?a=1&b=\u00e4\u2603\n"),
    ],
)
@pytest.mark.parametrize("coding", ["utf-8", "utf-16"])
def test_where_a_file_is_cut_into_pieces_changes_nothing(head: str, line: str, coding: str) -> None:
    for shift in range(len(line.encode(coding))):
        body = (head.format(" " * shift) + line * 1100).encode(coding)
        assert {"http://h.test/?a=1&b=\u00e4\u2603"} == {entry.url for entry in parse(body).pages}


@pytest.mark.parametrize("head", ["<!--{}-->", "<?xml {}?>", "<!DOCTYPE u [{}]>", "{}"])
@pytest.mark.parametrize("size", [65_000, 66_000, 140_000])
def test_what_stands_before_the_first_tag_may_be_long(head: str, size: int) -> None:
    body = head.format(" " * size) + "<urlset><url><loc>/a</loc></url></urlset>"
    found = parse(body.encode())
    assert ("urlset", ["/a"]) == (found.kind, [entry.url for entry in found.pages])


def test_a_short_file_may_end_with_any_character() -> None:
    found = parse("http://h.test/caf\u00e9".encode("latin-1"))
    assert ["http://h.test/caf\u00e9"] == [entry.url for entry in found.pages]


def test_nul_in_a_line_of_text_spoils_its_url_only() -> None:
    found = parse(b"http://h.test/a\nhttp://h.test/\0b\nhttp://h.test/c\n")
    assert ["http://h.test/a", "http://h.test/c"] == [entry.url for entry in found.pages]


def test_priorities_and_dates_that_make_no_sense_are_left_out() -> None:
    def entry(priority: str, lastmod: str) -> str:
        return f"<url><loc>/</loc><priority>{priority}</priority><lastmod>{lastmod}</lastmod></url>"

    body = "<urlset>" + entry("nan", "yesterday") + entry("7", "2026-11-30T04:30:00+01:00")
    first, second = parse(body.encode()).pages
    assert (first.priority, first.lastmod) == (None, None)
    assert (second.priority, second.lastmod) == (1.0, "2026-11-30T04:30:00+01:00")


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
