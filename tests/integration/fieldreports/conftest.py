"""Runs the scenarios of a module together."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from tests.support.concert import Stage
from tests.support.servers import EtcdServer, RedisServer


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest,
    etcd_server: EtcdServer,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, BaseException | None]:
    def stage(name: str) -> Stage:
        folder = tmp_path_factory.mktemp(name.split("_")[1])
        cluster = f"test-{uuid.uuid4().hex[:12]}"
        return Stage(etcd_server.endpoint, redis_server.url, folder, cluster)

    found: Mapping[str, BaseException | None] = request.module.CONCERT.run(stage)
    return found
