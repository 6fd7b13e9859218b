"""A server that takes no writes for a while: who works says why, loses nothing, and goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from common.frontier import FrontierClient, RedisOptions
from common.frontier.replies import Adopted
from common.model.errors import FrontierUnavailable
from common.model.job import JobSpec
from tests.integration.frontier.conftest import Starter
from tests.integration.frontier.shard import Shard, claim, commit, drain, page, pages
from tests.support.servers import RedisServer, free_ports, stopping

Step = Callable[[FrontierClient, RedisServer], Awaitable[None]]


@pytest.fixture
def server(start_server: Starter, tmp_path: Path) -> Iterator[RedisServer]:
    server = start_server(tmp_path)
    with stopping(server):
        yield server


@pytest.fixture
async def shard(server: RedisServer, cluster_name: str) -> AsyncIterator[Shard]:
    client = FrontierClient(RedisOptions(urls=(server.url,)))
    await client.open()
    yield await Shard(client, cluster_name, JobSpec(shards=1, delay=0, per_host=32)).create()
    await client.close()


async def _set(client: FrontierClient, name: str, value: str | int) -> None:
    await client.commands([("CONFIG", "SET", name, value)])


async def _fill_memory(client: FrontierClient, _: RedisServer) -> None:
    await _set(client, "maxmemory", 1)


async def _free_memory(client: FrontierClient, _: RedisServer) -> None:
    await _set(client, "maxmemory", 0)


async def _follow_nobody(client: FrontierClient, _: RedisServer) -> None:
    (port,) = free_ports(1)
    await client.commands([("REPLICAOF", "127.0.0.1", port)])


async def _follow_nobody_and_say_nothing(client: FrontierClient, server: RedisServer) -> None:
    await _set(client, "replica-serve-stale-data", "no")
    await _follow_nobody(client, server)


async def _lead(client: FrontierClient, _: RedisServer) -> None:
    await client.commands([("REPLICAOF", "NO", "ONE")])


async def _break_the_disk(client: FrontierClient, server: RedisServer) -> None:
    """A snapshot cannot take the place of a folder: saving fails, and writes are refused."""
    (server.folder / "dump.rdb").mkdir()
    await _set(client, "save", "900 1")
    await _save(client, status=b"rdb_last_bgsave_status:err")


async def _mend_the_disk(client: FrontierClient, server: RedisServer) -> None:
    (server.folder / "dump.rdb").rmdir()
    await _save(client, status=b"rdb_last_bgsave_status:ok")


async def _save(client: FrontierClient, *, status: bytes) -> None:
    await client.commands([("BGSAVE",)])
    deadline = time.monotonic() + 30
    while status not in (await client.commands([("INFO", "persistence")]))[0]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


STATES = {
    "out of memory": (_fill_memory, _free_memory, "raise maxmemory"),
    "read only": (_follow_nobody, _lead, "address of the master"),
    "replica without master": (_follow_nobody_and_say_nothing, _lead, "address of the master"),
    "disk": (_break_the_disk, _mend_the_disk, "its disk is full or broken"),
}


@pytest.mark.parametrize("name", STATES)
async def test_while_writes_are_refused_nothing_is_lost_and_it_is_said_why(
    shard: Shard, server: RedisServer, name: str
) -> None:
    harm, mend, said = STATES[name]
    owner = await shard.adopted()
    await shard.offer(*pages(40))
    held = (await claim(owner, 8)).claims
    await shard.client.probe()
    await harm(shard.client, server)
    for refused in (
        shard.client.probe,
        lambda: shard.try_offer(*pages(80)),
        lambda: owner.claim(3, [(held[0].host, 0)]),
        lambda: commit(owner, held),
        lambda: shard.adopt(shard.owner(11)),
    ):
        with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{server.port} refuses.*{said}"):
            await refused()
    await mend(shard.client, server)
    await shard.client.probe()
    assert isinstance(await shard.adopt(owner), Adopted)
    assert await commit(owner, held) == []
    await shard.offer(*pages(80))
    await drain(owner)
    assert sorted((await shard.assert_sound()).results) == sorted(pages(80))


async def test_a_server_that_loads_its_data_is_waited_for(
    shard: Shard, server: RedisServer
) -> None:
    owner = await shard.adopted()
    await shard.offer(*(page(0, f"http://h{number}.example") for number in range(60)))
    held = (await claim(owner, 8)).claims
    await shard.client.commands([("BGREWRITEAOF",)])
    deadline = time.monotonic() + 30
    while b"aof_rewrite_in_progress:1" in (await shard.client.commands([("INFO",)]))[0]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    server.kill()
    slowly = ("--key-load-delay", "30000", "--loading-process-events-interval-bytes", "1024")
    server._options = (*server._options, *slowly)
    server.launch()
    said: set[str] = set()
    while True:
        assert time.monotonic() < deadline
        try:
            await shard.client.probe()
        except FrontierUnavailable as error:
            said.add("loading" if "is still loading its data" in str(error) else "other")
            await asyncio.sleep(0.01)
        else:
            break
    assert "loading" in said
    assert isinstance(await shard.adopt(owner), Adopted)
    assert await commit(owner, held) == []
    await drain(owner)
    assert len((await shard.assert_sound()).results) == 60
