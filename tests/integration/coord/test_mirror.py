"""Mirrors of a real etcd that restarts, is cut off, and compacts its history."""

from __future__ import annotations

import asyncio

from common.coord import Coord, KeyValue, Mirror
from common.coord.wire import Delete, Event, Put, messages
from tests.integration.coord.conftest import Connect
from tests.support.servers import EtcdServer
from tests.support.tcpproxy import TcpProxy
from tests.support.waiting import until_true


async def put(coord: Coord, name: str, value: bytes = b"") -> int:
    key = f"{coord.keys.jobs}{name}"
    return (await coord.etcd.txn(compare=(), success=[Put(key, value)])).revision


async def delete(coord: Coord, name: str) -> int:
    key = f"{coord.keys.jobs}{name}"
    return (await coord.etcd.txn(compare=(), success=[Delete(key)])).revision


async def compact(coord: Coord, revision: int) -> None:
    request = messages.CompactionRequest(revision=revision, physical=True)
    await coord.etcd._transport.call(lambda member, options: member.kv.Compact(request, **options))


async def equal_to_etcd(mirror: Mirror, coord: Coord) -> None:
    """Wait until the copy is what etcd holds."""
    truth = (await coord.etcd.get_prefix(coord.keys.jobs)).items
    await until_true(lambda: mirror.items == truth)


async def test_a_mirror_holds_what_is_there_and_tells_of_changes(coord: Coord) -> None:
    await put(coord, "a", b"1")
    mirror = Mirror(coord.etcd, coord.keys.jobs)
    await mirror.start()
    assert [kv.value for kv in mirror.items.values()] == [b"1"]
    assert not await mirror.changed(timeout_s=0.05), "nothing changed since the start"

    revision = await put(coord, "a", b"2")
    assert await mirror.changed(timeout_s=5)
    assert [kv.value for kv in mirror.items.values()] == [b"2"]
    assert mirror.revision == revision
    await delete(coord, "a")
    assert await mirror.changed(timeout_s=5)
    assert mirror.items == {}
    assert not await mirror.changed(timeout_s=0.05)
    await mirror.close()
    await mirror.close()


async def test_a_mirror_follows_a_thousand_quick_changes(coord: Coord) -> None:
    mirror = Mirror(coord.etcd, coord.keys.jobs)
    await mirror.start()

    async def change(worker: int) -> None:
        for turn in range(100):
            name = f"k{(worker * 7 + turn) % 23}"
            if turn % 5 == 4:
                await delete(coord, name)
            else:
                await put(coord, name, f"{worker}-{turn}".encode())

    await asyncio.gather(*(change(worker) for worker in range(10)))
    await equal_to_etcd(mirror, coord)
    await mirror.close()


async def test_a_mirror_resumes_after_a_restart_of_etcd(
    own_etcd: EtcdServer, connected: Connect
) -> None:
    coord, writer = await connected(own_etcd.endpoint), await connected(own_etcd.endpoint)
    mirror = Mirror(coord.etcd, coord.keys.jobs)
    await put(writer, "a")
    await mirror.start()
    for turn in range(2):
        own_etcd.kill()
        own_etcd.restart()
        # A read is asked again when it meets the end of the old connection; a write is not.
        await writer.etcd.get(coord.keys.buried)
        await put(writer, f"b{turn}")
        await equal_to_etcd(mirror, writer)
    await mirror.close()


async def test_a_mirror_misses_nothing_while_it_is_cut_off(
    etcd_server: EtcdServer, coord: Coord, connected: Connect
) -> None:
    """R15: it resumes from the last event, so changes in between arrive, and none twice."""
    async with TcpProxy(etcd_server.endpoint) as proxy:
        far = await connected(proxy.endpoint)
        mirror = Mirror(far.etcd, coord.keys.jobs)
        await put(coord, "gone")
        await mirror.start()
        proxy.is_refusing = True
        await proxy.cut()
        await put(coord, "new", b"1")
        await put(coord, "new", b"2")
        await delete(coord, "gone")
        proxy.is_refusing = False
        await equal_to_etcd(mirror, coord)
        await mirror.close()


async def test_a_mirror_lists_again_when_the_history_it_missed_is_compacted(
    own_etcd: EtcdServer, connected: Connect
) -> None:
    """R15: a deletion in the lost part of the history is noticed all the same."""
    coord = await connected(own_etcd.endpoint)
    async with TcpProxy(own_etcd.endpoint) as proxy:
        far = await connected(proxy.endpoint)
        mirror = Mirror(far.etcd, coord.keys.jobs)
        await put(coord, "gone")
        await put(coord, "kept")
        await mirror.start()
        proxy.is_refusing = True
        await proxy.cut()
        await delete(coord, "gone")
        await put(coord, "new")
        await compact(coord, await put(coord, "last"))
        proxy.is_refusing = False
        assert await mirror.changed(timeout_s=10)
        await equal_to_etcd(mirror, coord)
        await put(coord, "after")
        await equal_to_etcd(mirror, coord)
        await mirror.close()


async def test_events_that_come_twice_change_nothing(coord: Coord) -> None:
    """R15: an event not newer than what was applied is dropped, also one of a deleted key."""
    mirror = Mirror(coord.etcd, coord.keys.jobs)
    await put(coord, "a", b"1")
    await mirror.start()
    old = next(iter(mirror.items.values()))
    await put(coord, "a", b"2")
    await mirror.changed(timeout_s=5)
    before = dict(mirror.items)
    mirror._apply([Event(old, is_delete=False)])
    mirror._apply([Event(KeyValue(old.key, b"", 0, old.mod_revision, 0), is_delete=True)])
    assert mirror.items == before
    await mirror.close()
