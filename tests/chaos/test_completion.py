"""A job is finished when nothing is left, and not before, however its steps interleave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.frontier import FrontierClient, RedisOptions
from tests.chaos.completion import runs
from tests.support.servers import start_redis

RUNS = 300


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[FrontierClient]:
    server = start_redis(tmp_path, appendfsync="no")
    client = FrontierClient(RedisOptions(urls=(server.url,)))
    try:
        await client.open()
        yield client
    finally:
        await client.close()
        server.kill()


async def test_no_job_is_finished_early_and_none_hangs(client: FrontierClient) -> None:
    assert {} == dict(await runs(client, range(RUNS)))


async def test_a_master_that_believes_one_pass_and_seals_nothing_finishes_early(
    client: FrontierClient,
) -> None:
    """The runs can fail: without the second pass and the seal many of them do."""
    assert (await runs(client, range(40), careful=False))["early finish"] > 0
