"""Every test here runs on a real Redis and on a real Valkey, each one process for all tests.

Those marked ``on_cluster`` run on a Redis Cluster of three masters as well, and with ``--servers
cluster`` all that need nothing of a single server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from common.frontier import FrontierClient, RedisOptions, owner
from common.model.job import JobSpec
from tests.integration.frontier.shard import Shard
from tests.integration.frontier.valkey import start_valkey
from tests.support.rediscluster import redis_cluster
from tests.support.servers import RedisServer, start_redis, stopping

MakeShard = Callable[..., Shard]


class Starter(Protocol):
    """Starts a server with its data in a folder."""

    def __call__(self, folder: Path, *, options: Sequence[str] = ()) -> RedisServer: ...


STARTERS: dict[str, Starter] = {"redis": start_redis, "valkey": start_valkey}
CLUSTER = "cluster"
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not to run on a cluster, or cannot."""
    chosen = set(filter(None, config.getoption("--servers").split(",")))
    if unknown := chosen - {*STARTERS, CLUSTER}:
        raise pytest.UsageError(
            f"--servers: {min(unknown)!r} is none of {', '.join(STARTERS)} and {CLUSTER}"
        )
    left = [one for one in items if one.path.parent == _HERE and not _is_wanted(one, chosen)]
    config.hook.pytest_deselected(items=left)
    items[:] = [one for one in items if one not in left]


def _is_wanted(item: pytest.Item, chosen: set[str]) -> bool:
    assert isinstance(item, pytest.Function)
    kind = item.callspec.params.get("server_kind") if hasattr(item, "callspec") else None
    if kind != CLUSTER:
        return kind is None or not chosen or kind in chosen
    if item.get_closest_marker("one_server") is not None:
        return False
    may = CLUSTER in chosen if chosen else item.get_closest_marker("on_cluster") is not None
    return may and not {"data_server", "start_server"} & set(item.fixturenames)


@pytest.fixture(scope="session", params=[*STARTERS, CLUSTER])
def server_kind(request: pytest.FixtureRequest) -> str:
    """What a test runs on."""
    return str(request.param)


@pytest.fixture(scope="session")
def start_server(server_kind: str) -> Starter:
    """Starts a server of either kind; for tests that break it."""
    return STARTERS[server_kind]


@pytest.fixture(scope="session")
def data_server(
    start_server: Starter, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    server = start_server(tmp_path_factory.mktemp("data"))
    with stopping(server):
        yield server


@pytest.fixture(scope="session")
def server_urls(
    server_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ...]]:
    if server_kind == CLUSTER:
        with redis_cluster(tmp_path_factory.mktemp(CLUSTER), start=start_redis) as cluster:
            yield cluster.urls
    else:
        yield (request.getfixturevalue("data_server").url,)


@pytest.fixture
async def client(server_urls: tuple[str, ...]) -> AsyncIterator[FrontierClient]:
    client = FrontierClient(RedisOptions(urls=server_urls))
    await client.open()
    yield client
    await client.close()


@pytest.fixture
def make_shard(client: FrontierClient, cluster_name: str) -> MakeShard:
    """Makes the (not yet created) shards of a fresh job; options are those of the job."""

    def make(**options: object) -> Shard:
        spec = JobSpec(**{"shards": 1, "delay": 0, "timeout": 1.0} | options)  # type: ignore[arg-type]
        return Shard(client, cluster_name, spec)

    return make


@pytest.fixture
def short_hold(monkeypatch: pytest.MonkeyPatch) -> int:
    """Claims may be sent for 40 ms only, so that slots expire while a test waits."""
    monkeypatch.setattr(owner, "HOLD_MS", 40)
    return 40
