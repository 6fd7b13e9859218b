"""Pages: links in document order, resolved as browsers do, remembered without mixing sites up."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.web.html import MAX_TITLE_CHARS, HtmlParser, Page, is_html
from common.web.references import LinkResolver
from common.web.url import canonicalize

_FOLLOW = frozenset(("a", "area", "iframe", "frame", "meta-refresh"))
_URL = "http://h.example/dir/page.html?q=1"


def _parse(
    html: str | bytes,
    *,
    url: str = _URL,
    content_type: str | None = "text/html; charset=utf-8",
    follow: frozenset[str] = _FOLLOW,
) -> Page:
    body = html.encode() if isinstance(html, str) else html
    return HtmlParser().parse(body, url=url, content_type=content_type, follow=follow)


def test_links_of_all_followed_tags_come_in_document_order() -> None:
    page = _parse(
        "<meta http-equiv=Refresh content='0; url=m'><a href=1></a><iframe src=2></iframe>"
        "<area href=3><link href=no><img src=no><a href=1></a><a href='mailto:a@b'></a>"
    )
    assert page.links == [f"http://h.example/dir/{name}" for name in ("m", "1", "2", "3")]
    assert page.found == 5


def test_only_the_tags_asked_for_are_followed() -> None:
    html = "<a href=1></a><link rel=next href=2>"
    assert _parse(html, follow=frozenset(("link",))).links == ["http://h.example/dir/2"]
    assert _parse(html, follow=frozenset()).links == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("5;url=n", ["http://h.example/dir/n"]),
        ("0; URL='n x' y", ["http://h.example/dir/n%20x"]),
        ('.5,"n"', ["http://h.example/dir/n"]),
        ("3 n", ["http://h.example/dir/n"]),
        ("10", []),
        ("x;url=n", []),
        ("", []),
    ],
)
def test_meta_refresh(content: str, expected: list[str]) -> None:
    escaped = content.replace('"', "&quot;")
    assert _parse(f'<meta http-equiv="refresh" content="{escaped}">').links == expected


def test_a_fragment_alone_is_no_link_unless_the_base_is_elsewhere() -> None:
    assert _parse("<a href='#top'></a>").links == []
    assert _parse("<base href=/other><a href='#top'></a>").links == ["http://h.example/other"]


def test_a_base_that_cannot_be_crawled_takes_relative_links_with_it() -> None:
    page = _parse("<base href='ftp://f/'><a href=x></a><a href='http://o/y'></a>")
    assert page.links == ["http://o/y"]


def test_an_attribute_that_only_looks_like_href_is_no_link() -> None:
    """Matching by local name found ``xlink:href``, whose value then was missing: an exception."""
    assert _parse("<svg><a xlink:href=s></a></svg><a href=x></a>").links == [
        "http://h.example/dir/x"
    ]


def test_references_that_mean_something_else_on_each_page_are_not_remembered() -> None:
    parser = HtmlParser()
    html = b"<a href='?n'></a><a href=''></a><a href=' \t'></a><a href='\n?m'></a><a href=x></a>"
    for name in ("one", "two"):
        page = parser.parse(html, url=f"http://h/d/{name}?a=/b/", content_type=None, follow=_FOLLOW)
        assert page.links == [
            f"http://h/d/{name}?n",
            f"http://h/d/{name}?a=/b/",
            f"http://h/d/{name}?m",
            "http://h/d/x",
        ]


_REFERENCE = st.text(alphabet="/?#.:ah\\\t %2e@", max_size=12)
_PAGE = st.sampled_from(
    [
        "http://h/", "http://h/a", "http://h/a/b", "http://h/a/b?c/d", "https://h/a/b",
        "http://h:8080/a/b", "http://o/a/b", "http://h/a/b/c/",
    ]
)  # fmt: skip


@given(st.lists(st.tuples(_PAGE, st.lists(_REFERENCE, unique=True)), max_size=6))
def test_a_remembered_reference_means_what_it_means_afresh(
    pages: list[tuple[str, list[str]]],
) -> None:
    resolver = LinkResolver(max_entries=20)
    for url, references in pages:
        expected = dict.fromkeys(canonicalize(raw, url) for raw in references)
        expected.pop(None, None)
        assert resolver.resolve(references, base=url) == list(expected)


def test_the_memo_is_bounded() -> None:
    resolver = LinkResolver(max_entries=1000)
    for site in range(200):
        references = [f"/{number}" for number in range(100)] + ["x" * 5000]
        found = resolver.resolve(references, base=f"http://h{site}/{site}/")
        assert len(found) == 101
        assert resolver.entries < 1100


def test_titles_are_made_readable() -> None:
    assert _parse("<title>\n two\t words\x7f\x01 </title>").title == "two words"
    assert _parse("<svg><title>shape</title></svg><title>page</title>").title == "page"
    assert _parse("<title></title>").title is None
    assert _parse("<p>none").title is None
    assert _parse("<title>" + "x " * 9000 + "</title>").title == ("x " * 250).strip()
    assert len(_parse("<title>" + "y" * 10_000_000).title or "") == MAX_TITLE_CHARS


def test_a_query_is_encoded_in_the_encoding_of_its_page() -> None:
    html = "<a href='/п?q=п#п'></a><a href='?q=€&#x1F600;'></a>".encode("cp1251")
    page = _parse(html, content_type="text/html; charset=windows-1251")
    assert page.encoding == "windows-1251"
    assert page.links == [
        "http://h.example/%D0%BF?q=%EF",
        "http://h.example/dir/page.html?q=%88%26%23128512%3B",
    ]


def test_a_byte_order_mark_beats_the_header() -> None:
    """A UTF-8 page served as windows-1251 had a garbled title and garbled links."""
    page = _parse(
        "\ufeff<title>Привет</title><a href='/é'></a>", content_type="text/html; charset=cp1251"
    )
    assert page.encoding == "utf-8"
    assert page.title == "Привет"
    assert page.links == ["http://h.example/%C3%A9"]


@pytest.mark.parametrize(
    ("content_type", "start", "expected"),
    [
        ("text/html", b"", True),
        ("TEXT/HTML; charset=x", b"plain", True),
        ("application/xhtml+xml", b"", True),
        ("text/plain", b"<html>", False),
        ("application/xml", b"<?xml?><html>", False),
        (None, b" \n<!doctype html>", True),
        (None, b"\xef\xbb\xbf<p>", True),
        ("", b"<?xml version='1.0'?><urlset>", False),
        ("", b"<?xml version='1.0'?><html>", True),
        (None, b"plain", False),
        (None, b"", False),
    ],
)
def test_what_counts_as_a_page(content_type: str | None, start: bytes, expected: bool) -> None:
    assert is_html(content_type, start) is expected


@given(st.binary(max_size=300))
def test_any_bytes_are_a_page(body: bytes) -> None:
    for content_type in (None, "text/html; charset=utf-16", "text/html; charset=iso-2022-jp"):
        page = _parse(body, content_type=content_type)
        assert all(canonicalize(link) == link for link in page.links)


_TAGS = [
    "<a href=1>", "</a>", "<p>", "<table>", "<tr>", "</table>", "<b id=2>", "<svg>", "<template>",
    "<base href=/b/>", "<title>", "<!--", "-->", "<select>", "<iframe src=3>", "<script>", "\0",
    "</script>", "<frameset>", "<frame src=4>", "<math><mi>", "&#0;",
    "<meta http-equiv=refresh content='0;5'>",
]  # fmt: skip


@given(st.lists(st.sampled_from(_TAGS), max_size=40))
def test_any_soup_is_a_page(parts: list[str]) -> None:
    page = _parse("".join(parts))
    assert len(page.links) == len(set(page.links)) <= page.found


def test_a_page_of_very_many_links_gives_them_all() -> None:
    page = _parse("".join(f"<li><a href=/p/{number}>x</a>" for number in range(50_000)))
    assert len(page.links) == page.found == 50_000


@pytest.mark.parametrize(
    "soup",
    [
        "<div>" * 300_000,
        "<div>" * 200_000 + "</div>" * 200_000,
        "<p>" + "".join(f"<font size={number}>" for number in range(2000)) + "<p>x" * 2000,
        "<b " + " ".join(f"a{number}" for number in range(100_000)) + ">",
        "<i>" * 600_000,
        "<a " * 200_000 + ">",
    ],
    ids=["nest", "closed nest", "formatting", "attributes", "many", "cut tags"],
)
def test_hostile_pages_cost_little_and_keep_their_links(soup: str) -> None:
    """Pages like these took a tree builder minutes or gigabytes."""
    begin = time.process_time()
    page = _parse(f"<title>t</title><base href=/b/><a href=first></a>{soup}<a class=x href='last'>")
    assert time.process_time() - begin < 5
    assert page.title == "t"
    assert page.links == ["http://h.example/b/first", "http://h.example/b/last"]


def test_what_is_no_markup_stays_out_of_a_flattened_page() -> None:
    soup = "<div>" * 300_000
    page = _parse(
        f"{soup}<!-- <a href=no> --><script>'<a href=no>'</script><textarea><a href=no></TEXTAREA>"
        "<a href='x y'>1</a><!-- unclosed <a href=no>"
    )
    assert page.links == ["http://h.example/dir/x%20y"]
