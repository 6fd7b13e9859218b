"""Every test here runs on a real Redis and on a real Valkey, each one process for all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from common.frontier import FrontierClient, RedisOptions, owner
from common.model.job import JobSpec
from tests.integration.frontier.shard import Shard
from tests.integration.frontier.valkey import start_valkey
from tests.support.servers import RedisServer, start_redis, stopping

MakeShard = Callable[..., Shard]


class Starter(Protocol):
    """Starts a server with its data in a folder."""

    def __call__(self, folder: Path, *, options: Sequence[str] = ()) -> RedisServer: ...


@pytest.fixture(scope="session", params=[start_redis, start_valkey], ids=["redis", "valkey"])
def start_server(request: pytest.FixtureRequest) -> Starter:
    """Starts a server of either kind; for tests that break it."""
    starter: Starter = request.param
    return starter


@pytest.fixture(scope="session")
def data_server(
    start_server: Starter, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    server = start_server(tmp_path_factory.mktemp("data"))
    with stopping(server):
        yield server


@pytest.fixture
async def client(data_server: RedisServer) -> AsyncIterator[FrontierClient]:
    client = FrontierClient(RedisOptions(urls=(data_server.url,)))
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
