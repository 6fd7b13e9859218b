"""Broken or unusual framing: what a careless server can do to a response."""

from __future__ import annotations

import gzip

import pytest

from tests.support.fetching import Fetching, code_of
from tests.support.rawserver import Exchange, RawServer, Reply, page

PAGE = b"<title>page</title>"


async def still_works(fetch: Fetching, server: RawServer) -> None:
    """The worker and its connections are none the worse."""
    server.scripts["/good"] = Reply(page(PAGE))
    fetched = await fetch(server.url("/good"))
    assert (fetched.status, fetched.body, fetched.error) == (200, PAGE, None)


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_body_shorter_than_its_length_is_truncated(fetch: Fetching, end: str) -> None:
    """H06: what had arrived is kept."""
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n14 bytes here."
    reply = Reply(data, end=end, pause_s=0.1)  # type: ignore[arg-type]
    async with RawServer({"/": reply}) as server:
        fetched = await fetch(server.url("/"))
        await still_works(fetch, server)

        assert fetched.status == 200
        assert code_of(fetched) == "truncated_body"
        assert fetched.truncated
        assert fetched.body == b"14 bytes here."
        assert len([one for one in server.requests if one.target == "/"]) == 1


async def test_end_in_the_same_packet_keeps_the_bytes_too(fetch: Fetching) -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n14 bytes here."
    async with RawServer({"/": Reply(data, end="close")}) as server:
        fetched = await fetch(server.url("/"))

    assert code_of(fetched) == "truncated_body"
    assert fetched.body == b"14 bytes here."


async def test_compressed_body_shorter_than_its_length_is_truncated(fetch: Fetching) -> None:
    body = gzip.compress(PAGE * 50)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with RawServer({"/": Reply(head + body[:-9], end="close")}) as server:
        fetched = await fetch(server.url("/"))
        await still_works(fetch, server)

    assert code_of(fetched) == "truncated_body"
    assert fetched.truncated
    assert (PAGE * 50).startswith(fetched.body)


async def test_chunked_body_that_ends_early_is_truncated(fetch: Fetching) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n5\r\nfg"
    async with RawServer({"/": Reply(data, end="close")}) as server:
        fetched = await fetch(server.url("/"))

    assert code_of(fetched) == "truncated_body"
    assert fetched.body == b"abcdefg"


@pytest.mark.parametrize("line", [b"HTTP/1.1 200 OK\r\nConnection: close", b"HTTP/1.0 200 OK"])
async def test_body_without_length_goes_on_to_the_end(fetch: Fetching, line: bytes) -> None:
    """H07."""
    async with RawServer({"/": Reply(line + b"\r\n\r\n" + PAGE, end="close")}) as server:
        fetched = await fetch(server.url("/"))
        await still_works(fetch, server)

    assert (fetched.status, fetched.body, fetched.error) == (200, PAGE, None)
    assert not fetched.truncated


async def test_body_without_length_cut_by_a_reset_is_truncated(fetch: Fetching) -> None:
    data = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + PAGE
    async with RawServer({"/": Reply(data, end="reset", pause_s=0.1)}) as server:
        fetched = await fetch(server.url("/"))

    assert code_of(fetched) == "truncated_body"
    assert fetched.body == PAGE


async def test_interim_answers_are_passed_over(fetch: Fetching) -> None:
    """H08: and the next request on the connection gets its own answer."""

    async def early(exchange: Exchange) -> Reply:
        await exchange.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n")
        await exchange.pause(0.1)
        await exchange.send(b"HTTP/1.1 102 Processing\r\n\r\n")
        return Reply(page(PAGE))

    async with RawServer({"/": early, "/next": Reply(page(b"next"))}) as server:
        first = await fetch(server.url("/"))
        second = await fetch(server.url("/next"))

        assert (first.status, first.body) == (200, PAGE)
        assert (second.status, second.body) == (200, b"next")
        assert server.connections == 1


@pytest.mark.parametrize(
    "field",
    [
        b"Set-Cookie: a=\x01b",
        b"X-Latin: caf\xe9",
        b"X-Bytes: \xff\xfe",
        b"X-Long: " + b"a" * 60_000,
        b"X-Null: a\x00b",
        b"No colon at all",
        b"X Space: 1",
        b": no name",
    ],
)
async def test_odd_header_fields_neither_hang_nor_pass_for_a_status(
    fetch: Fetching, field: bytes
) -> None:
    """H09: the page is read, or the URL is a recorded protocol failure."""
    async with RawServer({"/": Reply(page(PAGE, headers=(field,)), end="close")}) as server:
        fetched = await fetch(server.url("/"))
        await still_works(fetch, server)

        assert len([one for one in server.requests if one.target == "/"]) == 1
    if fetched.error is None:
        assert (fetched.status, fetched.body) == (200, PAGE)
    else:
        assert (fetched.status, code_of(fetched)) == (None, "protocol_error")
        assert "400" not in fetched.error.message


async def test_content_type_that_is_no_text_can_still_be_stored(fetch: Fetching) -> None:
    field = b"Content-Type: text/html; charset=\xe9"
    async with RawServer({"/": Reply(page(PAGE, headers=(field,)))}) as server:
        fetched = await fetch(server.url("/"))

    assert fetched.content_type == "text/html; charset=\xe9"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"<html>no header at all</html>",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n0123456789",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 100_000 + b"\r\n",
    ],
)
async def test_what_is_not_http_is_a_protocol_failure(fetch: Fetching, data: bytes) -> None:
    async with RawServer({"/": Reply(data, end="close")}) as server:
        fetched = await fetch(server.url("/"))
        await still_works(fetch, server)

    assert fetched.error is not None
    assert code_of(fetched) == "protocol_error"
    assert len(fetched.error.message) < 400
    fetched.error.message.encode()


async def test_malformed_chunk_after_good_ones_is_a_protocol_failure(fetch: Fetching) -> None:
    async def broken(exchange: Exchange) -> Reply:
        await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await exchange.pause(0.1)
        return Reply(b"xyz\r\n", end="close")

    async with RawServer({"/": broken}) as server:
        fetched = await fetch(server.url("/"), spec={"timeout": 30.0})

    assert fetched.status == 200
    assert fetched.body == b"abc"
    assert code_of(fetched) == "protocol_error"
    assert "chunk size" in str(fetched.error)
    assert fetched.elapsed_ms < 25_000, "the end is told at once, not at the time limit"


async def test_unasked_change_of_protocol_is_a_protocol_failure(fetch: Fetching) -> None:
    data = b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n\x00\x01"
    async with RawServer({"/": Reply(data, end="hang")}) as server:
        fetched = await fetch(server.url("/"))
        await still_works(fetch, server)

    assert code_of(fetched) == "protocol_error"


async def test_plain_line_feeds_and_missing_reason_are_read(fetch: Fetching) -> None:
    data = b"HTTP/1.1 200\nContent-Type: text/html\nContent-Length: 3\n\nabc"
    async with RawServer({"/": Reply(data)}) as server:
        fetched = await fetch(server.url("/"))

    assert (fetched.status, fetched.body) == (200, b"abc")
