"""Three etcd members, of which the one in use dies or hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from common.coord import Coord, Mirror
from common.coord.wire import Put
from common.model.errors import CoordUnavailable, UnknownOutcome
from common.model.ids import NodeId
from tests.integration.coord.conftest import Connect, OpenSession
from tests.support.servers import EtcdCluster, EtcdServer, start_etcd_cluster
from tests.support.waiting import until_true


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    members = start_etcd_cluster(tmp_path_factory.mktemp("cluster"))
    yield members
    members.stop()


def member_in_use(cluster: EtcdCluster, coord: Coord) -> EtcdServer:
    endpoint = coord.etcd._transport._member().endpoint
    return next(member for member in cluster.members if member.endpoint == endpoint)


async def written(coord: Coord, number: int) -> int:
    """Write until it is certain; return the revision."""
    put = Put(f"{coord.keys.jobs}{number}", b"")
    while True:
        try:
            return (await coord.etcd.txn(compare=(), success=[put])).revision
        except (UnknownOutcome, CoordUnavailable):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("harm", "heal"),
    [(EtcdServer.kill, EtcdServer.restart), (EtcdServer.pause, EtcdServer.resume)],
    ids=["killed", "hanging"],
)
async def test_the_lease_the_term_and_the_mirror_survive_the_loss_of_the_leader_in_use(
    cluster: EtcdCluster,
    connected: Connect,
    session_on: OpenSession,
    harm: Callable[[EtcdServer], None],
    heal: Callable[[EtcdServer], None],
) -> None:
    """T3, T4: no new master, no lost session, no event missed, and writes go on within seconds."""
    leader = cluster.leader()
    others = [endpoint for endpoint in cluster.endpoints if endpoint != leader.endpoint]
    coord = await connected(leader.endpoint, *others)
    while member_in_use(cluster, coord) is not leader:
        coord.etcd._transport._current = (coord.etcd._transport._current + 1) % 3
    session = await session_on(coord.etcd, ttl_s=5)
    term = await coord.election.campaign(session, node=NodeId("m"))
    mirror = Mirror(coord.etcd, coord.keys.jobs)
    await mirror.start()
    await written(coord, 0)

    harm(leader)
    harmed_at = time.monotonic()
    await written(coord, 1)
    assert time.monotonic() - harmed_at < 15
    before = session.remaining_s()
    await until_true(lambda: session.remaining_s() > before + 0.5)
    for number in range(2, 20):
        await written(coord, number)
    await until_true(lambda: len(mirror.items) == 20, within_s=12)

    assert session.is_live
    assert await coord.etcd.lease_ttl_s(session.lease) is not None
    now = await coord.election.leader()
    assert now is not None
    assert now.term == term
    await session.close()
    await mirror.close()
    heal(leader)


async def test_without_a_majority_nothing_is_kept_and_afterwards_all_goes_on(
    cluster: EtcdCluster, connected: Connect, session_on: OpenSession
) -> None:
    """T5: the session stops on its own clock; a new one works once the majority is back."""
    await until_true(lambda: all(member._answers() for member in cluster.members))
    coord = await connected(*cluster.endpoints)
    session = await session_on(coord.etcd, ttl_s=2)
    term = await coord.election.campaign(session, node=NodeId("m"))
    for member in cluster.members[:2]:
        member.pause()
    await session.wait_lost()
    for member in cluster.members[:2]:
        member.resume()
    successor = await session_on(coord.etcd, ttl_s=10)
    assert await asyncio.wait_for(coord.election.campaign(successor, node=NodeId("n")), 15) > term
    await successor.close()


async def test_a_member_without_a_majority_answers_no_reads(
    cluster: EtcdCluster, connected: Connect
) -> None:
    """R13: what it holds may be old; a lock read from it may be somebody else's by now."""
    await until_true(lambda: all(member._answers() for member in cluster.members))
    coord = await connected(cluster.endpoints[2])
    await coord.etcd.txn(compare=(), success=[Put("x", b"1")])
    for member in cluster.members[:2]:
        member.pause()
    try:
        with pytest.raises(CoordUnavailable):
            await coord.etcd.get("x")
        with pytest.raises(CoordUnavailable):
            await coord.etcd.get_prefix("x")
    finally:
        for member in cluster.members[:2]:
            member.resume()
