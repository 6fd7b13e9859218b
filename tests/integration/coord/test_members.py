"""Members of a cluster in a real etcd: join, leave, vanish, come back."""

from __future__ import annotations

import msgspec
import pytest

from common.coord import Coord, Members, NodeInfo, NodeView
from common.model.errors import LeaseLost, RefusedError
from common.model.ids import NodeId
from tests.integration.coord.conftest import OpenSession


def node(node_id: str, *, pid: int = 1, role: str = "worker", state: str = "ready") -> NodeInfo:
    assert role in ("master", "worker")
    return NodeInfo(
        id=node_id,
        role="master" if role == "master" else "worker",
        state=state,
        pid=pid,
        host="host",
        started_at="2026-01-01T00:00:00.000Z",
    )


async def listed(members: Members) -> dict[str, NodeView]:
    return {view.info.id: view for view in await members.list()}


async def test_a_node_is_listed_with_what_it_says_and_its_lease(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd, ttl_s=30)
    await coord.members.join(session, node("w"))
    busy = msgspec.structs.replace(node("w"), state="busy", load={"cpu": 0.5}, tasks=3)
    await coord.members.update(session, busy)
    (view,) = await coord.members.list()
    assert (view.info, view.term, view.left_at) == (busy, None, None)
    assert view.ttl_seconds is not None
    assert 20 < view.ttl_seconds <= 30


async def test_nodes_are_listed_in_order_of_the_numbers_in_their_ids(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd)
    names = ["worker-1", "worker-2", "worker-10"]
    for name in reversed(names):
        await coord.members.join(session, node(name))
    assert names == list(await listed(coord.members))


async def test_a_live_nodes_id_is_refused_to_another_process(
    coord: Coord, session_on: OpenSession
) -> None:
    first, second = await session_on(coord.etcd), await session_on(coord.etcd)
    await coord.members.join(first, node("w", pid=1))
    with pytest.raises(RefusedError, match="pid 1"):
        await coord.members.join(second, node("w", pid=2))
    assert (await listed(coord.members))["w"].info.pid == 1


async def test_a_process_takes_over_its_own_key_from_its_former_session(
    coord: Coord, session_on: OpenSession
) -> None:
    first, second = await session_on(coord.etcd, ttl_s=60), await session_on(coord.etcd)
    await coord.members.join(first, node("w"))
    await coord.members.join(second, node("w"))
    with pytest.raises(LeaseLost):
        await coord.members.update(first, node("w"))
    await coord.members.update(second, node("w", state="busy"))
    await first.close()
    assert (await listed(coord.members))["w"].info.state == "busy"


async def test_a_node_that_leaves_stays_listed_as_offline(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd)
    await coord.members.join(session, node("w"))
    await coord.members.leave(session, node("w"))
    await coord.members.leave(session, node("w"))
    view = (await listed(coord.members))["w"]
    assert view.info.state == "offline"
    assert view.left_at is not None
    assert view.ttl_seconds is not None
    assert 3500 < view.ttl_seconds <= 3600
    with pytest.raises(LeaseLost):
        await coord.members.update(session, node("w"))

    await coord.members.join(session, node("w"))
    assert (await listed(coord.members))["w"].left_at is None


async def test_the_master_lists_a_node_that_vanished_as_departed_unless_it_is_back(
    coord: Coord, session_on: OpenSession
) -> None:
    master, first, second = [await session_on(coord.etcd) for _ in range(3)]
    term = await coord.election.campaign(master, node=NodeId("m"))
    await coord.members.join(first, node("w"))
    await coord.members.mark_departed(node("w"), term=term)
    assert (await listed(coord.members))["w"].info.state == "ready", "it is there"

    await coord.etcd.revoke(first.lease)
    assert await listed(coord.members) == {}
    await coord.members.mark_departed(node("w"), term=term)
    gone = (await listed(coord.members))["w"]
    assert gone.info.state == "offline"
    await coord.members.mark_departed(node("w"), term=term)
    assert (await listed(coord.members))["w"].left_at == gone.left_at

    await coord.members.join(second, node("w", pid=2))
    assert (await listed(coord.members))["w"].info.state == "ready"


async def test_the_elected_master_is_active_and_the_others_standby(
    coord: Coord, session_on: OpenSession
) -> None:
    sessions = {name: await session_on(coord.etcd) for name in ("m1", "m2")}
    for name, session in sessions.items():
        await coord.members.join(session, node(name, role="master"))
    term = await coord.election.campaign(sessions["m2"], node=NodeId("m2"))
    found = await listed(coord.members)
    assert (found["m1"].info.state, found["m1"].term) == ("standby", None)
    assert (found["m2"].info.state, found["m2"].term) == ("active", term)
