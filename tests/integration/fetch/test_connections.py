"""Connections: failures to make one, time limits, private addresses, reuse, giving them back."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from common.model.job import JobSpec
from tests.support.fetching import Fetching, at_once, code_of
from tests.support.rawserver import Exchange, RawServer, Reply, full_backlog, page
from tests.support.waiting import until_true
from worker.fetch import Fetcher

CERTIFICATE = Path(__file__).with_name("self-signed.pem")
PAGE = b"<title>page</title>"


def tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@contextmanager
def unused_port() -> Iterator[int]:
    """A port that is bound, so that nobody else takes it, and on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


async def test_refused_connection_is_named(fetch: Fetching) -> None:
    with unused_port() as port:
        fetched = await fetch(f"http://127.0.0.1:{port}/")

    assert (fetched.status, fetched.ip) == (None, None)
    assert code_of(fetched) == "connect_refused"


@pytest.mark.parametrize("host", ["name.invalid", "a" * 70 + ".invalid.", "b" * 70 + ".test"])
async def test_host_name_that_does_not_exist_is_named(fetch: Fetching, host: str) -> None:
    fetched = await fetch(f"http://{host}/")

    # Without a name server, names other than .invalid cannot be told to be missing.
    allowed = {"dns_not_found"} if "invalid" in host else {"dns_not_found", "dns_failed"}
    assert code_of(fetched) in allowed


@pytest.mark.parametrize(
    ("number", "code", "lasts_s"),
    [(socket.EAI_NONAME, "dns_not_found", 60.0), (socket.EAI_AGAIN, "dns_failed", 1.0)],
)
async def test_a_name_without_address_is_remembered_for_its_time(
    fetch: Fetching, monkeypatch: pytest.MonkeyPatch, number: int, code: str, lasts_s: float
) -> None:
    asked: list[bytes] = []
    shift_s = 0.0

    def look_up(host: bytes, *_: object, **__: object) -> object:
        asked.append(host)
        raise socket.gaierror(number, "as the test wants")

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + shift_s

    monkeypatch.setattr("worker.dns.socket.getaddrinfo", look_up)
    monkeypatch.setattr("worker.dns.time", Clock)
    for _ in range(3):
        began = time.monotonic()
        assert code_of(await fetch("http://gone.test/")) == code
        if time.monotonic() - began < lasts_s / 2:  # else the machine was away for so long
            assert code_of(await fetch("http://gone.test/other")) == code
        shift_s += lasts_s + 1
    await fetch("http://another.test/")

    assert [b"gone.test"] * 3 + [b"another.test"] == asked


async def test_connection_that_hangs_ends_at_its_own_limit(fetch: Fetching) -> None:
    with full_backlog() as port:
        limits = {"connect_timeout": 0.2, "timeout": 30.0}
        fetched = await fetch(f"http://127.0.0.1:{port}/", spec=limits)

    assert code_of(fetched) == "connect_timeout"
    assert fetched.elapsed_ms < 10_000


async def test_connection_that_hangs_beyond_the_whole_limit_is_the_same(fetch: Fetching) -> None:
    with full_backlog() as port:
        fetched = await fetch(f"http://127.0.0.1:{port}/", spec={"timeout": 0.2})

    assert code_of(fetched) == "connect_timeout"


async def test_silent_server_ends_as_read_timeout(fetch: Fetching) -> None:
    async with RawServer({"/": Reply(b"", end="hang")}) as server:
        fetched = await fetch(server.url("/"), spec={"timeout": 0.2})

    assert (fetched.status, code_of(fetched)) == (None, "read_timeout")
    assert 150 < fetched.elapsed_ms < 10_000


async def test_dripping_body_ends_as_total_timeout_with_what_had_arrived(fetch: Fetching) -> None:
    async def drip(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while await exchange.send(b"x"):
            await exchange.pause(0.02)

    async with RawServer({"/": drip}) as server:
        fetched = await fetch(server.url("/"), spec={"timeout": 0.3})

    assert (fetched.status, code_of(fetched)) == (200, "total_timeout")
    assert fetched.truncated
    assert 0 < len(fetched.body) < 1000


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_certificate_that_is_not_trusted_is_a_tls_failure(fetch: Fetching, host: str) -> None:
    """H31."""
    async with RawServer({"/": Reply(page())}, tls=tls_context()) as server:
        fetched = await fetch(f"https://{host}:{server.port}/")

        assert code_of(fetched) == "tls_failed"
        assert "certificate" in str(fetched.error)
        assert server.requests == []


async def test_tls_to_a_plain_port_is_a_tls_failure(fetch: Fetching) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        fetched = await fetch(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")

    assert code_of(fetched) in ("tls_failed", "connection_reset")


async def test_plain_request_to_a_tls_port_fails_and_is_named(fetch: Fetching) -> None:
    async with RawServer({}, tls=tls_context()) as server:
        fetched = await fetch(f"http://127.0.0.1:{server.port}/")

    assert fetched.status is None
    assert code_of(fetched) in ("connection_reset", "protocol_error")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.0.2", "localhost", "[::1]", "[::ffff:7f00:1]"]
)
async def test_private_addresses_are_not_connected_to(fetch: Fetching, host: str) -> None:
    address = "::1" if host == "[::1]" else "127.1.0.2" if host == "127.1.0.2" else "127.0.0.1"
    async with RawServer({"/": Reply(page())}, address=address) as server:
        url = f"http://{host}:{server.port}/"
        fetched = await fetch(url, spec={"allow_private": False})

        assert (fetched.status, code_of(fetched)) == (None, "private_address")
        assert server.connections == 0


async def test_name_that_leads_to_private_addresses_is_refused(
    fetch: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the name server says, the address connected to is what counts (rebinding)."""
    async with RawServer({"/": Reply(page())}) as server:
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", server.port)),
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", server.port, 0, 0)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        fetched = await fetch(f"http://rebound.test:{server.port}/", spec={"allow_private": False})

        assert code_of(fetched) == "private_address"
        assert server.connections == 0


async def test_proxy_may_be_private_but_addresses_in_urls_may_not(fetch: Fetching) -> None:
    url = "http://site.test/a?b=%20"
    async with RawServer({url: Reply(page(PAGE))}) as proxy:
        spec = {"allow_private": False, "proxy": f"http://user:pw@127.0.0.1:{proxy.port}"}
        through = await fetch(url, spec=spec)
        refused = await fetch("http://10.0.0.1/", spec=spec)

        assert (through.status, through.body, through.ip) == (200, PAGE, None)
        assert code_of(refused) == "private_address"
        assert [request.target for request in proxy.requests] == [url]
        assert proxy.requests[0].header("Proxy-Authorization") == "Basic dXNlcjpwdw=="


async def test_refusal_of_the_proxy_is_named(fetch: Fetching) -> None:
    reply = Reply(page(b"", status="403 Forbidden"), end="close")
    async with RawServer({"site.test:443": reply}) as proxy:
        fetched = await fetch(
            "https://site.test/", spec={"proxy": f"http://127.0.0.1:{proxy.port}"}
        )

    assert code_of(fetched) == "connect_failed"
    assert "403" in str(fetched.error)


async def test_environment_does_not_choose_the_proxy(
    fetch: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with RawServer({"/": Reply(page(PAGE))}) as server:
        assert (await fetch(server.url("/"))).body == PAGE


async def test_connection_is_kept_for_the_next_request(fetch: Fetching) -> None:
    scripts = {
        "/": Reply(page(PAGE)),
        "/gone": Reply(page(b"", status="404 Not Found")),
        "/moved": Reply(page(b"x", status="301 Moved", headers=(b"Location: /",))),
        "/chunked": Reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    }
    async with RawServer(dict(scripts)) as server:
        for path in (*scripts, *scripts):
            await fetch(server.url(path))

        assert len(server.requests) == 8
        assert server.connections == 1


async def test_requests_at_one_time_share_as_many_connections_as_a_host_may_have(
    fetch: Fetching,
) -> None:
    async def slow(exchange: Exchange) -> Reply:
        await exchange.pause(0.05)
        return Reply(page(PAGE))

    async with RawServer({"/": slow}) as server:
        url = server.url("/")
        many = [fetch(url, spec={"per_host": 3}) for _ in range(9)]
        assert {fetched.status for fetched in await asyncio.gather(*many)} == {200}

        assert server.connections == 3


async def test_dropped_request_is_not_sent_again(fetch: Fetching) -> None:
    """The library would, at once and without asking: a politeness violation."""
    async with RawServer({"/": Reply(b"", end="close")}) as server:
        fetched = await fetch(server.url("/"))

        assert code_of(fetched) == "connection_reset"
        assert len(server.requests) == 1


async def drop_kept_connections(exchange: Exchange) -> Reply:
    """Answer on a connection's first request only: the server has let the idle connection go."""
    is_first = exchange.request.connection != drop_kept_connections.last  # type: ignore[attr-defined]
    drop_kept_connections.last = exchange.request.connection  # type: ignore[attr-defined]
    return Reply(page(PAGE)) if is_first else Reply(b"", end="close")


async def test_kept_connection_that_is_dead_is_replaced_after_the_pause(fetch: Fetching) -> None:
    waits: list[float] = []

    async def wait(ended_at: float) -> bool:
        waits.append(time.monotonic() - ended_at)
        return True

    drop_kept_connections.last = 0  # type: ignore[attr-defined]
    async with RawServer({"/": drop_kept_connections}) as server:
        first = await fetch(server.url("/"), wait_before_hop=wait)
        second = await fetch(server.url("/"), wait_before_hop=wait)

        assert first.body == second.body == PAGE
        assert second.error is None
        assert len(server.requests) == 3
    assert len(waits) == 1


async def test_dead_connection_is_not_replaced_without_leave(fetch: Fetching) -> None:
    async def never(_ended_at: float) -> bool:
        return False

    drop_kept_connections.last = 0  # type: ignore[attr-defined]
    async with RawServer({"/": drop_kept_connections}) as server:
        await fetch(server.url("/"))
        fetched = await fetch(server.url("/"), wait_before_hop=never)

        assert fetched.abandoned
        assert code_of(fetched) == "connection_reset"
        assert len(server.requests) == 2


def was_asked(server: RawServer, path: str) -> bool:
    return any(request.target == path for request in server.requests)


async def test_cancelled_fetch_gives_its_connection_back() -> None:
    fetcher = Fetcher(JobSpec(allow_private=True, timeout=5), connections=1)

    async def get(url: str) -> bytes:
        fetched = await fetcher.fetch(url, wait_before_hop=at_once, is_bounce=lambda _: False)
        return fetched.body

    half = Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", end="hang")
    async with RawServer({"/silent": Reply(b"", end="hang"), "/half": half}) as server:
        server.scripts["/"] = Reply(page(PAGE))
        for number, path in enumerate(("/silent", "/half"), start=1):
            task = asyncio.create_task(get(server.url(path)))
            await until_true(partial(was_asked, server, path))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(2):
                assert await get(server.url("/")) == PAGE
            assert len(server.requests) == 2 * number
    await fetcher.close()


async def test_closing_ends_running_fetches() -> None:
    fetcher = Fetcher(JobSpec(allow_private=True, timeout=30), connections=1)
    async with RawServer({"/": Reply(b"", end="hang")}) as server:
        task = asyncio.create_task(
            fetcher.fetch(server.url("/"), wait_before_hop=at_once, is_bounce=lambda _: False)
        )
        await until_true(lambda: len(server.requests) > 0)
        await fetcher.close()
        async with asyncio.timeout(5):
            fetched = await task

    assert fetched.error is not None
