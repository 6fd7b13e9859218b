"""``why`` for states that pass quickly in a crawl: staged, and known to the seen-set alone."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import msgspec
import pytest

from common.frontier import MasterFence, ShardState
from common.frontier.items import Item
from common.frontier.keys import TaskKeys
from common.frontier.offers import Offers
from common.frontier.pace import Ask, Permits, domain_group
from common.frontier.replies import Offered
from common.model.ids import HostKey, JobId, Task, Token
from common.model.job import JobSpec
from common.model.records import ErrorInfo, Outcome, ResultRecord
from common.runtime.clock import utc_now
from common.runtime.settings import Settings
from common.web.retry import ERROR_CODES, ErrorCode, GiveUp, RetryAfter, RetryPolicy
from crawlctl.connect import Services, services
from crawlctl.explaining import explain
from crawlctl.submission import submit
from tests.support.results import JOB, WrittenJob
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


async def test_where_a_domain_is_limited_it_is_told_how_busy_it_is(connected: Services) -> None:
    written = await WrittenJob(connected).create()
    stored = (await connected.coord.jobs.get(JOB)).job  # type: ignore[union-attr]
    job = msgspec.structs.replace(stored, spec=msgspec.structs.replace(written.spec, per_domain=3))
    item = Item(HOST, "/deep", 0, None)
    offers = Offers(connected.client, cluster=connected.cluster, job=JOB, spec=job.spec)
    await offers.offer(connected.lookup(job).shard(item.url), [item])
    permits = Permits(connected.client, cluster=connected.cluster, token=Token(1), lasts_ms=1000)
    one_more = Ask(
        domain_group("h.example"), serial=1, on_wire=1, started_ago_ms=0, ended_ago_ms=-1,
        pause_ms=0, want=1, patience_ms=0, delay_ms=0, at_once=3,
    )  # fmt: skip
    assert [1] == [permit.granted for permit in await permits.ask([one_more]) if permit]
    answer = await explain(connected, job, item.url)
    assert "queued" == answer.state
    assert {"name": "h.example", "under_way": 2, "limit": 3} == answer.detail["domain"]


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_every_error_code_is_explained_with_its_words(
    connected: Services, code: ErrorCode
) -> None:
    """Each code has a meaning, a policy of retries, and its place in ``why``."""
    kind = ERROR_CODES[code]
    assert kind.meaning.endswith(".")
    match RetryPolicy(3).decide(attempt=1, error_code=code, status=None, jitter=0.0):
        case RetryAfter(delay_s=delay_s):
            assert kind.is_retried
            assert delay_s >= 1
        case GiveUp(outcome=outcome):
            assert not kind.is_retried
            assert outcome in (Outcome.FAILED, Outcome.DEAD)
    job = await WrittenJob(connected).create()
    item = Item(HOST, f"/{code}", 0, None)
    stored = (await connected.coord.jobs.get(JOB)).job  # type: ignore[union-attr]
    shard = connected.lookup(stored).shard(item.url)
    offers = Offers(connected.client, cluster=connected.cluster, job=JOB, spec=job.spec)
    assert isinstance(await offers.offer(shard, [item]), Offered)
    record = ResultRecord(
        url=item.url, final_url=item.url, status=None, outcome=kind.outcome, depth=0,
        referrer=None, fetched_at=utc_now(), worker="w", token=1,
        error=ErrorInfo(code=code, message="what happened\x1b[2J"),
    )  # fmt: skip
    keys = job.keys(shard)
    await connected.client.commands(
        [
            ("DEL", keys.queue(HOST)),
            ("XADD", keys.results, "*", "r", msgspec.json.encode(record)),
        ]
    )
    said = await explain(connected, stored, item.url)
    assert said.state == "finished"
    assert f"{code}: what happened" in said.reason
    assert said.reason.startswith(kind.outcome.value)
