"""Masters in this process, a scripted worker, and real servers under both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.coordinator.rig import Rig
from tests.support.servers import EtcdServer, RedisServer, start_redis, stopping


@pytest.fixture
async def rig(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str
) -> AsyncIterator[Rig]:
    async with Rig.open(etcd_server.endpoint, redis_server.url, cluster=cluster_name) as rig:
        yield rig


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that the test may break."""
    server = start_redis(tmp_path / "redis")
    with stopping(server):
        yield server
