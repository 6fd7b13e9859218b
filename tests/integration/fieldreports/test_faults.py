"""Field reports about processes, services, TLS and memory: what dies, stops, hangs or grows.

Run together (tests/support/concert.py); workers that have to be killed are processes.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
import time
import warnings
from collections import Counter
from typing import Any, Final

import trustme

from common.coord import EtcdOptions, Session, connect
from tests.support.concert import Concert, Stage
from tests.support.crawling import crawls
from tests.support.fetching import Fetching, code_of
from tests.support.rawserver import Exchange, RawServer, Reply, Script, page, serving
from tests.support.servers import start_etcd, start_redis, stopping
from tests.support.tcpproxy import TcpProxy
from tests.support.waiting import until, until_true
from worker.fetch import Fetcher

CONCERT: Final = Concert()
HTML = b"Content-Type: text/html"


def linking(*targets: str) -> Reply:
    anchors = "".join(f'<a href="{target}">x</a>' for target in targets)
    return Reply(page(f"<title>good</title>{anchors}".encode(), headers=(HTML,)))


class Gate:
    """Answers only once it is open."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> Reply:
        stopped = asyncio.create_task(exchange.stopping.wait())
        opened = asyncio.create_task(self.is_open.wait())
        await asyncio.wait({stopped, opened}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        opened.cancel()
        return linking()


def asked(site: RawServer) -> Counter[str]:
    return Counter(one.target for one in site.requests if one.target != "/robots.txt")


PAGES: Final = [f"/{number}" for number in range(20)]


@CONCERT.test
async def test_h23_what_was_in_flight_when_all_workers_died_is_fetched(stage: Stage) -> None:
    """Requests popped and in flight at a crash were gone."""
    gate = Gate()
    async with (
        RawServer(dict.fromkeys(PAGES, gate)) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=0) as running,
    ):
        dying = [running.process("a"), running.process("b")]
        await running.submit(*map(site.url, PAGES), per_host=20, timeout=5.0)
        await until_true(lambda: len(asked(site)) == len(PAGES), within_s=60)
        for process in dying:
            process.kill()
        gate.is_open.set()
        running.worker("next")
        found = await running.finished()
    assert {site.url(path) for path in PAGES} == found.keys()
    assert {"fetched"} == {record["outcome"] for record in found.values()}


@CONCERT.test
async def test_h24_two_signals_lose_nothing_and_end_in_time(stage: Stage) -> None:
    """A second signal lost the queue in memory."""
    gate = Gate()
    async with (
        RawServer(dict.fromkeys(PAGES, gate)) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=0) as running,
    ):
        leaving = running.process("leaving")
        await running.submit(*map(site.url, PAGES), per_host=5, timeout=5.0)
        await until_true(lambda: len(asked(site)) == 5, within_s=60)
        leaving.signal(signal.SIGTERM)
        await asyncio.sleep(1.0)  # the report's: the second signal comes a second later
        leaving.signal(signal.SIGTERM)
        await leaving.ended(within_s=30)
        gate.is_open.set()
        running.worker("next")
        found = await running.finished()
    assert {site.url(path) for path in PAGES} == found.keys()
    assert max(asked(site).values()) <= 2


@CONCERT.test
async def test_h27_a_worker_that_was_stopped_past_its_lease_commits_nothing(stage: Stage) -> None:
    """A waiter was told that it held a lock whose lease had ended meanwhile."""
    gate = Gate()
    async with (
        RawServer({"/": gate}) as site,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=0) as running,
    ):
        stopped = running.process("stopped")
        await running.submit(site.url("/"), timeout=5.0, shards=1)
        await until_true(lambda: asked(site)["/"] == 1, within_s=60)
        stopped.signal(signal.SIGSTOP)
        gate.is_open.set()
        running.worker("next")
        await until_true(lambda: asked(site)["/"] == 2, within_s=60)
        stopped.signal(signal.SIGCONT)
        found = await running.finished()
    assert [("next", "fetched")] == [(one["worker"], one["outcome"]) for one in found.values()]


@CONCERT.test
async def test_h37_the_urls_of_a_killed_worker_are_taken_over_within_seconds(stage: Stage) -> None:
    """Items of a killed worker were blocked until a long timeout."""
    first = Gate()
    sites = [RawServer({"/": first}, f"127.0.7.{number}") for number in range(1, 7)]
    async with (
        serving(sites),
        crawls(stage.etcd, stage.redis, cluster=stage.cluster, workers=0) as running,
    ):
        killed = running.process("killed")
        await running.submit(*(site.url("/") for site in sites), timeout=5.0, shards=4)
        await until_true(lambda: all(asked(site)["/"] == 1 for site in sites), within_s=60)
        killed.kill()
        killed_at = time.monotonic()
        first.is_open.set()
        running.worker("b")
        running.worker("c")
        found = await running.finished()
        took_s = time.monotonic() - killed_at
    assert len(sites) == len(found)
    assert {"fetched"} == {record["outcome"] for record in found.values()}
    # Lease 2 s, and a request that may still be under way: 5 s to send it, 5 s to last.
    assert took_s < 30


@CONCERT.test
async def test_h41_workers_wait_while_a_store_is_down_and_go_on(stage: Stage) -> None:
    """A store that was down for a moment ended the worker."""
    pages = [f"/{number}" for number in range(60)]
    etcd = await asyncio.to_thread(start_etcd, stage.folder / "etcd")
    redis = await asyncio.to_thread(start_redis, stage.folder / "redis")
    with stopping(etcd), stopping(redis):
        async with (
            RawServer({path: linking() for path in pages}) as site,
            crawls(etcd.endpoint, redis.url, cluster=stage.cluster, workers=2) as running,
        ):
            await running.submit(*map(site.url, pages), delay=0.1)
            for server, after in ((redis, 10), (etcd, 25)):
                await until_true(lambda after=after: len(asked(site)) >= after, within_s=60)  # type: ignore[misc]
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(2.0)  # the report's: down for a while
                await asyncio.to_thread(server.restart)
            found = await running.finished(within_s=120)
            await running.close()
    assert {site.url(path) for path in pages} == found.keys()
    assert {"fetched"} == {record["outcome"] for record in found.values()}


@CONCERT.alone
async def test_h42_a_member_that_answers_but_keeps_no_lease_is_left(stage: Stage) -> None:
    """A client stayed with a member whose keepalives hung, and lost its lease."""
    async with TcpProxy(stage.etcd) as sick:
        options = EtcdOptions(endpoints=(sick.endpoint, stage.etcd))
        coord = await connect(options, cluster=stage.cluster)
        transport = coord.etcd._transport
        while transport.members[transport._current].endpoint != sick.endpoint:
            transport._current = (transport._current + 1) % 2
        session = await Session.open(coord.etcd, ttl_s=5.0)
        sick.hold_from = b"\x08" + _varint(session.lease)  # a LeaseKeepAliveRequest of it
        await asyncio.sleep(7.0)  # longer than the lease
        assert session.is_live
        assert await coord.etcd.lease_ttl_s(session.lease) is not None
        await session.close()
        await coord.close()


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


async def _plain_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    writer.close()


def _server_side(cert: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert.configure_cert(context)
    return context


@CONCERT.test
async def test_h31_each_tls_failure_is_named_and_hurts_only_itself(stage: Stage) -> None:
    """A certificate problem ended as a handshake error that was tried again and again."""
    ca = trustme.CA()
    contexts = {
        "self-signed": _server_side(trustme.CA().issue_cert("127.0.0.1")),
        "wrong name": _server_side(ca.issue_cert("other.test")),
        "old protocol": _server_side(ca.issue_cert("127.0.0.1")),
    }
    with warnings.catch_warnings():  # that it is old is the point
        warnings.simplefilter("ignore", DeprecationWarning)
        contexts["old protocol"].minimum_version = ssl.TLSVersion.TLSv1
        contexts["old protocol"].maximum_version = ssl.TLSVersion.TLSv1
    fetching = Fetching()
    try:
        for kind, context in contexts.items():
            async with RawServer({"/": linking()}, tls=context) as site:
                fetched = await fetching(site.url("/"))
                assert code_of(fetched) in ("tls_failed", "connection_reset"), kind
                assert fetched.error is not None
                assert "secure connection" in fetched.error.message
        async with RawServer({"/": linking()}) as plain:
            assert 200 == (await fetching(plain.url("/"))).status
        no_tls = await asyncio.start_server(_plain_answer, "127.0.0.1", 0)
        async with no_tls:
            port = no_tls.sockets[0].getsockname()[1]
            fetched = await fetching(f"https://127.0.0.1:{port}/")
        assert code_of(fetched) in ("tls_failed", "connection_reset")
    finally:
        await fetching.close()
    assert stage.folder.exists()


@CONCERT.test
async def test_h40_what_is_kept_for_each_host_is_bounded(stage: Stage) -> None:
    """Objects kept for each host were never freed: a crawl of many hosts grew without end."""
    hosts = 400

    async def any_host(exchange: Exchange) -> Reply:
        if exchange.request.target.endswith("/robots.txt"):
            return Reply(page(b"", status="404 Nothing"))
        fields = tuple(b"Set-Cookie: c%d=%s" % (number, b"v" * 900) for number in range(60))
        return Reply(page(b"<title>x</title>", headers=(HTML, *fields)))

    class Proxy(dict[str, Script]):
        def get(self, key: str, default: Any = None) -> Any:
            return any_host

    async with (
        RawServer(Proxy()) as proxy,
        crawls(stage.etcd, stage.redis, cluster=stage.cluster) as running,
    ):
        seeds = [f"http://h{number}.test/" for number in range(hosts)]
        await running.submit(*seeds, proxy=proxy.url(""), scope="any", keep_open=True)

        async def are_fetched() -> bool:
            return (await running.counters())["fetched"] == hosts

        await until(are_fetched, within_s=120)
        jars = [
            list(one._session.cookie_jar)
            for one in gc.get_objects()
            if isinstance(one, Fetcher) and proxy.url("") in str(one._session._default_proxy)
        ]
        assert jars
        for jar in jars:
            assert sum(len(one.key) + len(one.value) for one in jar) < 8_000_000
            assert max(Counter(one["domain"] for one in jar).values()) <= 180
        await running.change(keep_open=False)
        found = await running.finished()
    assert hosts == len(found)
