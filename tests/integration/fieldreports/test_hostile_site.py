"""Field reports about answers of one site: a single real crawl of everything at once, then judged.

Each test is one report; its docstring names the symptom others have had.
"""

from __future__ import annotations

import asyncio
import gzip
import uuid
import zlib
from typing import NamedTuple

import pytest

from tests.support.crawling import Record, crawls
from tests.support.rawserver import Exchange, RawServer, Reply, Script, page
from tests.support.servers import EtcdServer, RedisServer

HTML = b"Content-Type: text/html; charset=utf-8"
MAX_BODY = 4_000_000
GOOD = b"<title>good</title>"
LONG = {length: "/" + "x" * (length - 1) for length in (1_000, 8_000, 100_000, 2_000_000)}
NORMAL = [f"/normal/{number}" for number in range(5)]
MANY = [f"/many/{number}" for number in range(50)]
CYRILLIC = "Привет, мир"


def moved(target: bytes, *headers: bytes) -> Reply:
    return Reply(page(b"", status="302 Found", headers=(b"Location: " + target, *headers)))


def linking(*targets: str, title: str = "good") -> Reply:
    anchors = "".join(f'<a href="{target.replace("&", "&amp;")}">x</a>' for target in targets)
    return Reply(page(f"<title>{title}</title>{anchors}".encode(), headers=(HTML,)))


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def coded(body: bytes, coding: bytes) -> Reply:
    return Reply(page(body, headers=(HTML, b"Content-Encoding: " + coding)))


def bounce_with(cookie: str, *, to: bytes | None = None) -> Script:
    async def script(exchange: Exchange) -> Reply:
        if cookie in (exchange.request.header("Cookie") or ""):
            return Reply(page(GOOD, headers=(HTML,)))
        target = to or exchange.request.target.encode()
        return moved(target, f"Set-Cookie: {cookie}".encode())

    return script


async def interim(exchange: Exchange) -> Reply:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
    await exchange.send(b"HTTP/1.1 102 Processing\r\n\r\n" + hint)
    await exchange.pause(0.5)
    return Reply(page(b"<title>after hints</title>", headers=(HTML,)))


def endless(kind: bytes, *, every_s: float) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\n\r\n")
        while await exchange.send(b"<p>la</p>" * 1800):
            await exchange.pause(every_s)
        exchange.writer.close()

    return script


async def only_k2(exchange: Exchange) -> Reply:
    is_new = "k=2" in (exchange.request.header("Cookie") or "")
    return Reply(page(GOOD, headers=(HTML,))) if is_new else moved(b"/r")


SHORT = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 10000\r\n"
BOMB = gzip.compress(bytes(16 * 1024 * 1024), 9)

SCRIPTS: dict[str, Script] = {
    "/bounce": bounce_with("s=1"),
    "/order?x=1&y=2": bounce_with("o=1", to=b"/order?y=2&x=1"),
    "/order?y=2&x=1": bounce_with("o=1"),
    "/forever": moved(b"/forever"),
    "/1": linking(),
    "/2": moved(b"/1"),
    **dict.fromkeys(MANY, moved(b"/1")),
    "/fa": moved(b"/fa/\xd8\xa7\xd8\xb9"),
    "/fa/%D8%A7%D8%B9": linking(title="fa"),
    "/A_&_B": moved(b"/A_%26_B"),
    "/A_%26_B": linking(title="and"),
    "/short": Reply(SHORT + b"\r\n<title>x</title>", end="close"),
    "/short-gzip": Reply(
        SHORT + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(GOOD)[:14], end="close"
    ),
    "/excess": Reply(page(GOOD) + b"more than was announced"),
    "/to-the-end": Reply(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + GOOD, "close"
    ),
    "/http10": Reply(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n" + GOOD, "close"),
    "/interim": interim,
    "/control": Reply(page(GOOD, headers=(HTML, b"Set-Cookie: a=\x01b"))),
    "/latin": Reply(page(GOOD, headers=(HTML, b"X-Name: caf\xe9"))),
    "/wide": Reply(page(GOOD, headers=(HTML, b"X-Wide: " + b"w" * 61_440))),
    "/deflate": coded(zlib.compress(GOOD), b"deflate"),
    "/deflate-raw": coded(raw_deflate(GOOD), b"deflate"),
    "/bomb": coded(BOMB, b"gzip"),
    "/bomb-twice": coded(gzip.compress(BOMB), b"gzip, gzip"),
    "/radio": endless(b"audio/mpeg", every_s=0.1),
    "/endless": endless(b"text/html", every_s=0.0),
    "/trickle": endless(b"text/html", every_s=0.1),
    "/long": Reply(page("".join(f"<a href={u}>x</a>" for u in [*LONG.values(), *NORMAL]).encode())),
    **{path: linking() for path in [*NORMAL, LONG[1_000], LONG[8_000]]},
    "/bom": Reply(
        page(
            b"\xef\xbb\xbf" + f'<title>{CYRILLIC}</title><a href="/{CYRILLIC}">x</a>'.encode(),
            headers=(b"Content-Type: text/html; charset=cp1251",),
        )
    ),
    "/k": Reply(page(b'<a href="/r">r</a>', headers=(HTML, b"Set-Cookie: k=1"))),
    "/r": moved(b"/t", b"Set-Cookie: k=2"),
    "/t": only_k2,
    "/slash": linking(),
    "/slash/": Reply(page(b"", status="500 Oops")),
}
FIRST = [
    "/bounce", "/order?x=1&y=2", "/forever", "/1", "/2", *MANY, "/ad", "/fa", "/A_&_B", "/short",
    "/short-gzip", "/to-the-end", "/http10", "/interim", "/control", "/latin", "/wide", "/deflate",
    "/deflate-raw", "/bomb", "/bomb-twice", "/radio", "/endless", "/trickle", "/long", "/bom", "/k",
    "/slash", "/excess",
]  # fmt: skip


class Crawled(NamedTuple):
    """What a crawl of the site gave, and what the site saw."""

    found: dict[str, Record]
    """By path."""
    asked: list[str]
    elsewhere: list[str]
    """Requests to the other host."""

    def error(self, path: str) -> str:
        return str((self.found[path]["error"] or {}).get("code"))


async def _crawl(etcd: str, redis: str) -> Crawled:
    cluster = f"test-{uuid.uuid4().hex[:12]}"
    async with (
        RawServer({"/landing": linking("/on")}, address="127.0.0.2") as other,
        RawServer(dict(SCRIPTS)) as site,
        crawls(etcd, redis, cluster=cluster) as running,
    ):
        site.scripts |= {"/": linking(*FIRST), "/ad": moved(other.url("/landing").encode())}
        await running.submit(
            site.url("/"), per_host=16, timeout=3.0, retries=1, max_body=MAX_BODY,
            accept=("text/html",),
        )  # fmt: skip
        found = await running.finished()
        origin = site.url("")
        return Crawled(
            {one.removeprefix(origin): record for one, record in found.items()},
            [request.target for request in site.requests],
            [request.target for request in other.requests],
        )


@pytest.fixture(scope="module")
def crawled(etcd_server: EtcdServer, redis_server: RedisServer) -> Crawled:
    return asyncio.run(_crawl(etcd_server.endpoint, redis_server.url))


def test_h01_a_redirect_to_itself_is_answered_or_ends_as_too_many(crawled: Crawled) -> None:
    """A page that sends the visitor back with a cookie was dropped as a duplicate of itself."""
    assert ("fetched", 200) == _ended(crawled, "/bounce")
    assert "redirected" == crawled.found["/order?x=1&y=2"]["outcome"]
    assert ("fetched", 200) == _ended(crawled, "/order?y=2&x=1")
    assert ("failed", "too_many_redirects") == (
        crawled.found["/forever"]["outcome"],
        crawled.error("/forever"),
    )


def test_h02_the_target_of_many_redirects_is_fetched_once(crawled: Crawled) -> None:
    """A redirect whose target was crawled before was crawled a second time."""
    assert 1 == crawled.asked.count("/1")
    for source in ["/2", *MANY]:
        record = crawled.found[source]
        assert "redirected" == record["outcome"]
        assert record["location"].endswith("/1")


def test_h03_a_redirect_out_of_scope_is_recorded_and_not_followed(crawled: Crawled) -> None:
    """The foreign page was stored, and its links followed."""
    assert "redirected" == crawled.found["/ad"]["outcome"]
    assert [] == crawled.elsewhere
    assert not [one for one in crawled.found if "landing" in one]


def test_h04_bytes_of_a_location_are_asked_as_they_are(crawled: Crawled) -> None:
    """Raw UTF-8 in Location was read as Latin-1 and encoded twice."""
    assert ("fetched", 200) == _ended(crawled, "/fa/%D8%A7%D8%B9")


def test_h05_escapes_of_a_location_are_kept(crawled: Crawled) -> None:
    """%26 became &, and the server redirected for ever."""
    assert ("fetched", 200) == _ended(crawled, "/A_%26_B")
    assert 1 == crawled.asked.count("/A_&_B")


def test_h06_a_body_shorter_than_announced_is_truncated_and_tried_again_boundedly(
    crawled: Crawled,
) -> None:
    """The received bytes were lost with an error of the library."""
    for path in ("/short", "/short-gzip"):
        assert ("dead", "truncated_body") == (
            crawled.found[path]["outcome"],
            crawled.error(path),
        )
        assert crawled.found[path]["truncated"]
        assert 2 == crawled.asked.count(path)


def test_h06_a_body_longer_than_announced_is_what_was_announced(crawled: Crawled) -> None:
    """The page was lost as malformed where all of it came at once."""
    record = crawled.found["/excess"]
    assert ("fetched", len(GOOD), "good") == (record["outcome"], record["bytes"], record["title"])
    assert not record["truncated"]
    assert 1 == crawled.asked.count("/excess")


def test_h07_a_body_without_framing_is_read_to_the_end(crawled: Crawled) -> None:
    """A body delimited by the end of the connection was read as empty."""
    for path in ("/to-the-end", "/http10"):
        record = crawled.found[path]
        assert ("fetched", len(GOOD), "good") == (
            record["outcome"], record["bytes"], record["title"],
        )  # fmt: skip


def test_h08_interim_answers_are_not_the_answer(crawled: Crawled) -> None:
    """An early hint was taken as the final answer, or the client hung."""
    record = crawled.found["/interim"]
    assert ("fetched", 200, "after hints") == (
        record["outcome"], record["status"], record["title"],
    )  # fmt: skip


def test_h09_odd_bytes_in_a_header_spoil_at_most_their_own_page(crawled: Crawled) -> None:
    """One control byte made the page unreadable, and the error said 400."""
    for path in ("/latin", "/wide"):
        assert ("fetched", 200) == _ended(crawled, path)
    record = crawled.found["/control"]
    is_read = ("fetched", 200) == _ended(crawled, "/control")
    assert is_read or (record["status"] != 400 and crawled.error("/control") == "protocol_error")
    assert crawled.asked.count("/control") <= 2


def test_h10_deflate_is_decoded_with_and_without_its_header(crawled: Crawled) -> None:
    """Raw deflate could not be decoded."""
    for path in ("/deflate", "/deflate-raw"):
        assert "good" == crawled.found[path]["title"]


def test_h11_bombs_are_too_large(crawled: Crawled) -> None:
    """The limit counted compressed bytes; memory is measured in integration/fetch/test_bodies."""
    for path in ("/bomb", "/bomb-twice"):
        assert ("failed", "too_large") == (crawled.found[path]["outcome"], crawled.error(path))
        assert 1 == crawled.asked.count(path)


def test_h12_an_endless_body_ends_by_type_size_or_time(crawled: Crawled) -> None:
    """A stream kept a slot for ever: bytes kept coming, so no time limit fired."""
    assert "refused_type" == crawled.error("/radio")
    assert "too_large" == crawled.error("/endless")
    assert "total_timeout" == crawled.error("/trickle")


def test_h18_long_urls_are_left_out_and_the_page_is_done(crawled: Crawled) -> None:
    """A very long URL raised in the store, and the crawl was stuck on its page."""
    assert "fetched" == crawled.found["/long"]["outcome"]
    for path in [*NORMAL, LONG[1_000], LONG[8_000]]:
        assert ("fetched", 200) == _ended(crawled, path)
    assert not [one for one in crawled.found if len(one) > 10_000]


def test_h20_a_byte_order_mark_beats_the_header(crawled: Crawled) -> None:
    """The charset of the header garbled title and links."""
    assert ("utf-8", CYRILLIC) == (
        crawled.found["/bom"]["encoding"],
        crawled.found["/bom"]["title"],
    )
    assert "/%D0%9F%D1%80%D0%B8%D0%B2%D0%B5%D1%82,%20%D0%BC%D0%B8%D1%80" in crawled.found


def test_h29_a_cookie_set_by_a_redirect_is_sent_to_its_target(crawled: Crawled) -> None:
    """The next hop was asked with the old value."""
    assert ("fetched", 200) == _ended(crawled, "/t")


def test_h33_no_slash_is_added(crawled: Crawled) -> None:
    """A server that knows only /a answered 500 to /a/."""
    assert ("fetched", 200) == _ended(crawled, "/slash")
    assert "/slash/" not in crawled.asked


def _ended(crawled: Crawled, path: str) -> tuple[str, int]:
    record = crawled.found[path]
    return record["outcome"], record["status"]
