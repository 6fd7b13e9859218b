"""What a hostile server can send beside a body: headers without end, answers nobody asked for."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from tests.support.fetching import Fetching, code_of
from tests.support.rawserver import Exchange, RawServer, Reply, page
from tests.support.waiting import until_true
from worker.wire import MAX_IDLE_BYTES

PAGE = b"<title>page</title>"
STATUS = b"HTTP/1.1 200 OK\r\n"
CHUNKED = STATUS + b"Transfer-Encoding: chunked\r\n\r\n"
BOUND_BYTES = 64 * MAX_IDLE_BYTES
"""Of memory, and of what may leave the server: sockets hold some of it."""


def numbered(line: bytes) -> Iterator[bytes]:
    """Return lines that differ, fifty at a time."""
    starts = itertools.count(step=50)
    return (b"".join(line % number for number in range(at, at + 50)) for at in starts)


ENDLESS: dict[str, tuple[bytes, Iterable[bytes]]] = {
    "many fields": (STATUS, numbered(b"X-%d: 1\r\n")),
    "large fields": (STATUS, numbered(b"X-%d: " + b"v" * 60_000 + b"\r\n")),
    "one name": (STATUS, itertools.repeat(b"n" * 4096)),
    "one value": (STATUS + b"X: ", itertools.repeat(b"v" * 4096)),
    "reason": (b"HTTP/1.1 200 ", itertools.repeat(b"r" * 4096)),
    "interim answers": (b"", itertools.repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50)),
    "interim fields": (b"", itertools.repeat(b"HTTP/1.1 100 C\r\nX: " + b"v" * 999 + b"\r\n\r\n")),
    "chunk extension": (CHUNKED + b"5", itertools.repeat(b";a=" + b"e" * 4096)),
    "chunk length": (CHUNKED, itertools.repeat(b"0" * 4096)),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", numbered(b"X-%d: 1\r\n")),
    "large trailers": (CHUNKED + b"0\r\n", numbered(b"X-%d: " + b"v" * 60_000 + b"\r\n")),
    "trailer": (CHUNKED + b"0\r\nX: ", itertools.repeat(b"v" * 4096)),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_brings_nothing_is_bounded(fetch: Fetching, kind: str) -> None:
    sent = 0

    async def send(exchange: Exchange) -> None:
        nonlocal sent
        first, rest = ENDLESS[kind]
        await exchange.send(first)
        for piece in rest:
            if not await exchange.send(piece):
                return
            sent += len(piece)

    async with RawServer({"/": send, "/next": Reply(page(PAGE))}) as server:
        await fetch(server.url("/next"))
        tracemalloc.start()
        try:
            fetched = await fetch(server.url("/"), spec={"timeout": 600.0})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await until_true(lambda: server.open_connections <= 1)
        after = await fetch(server.url("/next"))

    assert code_of(fetched) == "protocol_error", fetched.error
    assert (after.body, after.error) == (PAGE, None)
    assert max(sent, peak) < BOUND_BYTES


async def test_a_large_header_is_read(fetch: Fetching) -> None:
    fields = tuple(b"X-%d: " % number + b"v" * 2000 for number in range(100))
    async with RawServer({"/": Reply(page(PAGE, headers=fields))}) as server:
        fetched = await fetch(server.url("/"))
    assert (fetched.body, fetched.error) == (PAGE, None)


async def test_small_chunks_with_trailers_are_read(fetch: Fetching) -> None:
    chunk = b"1;" + b"e" * 1000 + b"\r\nx\r\n"
    data = (
        CHUNKED + 1000 * chunk + b"0\r\nX-Sum: 1\r\n\r\n"
    )  # a megabyte, of which each piece brings
    async with RawServer({"/": Reply(data)}) as server:
        fetched = await fetch(server.url("/"))
    assert (fetched.body, fetched.error) == (b"x" * 1000, None)


EVIL = page(b"evil")


@pytest.mark.parametrize(
    ("with_it", "later"),
    [
        (EVIL, b""),
        (2 * EVIL, b""),
        (b"", EVIL),
        (EVIL[:20], EVIL[20:]),
        (EVIL[:-2], EVIL[-2:]),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" + EVIL),
        (b"", b"more than was announced"),
        (b"", b"\r\n"),
    ],
)
async def test_an_answer_nobody_asked_for_is_nobodys(
    fetch: Fetching, with_it: bytes, later: bytes
) -> None:
    """Response splitting: a header that was injected, or a body longer than its length."""

    async def split(exchange: Exchange) -> Reply:
        await exchange.send(page(PAGE) + with_it)
        if later:
            await exchange.pause(0.1)
        return Reply(later)

    async with RawServer({"/": split, "/next": Reply(page(b"next"))}) as server:
        first = await fetch(server.url("/"))
        if later:
            await until_true(lambda: server.open_connections == 0)  # seen, and closed for it
        seconds = [await fetch(server.url("/next")) for _ in range(2)]

    assert (first.body, first.error) == (PAGE, None)
    assert [(b"next", None)] * 2 == [(one.body, one.error) for one in seconds]


@pytest.mark.parametrize("interim", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("head", [STATUS + b"Content-Length: 4\r\n\r\nbo", CHUNKED + b"4\r\nbo"])
async def test_an_answer_in_one_piece_with_the_end_of_a_body_is_nobodys(
    fetch: Fetching, head: bytes, interim: bytes
) -> None:
    async def split(exchange: Exchange) -> Reply:
        await exchange.send(head)
        await exchange.pause(0.1)
        end = b"dy\r\n0\r\n\r\n" if head.startswith(CHUNKED) else b"dy"
        return Reply(end + interim + EVIL)

    async with RawServer({"/": split, "/next": Reply(page(b"next"))}) as server:
        first = await fetch(server.url("/"))
        seconds = [await fetch(server.url("/next")) for _ in range(2)]

    assert (first.body, first.error) == (b"body", None)
    assert [(b"next", None)] * 2 == [(one.body, one.error) for one in seconds]


async def test_a_connection_with_another_protocol_is_used_for_nothing_more(
    fetch: Fetching,
) -> None:
    scripts = {"/": Reply(b"HTTP/1.1 101 Switching\r\n\r\n"), "/next": Reply(page(b"next"))}
    async with RawServer(dict(scripts)) as server:
        first = await fetch(server.url("/"))
        second = await fetch(server.url("/next"))
        assert 2 == server.connections
    assert "protocol_error" == code_of(first)
    assert (second.body, second.error) == (b"next", None)


LONG = b"<title>" + b"x" * 500_000
EXCESS: dict[str, tuple[bytes, bytes, bytes]] = {
    "of a short page": (page(PAGE), b"more than was announced", PAGE),
    "of a page of many pieces": (page(LONG), b"more than was announced", LONG),
    "another answer": (page(PAGE), page(b"evil"), PAGE),
    "an empty line": (page(PAGE), b"\r\n", PAGE),
    "of an empty page": (page(b""), b"more than was announced", b""),
    "of a page that may have none": (b"HTTP/1.1 204 No Content\r\n\r\n", b"a body", b""),
    "after an interim answer": (b"HTTP/1.1 103 E\r\n\r\n" + page(PAGE), b"more", PAGE),
    "of plain line feeds": (b"HTTP/1.1 200\nContent-Length: 3\n\nabc", b"more", b"abc"),
    "of chunks": (CHUNKED + b"3\r\nabc\r\n0\r\n\r\n", b"more than was announced", b"abc"),
}


@pytest.mark.parametrize("before", [None, -3, -2, -1, 1])
@pytest.mark.parametrize("kind", EXCESS)
async def test_what_is_too_much_of_a_body_is_discarded_and_the_page_is_kept(
    fetch: Fetching, kind: str, before: int | None
) -> None:
    """Symptom: a body longer than its Content-Length, in one piece, ended as protocol_error.

    RFC 9112, 6.3, and browsers: what is beyond the length is discarded, and nobody's answer.
    """
    answer, more, body = EXCESS[kind]
    # In a piece before: all of the header but so many bytes, or also so many of the body.
    cut = min(len(answer) - 1, answer.rindex(b"\n", 0, 80) + 1 + before) if before else 0

    async def split(exchange: Exchange) -> Reply:
        if cut:
            await exchange.send(answer[:cut])
            await exchange.pause(0.05)
        return Reply(answer[cut:] + more)

    async with RawServer({"/": split, "/next": Reply(page(b"next"))}) as server:
        first = await fetch(server.url("/"))
        second = await fetch(server.url("/next"))

        assert server.connections == 2

    assert (first.body, first.error, first.truncated) == (body, None, False)
    assert (second.body, second.error) == (b"next", None)


async def test_a_server_that_closes_idle_connections_with_an_answer_is_asked_anew(
    fetch: Fetching,
) -> None:
    async def impatient(exchange: Exchange) -> Reply:
        await exchange.send(page(PAGE))
        await exchange.pause(0.05)
        return Reply(page(status="408 Request Timeout"), end="close")

    async with RawServer({"/": impatient}) as server:
        for _ in range(3):
            fetched = await fetch(server.url("/"))
            assert (fetched.status, fetched.body) == (200, PAGE)
            await until_true(lambda: server.open_connections == 0)
            await asyncio.sleep(0)
