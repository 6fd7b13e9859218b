"""Real servers for commands, where no master changes anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.runtime.settings import Settings
from crawlctl.connect import Services, services
from tests.support.results import WrittenJob
from tests.support.servers import EtcdServer, RedisServer


@pytest.fixture
def options(etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str) -> list[str]:
    """The global options that lead a command to the servers."""
    return [
        *("--etcd", etcd_server.endpoint, "--redis", redis_server.url),
        *("--cluster", cluster_name),
    ]


@pytest.fixture
async def connected(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str
) -> AsyncIterator[Services]:
    settings = Settings(
        etcd_endpoints=(etcd_server.endpoint,), redis_urls=(redis_server.url,), cluster=cluster_name
    )
    async with services(settings) as opened:
        yield opened


@pytest.fixture
async def job(connected: Services) -> WrittenJob:
    return await WrittenJob(connected).create()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
