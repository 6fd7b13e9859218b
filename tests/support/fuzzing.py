"""Hostile inputs for everything that reads bytes of the web, and what must hold of each.

``CHECKS`` are functions of a Hypothesis data object. CI draws a few hundred examples of each
(tests/unit/web/test_fuzz.py), ``scripts/fuzz`` draws for as long as it is told to.
"""

# ruff: noqa: E501 - rows of fragments

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Final

from hypothesis import strategies as st

from common.web import charset, cleaning, directives, retry, simhash, sitemap, soup, traps
from common.web.html import HtmlParser
from common.web.robots import RobotsRules
from common.web.sitemap_reader import MAX_CHILDREN, MAX_ENTRIES
from common.web.url import MAX_URL_BYTES, canonicalize, header_reference, host_key
from worker.content_coding import codings_of, open_decoder
from worker.fetch_errors import FetchFault

Draw = st.DataObject
LIMIT_BYTES: Final = 200_000

_HOSTS: Final = (
    "h.test",
    "[::1]",
    "127.0.0.1:8",
    "xn--bcher-kva.test",
    "a..b",
    "h.test.",
    "%41.test",
)
_PIECES: Final = st.sampled_from(
    ["http://", "https:", "//", "/", "\\", "?", "#", "@", ":", "%", "%2e", "%zz", "..", ";", "&", "=",
     "\t", "\n", "\0", "ä", "\ud800", "\u202e", "javascript:", "data:,", "a" * 500, *_HOSTS]
)  # fmt: skip
_MARKUP: Final = st.sampled_from(
    [b"<", b">", b"</", b"/>", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"<?xml ", b"?>", b"<!DOCTYPE x [",
     b"<!ENTITY a '", b"&a;", b"&#x0;", b"&#38;", b"<a href='", b"<a rel=nofollow href=/x>", b"'", b'"',
     b"<base href=//h/>", b"<title>", b"</title>", b"<script>", b"<font>", b"<p>", b"<table>", b"<svg>",
     b"<meta charset=", b"utf-16", b"<meta http-equiv=refresh content='0;url=", b"<meta name=robots content=",
     b"none,", b"<link rel=canonical href=", b"<urlset>", b"<url>", b"<loc>", b"http://h.test/", b"</loc>",
     b"</url>", b"<sitemapindex>", b"<sitemap>", b"<feed>", b"<entry>", b"<link href='/x'/>", b"<rss>",
     b"<item>", b"<priority>", b"9e999", b"<lastmod>", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\0", b"\x1b[2J"]
)  # fmt: skip
_ROBOTS: Final = st.sampled_from(
    [b"User-agent: ", b"*", b"crawlctl", b"\n", b"\r", b"Disallow: ", b"Allow: ", b"/", b"*", b"$", b"%2f",
     b"Crawl-delay: ", b"1e999", b"-1", b"nan", b"Sitemap: ", b"http://h.test/s", b"#", b":", b"\xff", b"\0"]
)  # fmt: skip


def _bytes_of(pieces: st.SearchStrategy[bytes], *, most: int = 60) -> st.SearchStrategy[bytes]:
    return st.lists(pieces | st.binary(max_size=12), max_size=most).map(b"".join)


def check_url(data: Draw) -> None:
    """A canonical URL is ASCII, bounded, http or https, and its own canonical form."""
    text = data.draw(st.lists(_PIECES | st.text(max_size=8), max_size=20).map("".join))
    for base in (None, "http://h.test/a/b?c"):
        found = canonicalize(text, base)
        if found is None:
            continue
        assert found.isascii()
        assert len(found) <= MAX_URL_BYTES
        assert found.startswith(("http://", "https://"))
        assert canonicalize(found) == found
        assert host_key(found)
        cleaned = cleaning.Cleaner(cleaning.STEPS)(found)
        assert canonicalize(cleaned) == cleaned
        traps.Traps(traps.TRAPS).refusal(found)


def check_html(data: Draw) -> None:
    """Any page is read: its links are canonical, its words printable, its hash well formed."""
    body = data.draw(_bytes_of(_MARKUP)) * data.draw(st.sampled_from((1, 1, 1, 50)))
    parser = HtmlParser(with_simhash=True)
    follow = frozenset(("a", "area", "iframe", "frame", "meta-refresh", "link", "canonical"))
    kind = data.draw(st.sampled_from((None, "text/html", "text/html; charset=utf-16")))
    page = parser.parse(body, url="http://h.test/", content_type=kind, follow=follow)
    assert all(canonicalize(link) == link for link in page.links)
    assert page.canonical is None or canonicalize(page.canonical) == page.canonical
    assert page.nofollow <= set(page.links) | page.nofollow
    assert "\x1b" not in (page.title or "")
    assert page.simhash is None or len(page.simhash) == 16
    soup.flattened(body)
    simhash.simhash(body.decode("latin-1"))


def check_charset(data: Draw) -> None:
    """Whatever is declared, there is a codec that decodes the body."""
    body = data.draw(_bytes_of(_MARKUP))
    field = data.draw(st.none() | st.text(max_size=30).map("text/html; charset={}".format))
    found = charset.sniff(body, field)
    charset.without_mark(body).decode(found.codec, "replace")


def check_robots(data: Draw) -> None:
    """Any file gives a verdict; delays are finite and sitemaps few."""
    body = data.draw(_bytes_of(_ROBOTS, most=200))
    rules = RobotsRules.parse(body, user_agent="crawlctl/1")
    for path in ("/", "/a?b", "/%2f", "/" + "a" * 300):
        rules.verdict(f"http://h.test{path}")
    assert rules.crawl_delay_s is None or 0 <= rules.crawl_delay_s <= 86_400
    assert len(rules.sitemaps) <= 1000


def check_sitemap(data: Draw) -> None:
    """Any file gives entries within the bounds, packed or not."""
    body = data.draw(_bytes_of(_MARKUP)) * data.draw(st.sampled_from((1, 1, 200)))
    match data.draw(st.sampled_from(("plain", "gzip", "cut"))):
        case "gzip":
            body = gzip.compress(body, mtime=0)
        case "cut":
            body = gzip.compress(body, mtime=0)[: data.draw(st.integers(2, 60))]
    found = sitemap.parse(body)
    assert len(found.pages) <= MAX_ENTRIES
    assert len(found.children) <= MAX_CHILDREN
    for entry in found.pages + found.children:
        assert len(entry.url) <= MAX_URL_BYTES
        assert "\0" not in entry.url
        assert entry.priority is None or 0 <= entry.priority <= 1
        canonicalize(entry.url, "http://h.test/")


def check_headers(data: Draw) -> None:
    """Fields of a response are read or refused by a fault of ours."""
    raw = data.draw(st.binary(max_size=60))
    assert header_reference(raw).isascii()
    text = raw.decode("latin-1")
    after_s = retry.parse_retry_after(text, now_s=1e9)
    assert after_s is None or 0 <= after_s <= retry.MAX_RETRY_AFTER_S
    directives.of_header([text, f"crawlctl: {text}"], agent="crawlctl")
    try:
        codings_of([text, f"gzip, {text}"])
    except FetchFault:
        return


def check_coding(data: Draw) -> None:
    """A coded body decodes within the limit or is refused by a fault of ours."""
    body = data.draw(st.binary(max_size=300))
    names = data.draw(st.lists(st.sampled_from(("gzip", "deflate")), min_size=1, max_size=3))
    if data.draw(st.booleans()):
        for name in names:
            body = gzip.compress(body, mtime=0) if name == "gzip" else zlib.compress(body)
        at = data.draw(st.integers(0, len(body)))
        body = body[:at] + data.draw(st.binary(max_size=3)) + body[at + 1 :]
    decoder = open_decoder(names, limit_bytes=LIMIT_BYTES)
    total = 0
    try:
        for start in range(0, len(body), 50):
            total += len(decoder.feed(body[start : start + 50]))
            assert total <= LIMIT_BYTES + 1
    except FetchFault:
        return


CHECKS: Final[dict[str, Callable[[Draw], None]]] = {
    "url": check_url, "html": check_html, "charset": check_charset, "robots": check_robots,
    "sitemap": check_sitemap, "headers": check_headers, "coding": check_coding,
}  # fmt: skip
