"""Consumer groups of results: who is given what, and what may be trimmed."""

from __future__ import annotations

import pytest

from common.frontier.results import ResultGroup
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import JOB, Shard

pytestmark = pytest.mark.on_cluster


def group(shard: Shard, name: str, reader: str = "r") -> ResultGroup:
    return ResultGroup(
        shard.client, cluster=shard.cluster, job=JOB, shards=1, group=name, reader=reader
    )


async def add(shard: Shard, count: int) -> list[str]:
    """Write results; return their ids."""
    ids = await shard.client.commands(
        [("XADD", shard.keys.results, "*", "r", b'{"url":"u"}') for _ in range(count)]
    )
    return [entry.decode() for entry in ids]


async def left(shard: Shard) -> list[str]:
    return [entry for entry, _ in await shard.master.results(0, after="0-0", count=1000)]


async def test_a_group_is_not_made_on_a_shard_that_is_missing(make_shard: MakeShard) -> None:
    shard = make_shard()
    assert await group(shard, "a").enrol() is None
    assert [0] == await shard.client.commands([("EXISTS", shard.keys.results)])
    assert await group(shard, "a").trim(0) == 0


async def test_each_record_is_given_to_one_reader_until_it_acknowledges(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    one, other = group(shard, "a", "one"), group(shard, "a", "other")
    assert await one.enrol() == 0
    assert await other.enrol() == 0
    assert await one.new(0, count=10) == []
    ids = await add(shard, 5)
    assert [given.entry for given in await one.new(0, count=2)] == ids[:2]
    assert [given.entry for given in await other.new(0, count=10)] == ids[2:]
    assert [given.entry for given in await one.pending(0, after="0-0", count=10)] == ids[:2]
    assert [given.entry for given in await one.pending(0, after=ids[0], count=10)] == ids[1:2]
    await one.acknowledge(0, ids[:1])
    await one.acknowledge(0, ids[:1])
    assert [given.entry for given in await one.pending(0, after="0-0", count=10)] == ids[1:2]
    assert await one.held_by_others() == {"other": 3}


async def test_nothing_is_trimmed_without_a_group(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    ids = await add(shard, 3)
    assert await group(shard, "a").trim(0) == 0
    assert await left(shard) == ids


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])  # the server lists them by name
async def test_only_what_every_group_has_acknowledged_is_trimmed(
    make_shard: MakeShard, names: tuple[str, str]
) -> None:
    shard = await make_shard().create()
    fast, slow = (group(shard, name) for name in names)
    await fast.enrol()
    await slow.enrol()
    ids = await add(shard, 6)
    await fast.new(0, count=10)
    await fast.acknowledge(0, ids)
    assert await fast.trim(0) == 0, "slow has read nothing"
    await slow.new(0, count=4)
    assert await fast.trim(0) == 0, "slow has acknowledged nothing"
    await slow.acknowledge(0, [ids[0], ids[2], ids[3]])
    assert await slow.trim(0) == 1
    assert await left(shard) == ids[1:]
    await slow.acknowledge(0, [ids[1]])
    assert await slow.trim(0) == 3
    assert await left(shard) == ids[4:]
    assert (await shard.stats()).trimmed == 4


async def test_a_late_group_is_told_what_it_missed_and_reads_the_rest(
    make_shard: MakeShard,
) -> None:
    shard = await make_shard().create()
    early = group(shard, "early")
    await early.enrol()
    ids = await add(shard, 4)
    await early.new(0, count=3)
    await early.acknowledge(0, ids[:3])
    assert await early.trim(0) == 3
    late = group(shard, "late")
    assert await late.enrol() == 3
    assert await late.enrol() == 0, "it is known by now"
    assert [given.entry for given in await late.new(0, count=10)] == ids[3:]


async def test_a_record_deleted_by_others_is_given_as_gone(make_shard: MakeShard) -> None:
    shard = await make_shard().create()
    reader = group(shard, "a")
    await reader.enrol()
    ids = await add(shard, 2)
    await reader.new(0, count=10)
    await shard.client.commands([("XDEL", shard.keys.results, ids[0])])
    given = await reader.pending(0, after="0-0", count=10)
    assert [(one.entry, one.record is None) for one in given] == [(ids[0], True), (ids[1], False)]
