"""Burying the dead of a private etcd."""

from __future__ import annotations

from common.coord import Acquired, buried_below, bury, revoke_all_leases
from common.model.ids import NodeId
from tests.integration.coord.conftest import Connect, OpenSession
from tests.support.servers import EtcdServer


async def test_after_a_burial_every_former_token_is_below_and_every_new_one_above(
    own_etcd: EtcdServer, connected: Connect, session_on: OpenSession
) -> None:
    coord = await connected(own_etcd.endpoint)
    assert await buried_below(coord.etcd, coord.keys) == 0
    dead = await session_on(coord.etcd, ttl_s=60)
    old = await coord.locks.acquire(dead, "seeds", owner=NodeId("a"))
    assert isinstance(old, Acquired)
    await session_on(coord.etcd, ttl_s=60)

    assert await revoke_all_leases(coord.etcd) == 2
    revision = await bury(coord.etcd, coord.keys)

    assert old.token < revision == await buried_below(coord.etcd, coord.keys)
    alive = await session_on(coord.etcd)
    new = await coord.locks.acquire(alive, "seeds", owner=NodeId("b"))
    assert isinstance(new, Acquired)
    assert new.token > revision
    assert await bury(coord.etcd, coord.keys) > revision
