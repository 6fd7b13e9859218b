"""Requests to drain, in a real etcd: seen by the one node they were meant for."""

from __future__ import annotations

import asyncio

import pytest

from common.coord import Coord
from common.model.errors import NotFoundError
from common.model.ids import NodeId
from tests.integration.coord.conftest import OpenSession
from tests.integration.coord.test_members import node

SEEN_WITHIN_S = 5


async def test_a_node_sees_the_request_and_one_with_a_longer_id_does_not(
    coord: Coord, session_on: OpenSession
) -> None:
    for name in ("w", "w-2"):
        await coord.members.join(await session_on(coord.etcd), node(name))
    waiting = asyncio.create_task(coord.drains.wait(NodeId("w")))
    await coord.drains.ask("w-2")
    await asyncio.wait_for(coord.drains.wait(NodeId("w-2")), SEEN_WITHIN_S)
    assert not waiting.done()
    await coord.drains.ask("w")
    await coord.drains.ask("w")
    await asyncio.wait_for(waiting, SEEN_WITHIN_S)


async def test_a_request_ends_with_the_session_it_was_meant_for(
    coord: Coord, session_on: OpenSession
) -> None:
    """A process that takes the id of a drained one must not leave at once."""
    first, second = await session_on(coord.etcd), await session_on(coord.etcd)
    await coord.members.join(first, node("w", pid=1))
    await coord.drains.ask("w")
    await first.close()
    await coord.members.join(second, node("w", pid=2))
    assert await coord.etcd.get(coord.keys.drain("w")) is None


async def test_nobody_is_asked_who_is_not_there(coord: Coord, session_on: OpenSession) -> None:
    session = await session_on(coord.etcd)
    await coord.members.join(session, node("w"))
    await coord.members.leave(session, node("w"))
    with pytest.raises(NotFoundError, match="'w'"):
        await coord.drains.ask("w")
