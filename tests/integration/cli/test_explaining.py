"""``why`` for states that pass quickly in a crawl: staged, and known to the seen-set alone."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import pytest

from common.frontier import MasterFence, ShardState
from common.frontier.keys import TaskKeys
from common.model.ids import HostKey, JobId, Task
from common.model.job import JobSpec
from common.runtime.settings import Settings
from crawlctl.connect import Services, services
from crawlctl.explaining import explain
from crawlctl.submission import submit
from tests.support.servers import EtcdServer, RedisServer

HOST = HostKey("http://h.example")


@pytest.fixture
async def connected(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str
) -> AsyncIterator[Services]:
    settings = Settings(
        etcd_endpoints=(etcd_server.endpoint,), redis_urls=(redis_server.url,), cluster=cluster_name
    )
    async with services(settings) as opened:
        yield opened


async def test_a_seed_is_staged_then_queued_and_without_a_record_only_seen(
    connected: Services,
) -> None:
    spool = io.BytesIO(f"{HOST}/\n".encode())
    stored = await submit(
        connected,
        job_id="j",
        spec=JobSpec(shards=1),
        spool=spool,
        seeds=1,
        seeds_sha256="abc",
        paused=False,
    )
    answer = await explain(connected, stored.job, "h.example")
    assert (answer.canonical, answer.state) == (f"{HOST}/", "staged")
    assert answer.since == stored.job.created_at
    # What the master does, there being none here.
    frontier = connected.frontier(stored.job)
    fence = MasterFence(1, stored.revision)
    await frontier.create(fence=fence, state=ShardState.OPEN)
    assert await frontier.offer_seeds([f"{HOST}/"]) is None
    await frontier.unstage(0, fence=fence)
    answer = await explain(connected, stored.job, f"{HOST}/")
    assert (answer.state, answer.reason) == ("queued", "the job is pending")
    assert answer.detail["owner"] is None
    # As if it had been fetched, and its record consumed and trimmed.
    keys = TaskKeys(connected.cluster, Task(JobId("j"), 0))
    await connected.client.commands([("DEL", keys.queue(HOST))])
    answer = await explain(connected, stored.job, f"{HOST}/")
    assert (answer.state, answer.since) == ("seen", None)
    assert "seen-set" in answer.reason
