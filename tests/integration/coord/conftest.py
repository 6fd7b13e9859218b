"""A client of the shared etcd, and sessions that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from common.coord import Coord, EtcdOptions, Session, connect
from common.coord.client import Etcd
from tests.support.servers import EtcdServer, start_etcd, stopping

OpenSession = Callable[..., Awaitable[Session]]
Connect = Callable[..., Awaitable[Coord]]


@pytest.fixture
async def connected(cluster_name: str) -> AsyncIterator[Connect]:
    """Connect to given endpoints; closed after the test."""
    opened: list[Coord] = []

    async def open_one(*endpoints: str, cluster: str = cluster_name) -> Coord:
        coord = await connect(EtcdOptions(endpoints=endpoints), cluster=cluster)
        opened.append(coord)
        return coord

    yield open_one
    for coord in opened:
        await coord.close()


@pytest.fixture
async def coord(etcd_server: EtcdServer, connected: Connect) -> Coord:
    return await connected(etcd_server.endpoint)


@pytest.fixture
async def session_on(connected: Connect) -> AsyncIterator[OpenSession]:
    """Open a session on a client; closed after the test, before the clients are."""
    opened: list[Session] = []

    async def open_one(etcd: Etcd, *, ttl_s: float = 10.0) -> Session:
        session = await Session.open(etcd, ttl_s=ttl_s)
        opened.append(session)
        return session

    yield open_one
    for session in opened:
        await session.close()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that the test may break."""
    server = start_etcd(tmp_path / "etcd")
    with stopping(server):
        yield server
