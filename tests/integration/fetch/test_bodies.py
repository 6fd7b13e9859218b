"""Content codings and limits."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
import zlib

import pytest

from tests.support.fetching import Fetching, code_of
from tests.support.rawserver import Exchange, RawServer, Reply, page

PAGE = b"<title>page</title>" + b"words and words " * 300


def coded(body: bytes, coding: bytes) -> Reply:
    return Reply(page(body, headers=(b"Content-Encoding: " + coding,)))


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (gzip.compress(PAGE), b"gzip"),
        (gzip.compress(PAGE), b"X-GZIP"),
        (zlib.compress(PAGE), b"deflate"),  # H10: with the zlib header, and without
        (raw_deflate(PAGE), b"deflate"),
        (gzip.compress(gzip.compress(PAGE)), b"gzip, gzip"),
        (zlib.compress(gzip.compress(PAGE)), b"gzip, deflate"),
        (PAGE, b"identity"),
        (PAGE, b"utf-8"),
        (gzip.compress(PAGE[:100]) + gzip.compress(PAGE[100:]), b"gzip"),
        (gzip.compress(PAGE) + b"\0\0\0 trailing", b"gzip"),
    ],
)
async def test_codings_lead_to_the_same_page(fetch: Fetching, body: bytes, coding: bytes) -> None:
    async with RawServer({"/": coded(body, coding)}) as server:
        fetched = await fetch(server.url("/"))

        assert fetched.body == PAGE
        assert fetched.error is None
        assert not fetched.truncated
        assert str(server.requests[0].header("Accept-Encoding")).startswith("gzip, deflate")


@pytest.mark.parametrize("pieces", [1, 7])
async def test_coded_body_in_small_chunks_is_decoded(fetch: Fetching, pieces: int) -> None:
    body = gzip.compress(PAGE)
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(part), part)
        for start in range(0, len(body), pieces)
        if (part := body[start : start + pieces])
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with RawServer({"/": Reply(head + chunks + b"0\r\n\r\n")}) as server:
        fetched = await fetch(server.url("/"))

    assert (fetched.body, fetched.error) == (PAGE, None)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"gzip, gzip"])
async def test_body_that_is_not_in_its_coding_is_named(fetch: Fetching, coding: bytes) -> None:
    async with RawServer({"/": coded(b"\xff\xffno such thing", coding)}) as server:
        fetched = await fetch(server.url("/"))

    assert fetched.status == 200
    assert code_of(fetched) == "bad_encoding"
    assert fetched.body == b""


async def test_coding_that_was_not_asked_for_is_named(fetch: Fetching) -> None:
    async with RawServer({"/": coded(b"x", b"compress")}) as server:
        fetched = await fetch(server.url("/"))

    assert code_of(fetched) == "bad_encoding"
    assert "compress" in str(fetched.error)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"gzip, gzip"])
async def test_empty_body_needs_no_decoding(fetch: Fetching, coding: bytes) -> None:
    async with RawServer({"/": coded(b"", coding)}) as server:
        fetched = await fetch(server.url("/"))

    assert (fetched.body, fetched.error, fetched.truncated) == (b"", None, False)


async def test_unfinished_coding_in_a_whole_body_is_flagged_only(fetch: Fetching) -> None:
    """A server's encoder that forgets its end: the page is all there, as browsers show it."""
    async with RawServer({"/": coded(gzip.compress(PAGE)[:-8], b"gzip")}) as server:
        fetched = await fetch(server.url("/"))

    assert (fetched.body, fetched.error, fetched.truncated) == (PAGE, None, True)


async def test_unfinished_coding_at_the_end_of_a_connection_is_truncated(fetch: Fetching) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
    async with RawServer({"/": Reply(head + gzip.compress(PAGE)[:-20], end="close")}) as server:
        fetched = await fetch(server.url("/"))

    assert code_of(fetched) == "truncated_body"
    assert fetched.truncated


async def test_exact_limit_is_allowed_and_one_byte_more_is_not(fetch: Fetching) -> None:
    scripts = {
        "/plain": Reply(page(PAGE)),
        "/coded": coded(gzip.compress(PAGE), b"gzip"),
        "/open": Reply(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE, end="close"),
    }
    async with RawServer(dict(scripts)) as server:
        for path in scripts:
            exact = await fetch(server.url(path), max_body=len(PAGE))
            over = await fetch(server.url(path), max_body=len(PAGE) - 1)
            cut = await fetch(server.url(path), max_body=len(PAGE) - 1, cut=True)

            assert (exact.body, exact.error) == (PAGE, None)
            assert (over.body, code_of(over)) == (b"", "too_large")
            assert (cut.body, cut.error, cut.truncated) == (PAGE[:-1], None, True)


async def test_declared_length_over_the_limit_is_not_read(fetch: Fetching) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
    async with RawServer({"/": Reply(head, end="hang")}) as server:
        fetched = await fetch(server.url("/"))

    assert fetched.status == 200
    assert code_of(fetched) == "too_large"


@pytest.mark.parametrize("layers", [1, 2])
async def test_bomb_is_refused_within_the_memory_of_the_limit(fetch: Fetching, layers: int) -> None:
    """H11: a hundred megabytes out of a hundred kilobytes, or of some hundred bytes."""
    body = gzip.compress(bytes(100_000_000), compresslevel=1)
    for _ in range(layers - 1):
        body = gzip.compress(body)
    reply = coded(body, b", ".join([b"gzip"] * layers))
    async with RawServer({"/": reply}) as server:
        tracemalloc.start()
        try:
            fetched = await fetch(server.url("/"), spec={"max_body": 1_000_000})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert code_of(fetched) == "too_large"
    assert fetched.body == b""
    assert peak < 8_000_000


async def test_small_bomb_is_refused(fetch: Fetching) -> None:
    """H11: a mebibyte out of a kibibyte, with a limit of four."""
    async with RawServer({"/": coded(gzip.compress(bytes(1 << 20)), b"gzip")}) as server:
        fetched = await fetch(server.url("/"), spec={"max_body": 4096})

    assert code_of(fetched) == "too_large"


async def test_coded_bytes_that_decode_to_nothing_are_limited_too(fetch: Fetching) -> None:
    empty_blocks = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\0\0\0\xff\xff" * 100_000
    async with RawServer({"/": coded(empty_blocks, b"gzip")}) as server:
        fetched = await fetch(server.url("/"), spec={"max_body": 4096})

    assert code_of(fetched) == "too_large"


async def endless(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\n\r\n")
    while await exchange.send(b"x" * 16_384):
        await exchange.pause(0.01)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"max_body": 100_000}, "too_large"),  # whichever limit comes first
        ({"timeout": 0.3}, "total_timeout"),
        ({"accept": ("text/html",)}, "refused_type"),
    ],
)
async def test_endless_body_is_stopped(fetch: Fetching, spec: dict[str, object], code: str) -> None:
    """H12."""
    async with RawServer({"/": endless}) as server:
        fetched = await fetch(server.url("/"), spec=spec)
        assert (fetched.status, code_of(fetched)) == (200, code)

        server.scripts["/next"] = Reply(page(PAGE))
        assert (await fetch(server.url("/next"), spec=spec)).body == PAGE


@pytest.mark.parametrize("piece", [b"x", b"1\r\nx\r\n"])
async def test_a_body_that_trickles_is_given_up(
    fetch: Fetching, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    """Slow Loris: each byte in time, and no end of it."""
    monkeypatch.setattr("worker.fetch_body.RATE_WINDOW_S", 0.3)
    is_chunked = len(piece) > 1
    head = b"HTTP/1.1 200 OK\r\n" + b"Transfer-Encoding: chunked\r\n" * is_chunked + b"\r\n"

    async def trickle(exchange: Exchange) -> None:
        await exchange.send(head)
        while await exchange.send(piece):
            await exchange.pause(0.02)

    async def stall(exchange: Exchange) -> Reply:
        await exchange.send(head + piece)
        return Reply(b"", end="hang")

    async def swift(exchange: Exchange) -> Reply:
        await exchange.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for _ in range(10):
            await exchange.send(b"x" * 10_000)
            await exchange.pause(0.1)
        return Reply(b"", end="close")

    spec = {"timeout": 600.0, "min_rate": 1000}
    async with RawServer({"/": trickle, "/stall": stall, "/swift": swift}) as server:
        slow, stalled, steady = await asyncio.gather(
            *(fetch(server.url(path), spec=spec) for path in ("/", "/stall", "/swift"))
        )

    assert (slow.status, code_of(slow)) == (200, "too_slow")
    assert (stalled.status, code_of(stalled)) == (200, "too_slow")
    assert (len(steady.body), steady.error) == (100_000, None)


async def test_no_server_is_blamed_for_a_stop_of_this_process(
    fetch: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.fetch_body.RATE_WINDOW_S", 0.3)

    async def one_for_both(exchange: Exchange) -> Reply:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\nx")
        await exchange.pause(0.1)
        exchange.writer.write(b"x" * 9_999)  # has arrived before the window ends
        time.sleep(3)  # noqa: ASYNC251 - the event loop stops, as on a machine that is suspended
        return Reply(b"")

    async with RawServer({"/": one_for_both}) as server:
        fetched = await fetch(server.url("/"), spec={"timeout": 600.0, "min_rate": 1000})
    assert (10_000, None) == (len(fetched.body), fetched.error)


@pytest.mark.parametrize("length", [b"10", b"9999999"])
async def test_body_of_a_redirect_does_not_matter(fetch: Fetching, length: bytes) -> None:
    head = b"HTTP/1.1 301 Moved\r\nLocation: /b\r\nContent-Length: " + length + b"\r\n\r\n"
    async with RawServer({"/": Reply(head + b"short", end="close", pause_s=0.1)}) as server:
        fetched = await fetch(server.url("/"))

    assert (fetched.status, fetched.location) == (301, server.url("/b"))
    assert (fetched.body, fetched.error, fetched.truncated) == (b"", None, False)


async def test_brotli_and_zstd_are_decoded_where_installed(fetch: Fetching) -> None:
    brotli = pytest.importorskip("brotli")
    zstd = pytest.importorskip("backports.zstd")
    bomb = bytes(20_000_000)
    scripts = {
        "/br": coded(brotli.compress(PAGE), b"br"),
        "/zstd": coded(zstd.compress(PAGE), b"zstd"),
        "/br-bomb": coded(brotli.compress(bomb, quality=1), b"br"),
        "/zstd-bomb": coded(zstd.compress(bomb), b"zstd"),
        "/br-broken": coded(b"<html>", b"br"),
        "/zstd-broken": coded(b"<html>", b"zstd"),
    }
    async with RawServer(dict(scripts)) as server:
        for path in scripts:
            fetched = await fetch(server.url(path), spec={"max_body": 1_000_000})
            if path.endswith("bomb"):
                assert code_of(fetched) == "too_large"
            elif path.endswith("broken"):
                assert code_of(fetched) == "bad_encoding"
            else:
                assert (fetched.body, fetched.error, fetched.truncated) == (PAGE, None, False)
