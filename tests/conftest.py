"""Marks every test by its folder and shares one real etcd and one real Redis per run.

Tests that break a server start their own (tests/support/servers.py); tests that use a shared one
keep apart by ``cluster_name``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import EtcdServer, RedisServer, start_etcd, start_redis, stopping

_HERE = Path(__file__).parent
_MARKED_FOLDERS = ("unit", "repo", "integration", "system", "chaos")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(_HERE):
            continue
        folder = item.path.relative_to(_HERE).parts[0]
        if folder in _MARKED_FOLDERS:
            item.add_marker(folder)


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = start_etcd(tmp_path_factory.mktemp("etcd"))
    with stopping(server):
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = start_redis(tmp_path_factory.mktemp("redis"))
    with stopping(server):
        yield server


@pytest.fixture
def cluster_name() -> str:
    """A name nobody else uses: keys of two tests never meet."""
    return f"test-{uuid.uuid4().hex[:12]}"
