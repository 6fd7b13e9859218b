"""Sitemaps: bounds and oddities beyond the corpus."""

from __future__ import annotations

import gzip
import time
import tracemalloc

import pytest

from common.web.sitemap import MAX_BYTES, MAX_CHILDREN, MAX_ENTRIES, parse

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
