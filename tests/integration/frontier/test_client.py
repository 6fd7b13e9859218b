"""The connection: what is healed silently, what is refused, and how long an answer takes."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from common.frontier import FrontierClient, RedisOptions, scripts
from common.frontier.replies import Claimed, Offered, ShardState
from common.frontier.scripts import Call
from common.model.errors import FrontierUnavailable, ScriptBug, SettingsError
from common.model.job import JobSpec
from tests.integration.frontier.conftest import MakeShard, Starter
from tests.integration.frontier.shard import (
    FENCE,
    Shard,
    again,
    back,
    claim,
    commit,
    drain,
    finished,
    page,
    pages,
    server_info,
)
from tests.support.servers import RedisServer, free_ports, stopping


async def _open(url: str, *, timeout_s: float = 3.0) -> FrontierClient:
    client = FrontierClient(RedisOptions(urls=(url,)))
    await client.open(timeout_s=timeout_s)
    return client


async def test_scripts_flushed_from_the_server_are_sent_again(make_shard: MakeShard) -> None:
    shard = await make_shard(per_host=4).create()
    owner = await shard.adopted()
    for number in range(3):
        await shard.client.commands([("SCRIPT", "FLUSH")])
        assert await shard.offer(page(number)) == Offered(1, number + 1)
        await shard.client.commands([("SCRIPT", "FLUSH")])
        assert await commit(owner, (await claim(owner)).claims) == []
    await shard.client.commands([("SCRIPT", "FLUSH")])
    assert (await shard.counters())["fetched"] == 3
    # In the middle of a pipeline too: three scripts in one round trip.
    await shard.client.commands([("SCRIPT", "FLUSH")])
    assert await shard.master.apply(ShardState.OPEN, fence=FENCE) == [None]
    await shard.assert_sound()


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "plain"])
async def test_every_script_compiles(client: FrontierClient, strict: bool) -> None:
    """Plain is what Redis 6.2 gets; it runs on newer servers too."""
    loaded = scripts.load(strict=strict)
    shas = await client.commands([("SCRIPT", "LOAD", one.source) for one in loaded.values()])
    assert [sha.decode() for sha in shas] == [one.sha for one in loaded.values()]


@pytest.mark.one_server
async def test_scripts_without_the_engines_mark_do_the_same(make_shard: MakeShard) -> None:
    shard = make_shard(per_host=2)
    for _ in range(4):
        (server,) = await shard.client.servers()
        async with server.link() as link:
            link.strict = False
            await link.exchange(
                [("SCRIPT", "LOAD", one.source) for one in scripts.load(strict=False).values()]
            )
    await shard.create()
    owner = await shard.adopted()
    await shard.offer(*pages(5))
    await drain(owner)
    assert (await shard.assert_sound()).results == pages(5)


async def test_the_server_tells_what_it_is(data_server: RedisServer) -> None:
    client = await _open(data_server.url)
    info = await server_info(client)
    assert info.run_id == client.known_run("any") == await client.current_run("any")
    assert (info.appendonly, info.appendfsync, info.eviction) == (True, "always", "noeviction")
    assert abs(info.clock_s - time.time()) < 60
    assert int(info.version.split(".")[0]) >= 6
    await client.close()


async def test_a_closed_port_is_named_within_seconds() -> None:
    (port,) = free_ports(1)
    began = time.monotonic()
    with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{port}"):
        await _open(f"redis://127.0.0.1:{port}/0")
    assert time.monotonic() - began < 20


async def test_a_silent_server_is_named_within_seconds() -> None:
    """It accepts and never answers, as a stopped one does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(FrontierUnavailable, match=f":{port} did not answer within 0.5 s"):
            await _open(f"redis://127.0.0.1:{port}/0", timeout_s=0.5)
        assert time.monotonic() - began < 20


async def test_what_is_no_redis_is_named_as_such() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = FrontierClient(RedisOptions(urls=(f"redis://127.0.0.1:{port}/0",)))
        with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{port} does not answer like"):
            await client.open()


async def test_a_wrong_or_missing_password_is_a_setting(
    start_server: Starter, tmp_path: Path
) -> None:
    server = start_server(tmp_path)
    with stopping(server):
        admin = await _open(server.url)
        await admin.commands([("CONFIG", "SET", "requirepass", "right")])
        await admin.close()
        for login in (":wrong@", "nobody:right@", ""):
            with pytest.raises(SettingsError, match=f"127.0.0.1:{server.port}.*credentials"):
                await _open(f"redis://{login}127.0.0.1:{server.port}/0")
        client = await _open(f"redis://:right@127.0.0.1:{server.port}/0")
        await client.close()


async def test_a_user_without_rights_is_a_setting(start_server: Starter, tmp_path: Path) -> None:
    server = start_server(tmp_path)
    with stopping(server):
        admin = await _open(server.url)
        await admin.commands([("ACL", "SETUSER", "weak", "on", ">pw", "~*", "+info", "+ping")])
        with pytest.raises(SettingsError, match="does not let this user run"):
            await _open(f"redis://weak:pw@127.0.0.1:{server.port}/0")
        await admin.close()


async def test_a_server_that_may_evict_keys_is_refused(
    start_server: Starter, tmp_path: Path
) -> None:
    server = start_server(tmp_path)
    with stopping(server):
        admin = await _open(server.url)
        await admin.commands([("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")])
        with pytest.raises(SettingsError, match=r"may evict keys.*noeviction"):
            await _open(server.url)
        await admin.close()


async def test_out_of_memory_is_unavailable_and_leaves_nothing_half_done(
    start_server: Starter, cluster_name: str, tmp_path: Path
) -> None:
    server = start_server(tmp_path)
    with stopping(server):
        client = await _open(server.url)
        spec = JobSpec(shards=1, delay=0, per_host=3)
        shard = await Shard(client, cluster_name, spec).create()
        owner = await shard.adopted()
        await shard.offer(*pages(500))
        held = (await claim(owner)).claims
        before = await shard.assert_sound()
        await client.commands([("CONFIG", "SET", "maxmemory", 1)])

        ends: tuple[dict[str, Any], ...] = (
            {"finished": [finished(held[0])], "filtered": {"deny: x": 1}},
            {"retries": [again(held[1], after_ms=9)]},
            {"releases": [back(held[2])]},
        )
        for refused in (
            shard.try_offer(*pages(900)),
            owner.claim(3, [(held[0].host, 0)]),
            shard.adopt(shard.owner(11)),
            *(owner.settle(**end) for end in ends),
        ):
            with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{server.port}.*OOM|memory"):
                await refused
        after = await shard.assert_sound()
        assert after._replace(now_ms=0) == before._replace(now_ms=0)

        # Whoever looks, stops the job or deletes it is let through, also on a new connection.
        fresh = Shard(await _open(server.url), cluster_name, spec)
        assert await fresh.counters() == await shard.counters()
        assert await fresh.master.apply(ShardState.CANCELLED, fence=FENCE) == [None]
        await owner.free([(held[0].number, 0)])
        await fresh.client.close()

        await client.commands([("CONFIG", "SET", "maxmemory", 0)])
        await shard.master.apply(ShardState.OPEN, fence=FENCE)
        assert await shard.adopt(owner)
        for end in ends:
            await owner.settle(**end)
        assert (await shard.offer(*pages(900))).admitted == 400
        await shard.assert_sound()
        await client.close()


async def test_a_read_only_replica_is_unavailable(start_server: Starter, tmp_path: Path) -> None:
    server = start_server(tmp_path)
    with stopping(server):
        client = await _open(server.url)
        shard = await Shard(client, "c", JobSpec(shards=1)).create()
        (port,) = free_ports(1)
        await client.commands([("REPLICAOF", "127.0.0.1", port)])
        with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{server.port} refuses writes"):
            await shard.try_offer(page(1))
        await client.close()


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ((), "give the URL"),
        (
            ("redis://u:secret@a", "redis://u:secret@b/2"),
            "has database 0 only; leave the number",
        ),
        (("redis://u:secret@a", "redis://u:other@b"), "spoken with in one way"),
        (("redis://u:secret@a", "rediss://u:secret@b"), "spoken with in one way"),
        (("http://user:secret@host:1/",), r"http://\*\*\*@host:1/.*is not a Redis URL"),
        (("redis://h:port/0",), "is not a Redis URL"),
    ],
)
def test_a_bad_url_is_a_setting_and_hides_the_password(urls: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        FrontierClient(RedisOptions(urls=urls))
    assert "secret" not in str(caught.value)


async def test_a_cancelled_call_leaves_no_connection_out_of_step(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    for _ in range(20):
        call = asyncio.create_task(shard.try_offer(*pages(500)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert (await shard.stats()).exists
    await shard.assert_sound()


async def _reads(client: FrontierClient) -> int:
    """Return how often the server has read from a connection."""
    (raw,) = await client.commands([("INFO", "stats")])
    return int(raw.split(b"total_reads_processed:")[1].split()[0])


@pytest.mark.one_server
async def test_calls_of_many_tasks_share_round_trips(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    before = await _reads(shard.client)
    answers = await asyncio.gather(*(shard.offer(page(number)) for number in range(200)))
    # Two of them are the looks at the server; each call alone would be a read at least.
    assert await _reads(shard.client) - before < 50
    assert sorted(one.discovered for one in answers) == list(range(1, 201))
    await shard.assert_sound()


@pytest.mark.one_server
async def test_what_is_wrong_with_a_call_is_told_to_its_caller_alone(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    owner = await shard.adopted()
    (server,) = await shard.client.servers()
    other_run = Call("offer", [shard.keys.meta], [], "another run")
    answers = await asyncio.gather(
        shard.offer(page(1)),
        server.call([Call("offer", [], [])]),
        server.call([other_run, other_run]),
        owner.claim(1, []),
        server.call([Call("offer", [], ["4"])]),
        return_exceptions=True,
    )
    assert answers[0] == Offered(1, 1)
    assert answers[2] == [[b"RUN"], [b"RUN"]]
    assert isinstance(answers[3], Claimed)
    assert [type(answers[at]) for at in (1, 4)] == [ScriptBug, ScriptBug]
    await shard.assert_sound()


async def test_nobody_waits_longer_for_a_silent_server_since_others_do(
    start_server: Starter,
    cluster_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("common.frontier.link.CALL_TIMEOUT_S", 1.0)
    monkeypatch.setattr("common.frontier.data_server.CALL_TIMEOUT_S", 1.0)
    server = start_server(tmp_path)
    with stopping(server):
        client = await _open(server.url)
        shard = await Shard(client, cluster_name, JobSpec(shards=1)).create()
        server.pause()
        began = time.monotonic()
        calls = [asyncio.create_task(shard.try_offer(page(1)))]
        await asyncio.sleep(0.2)
        calls += [asyncio.create_task(shard.try_offer(page(number))) for number in range(2, 9)]
        told = await asyncio.gather(*calls, return_exceptions=True)
        took_s = time.monotonic() - began
        server.resume()
        assert {type(one) for one in told} == {FrontierUnavailable}
        assert took_s < 1.9  # a second wait would make it two
        answers = await asyncio.gather(*(shard.offer(page(number)) for number in range(1, 9)))
        assert max(one.discovered for one in answers) == 8
        await shard.assert_sound()
        await client.close()


async def test_calls_under_way_fail_where_the_client_is_closed(
    start_server: Starter, cluster_name: str, tmp_path: Path
) -> None:
    server = start_server(tmp_path)
    with stopping(server):
        client = await _open(server.url)
        shard = await Shard(client, cluster_name, JobSpec(shards=1)).create()
        server.pause()
        calls = [asyncio.create_task(shard.try_offer(page(1)))]
        await asyncio.sleep(0.1)
        calls += [asyncio.create_task(shard.try_offer(page(2)))]
        await asyncio.sleep(0.1)
        await client.close()
        told = await asyncio.gather(*calls, return_exceptions=True)
        server.resume()
        assert [type(one) for one in told] == [FrontierUnavailable] * 2
