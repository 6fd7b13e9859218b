"""``why`` for states that pass quickly in a crawl: staged, and known to the seen-set alone."""

from __future__ import annotations

import asyncio
import io
import json

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
from common.web.retry import ERROR_CODES, ErrorCode, GiveUp, RetryAfter, RetryPolicy
from crawlctl.connect import Services
from crawlctl.explaining import explain
from crawlctl.submission import submit
from tests.support.cli import crawlctl
from tests.support.results import JOB, WrittenJob

HOST = HostKey("http://h.example")


@pytest.mark.parametrize(
    "spec", [JobSpec(shards=1), JobSpec(shards=1, seen="bloom", seen_rate=0.004)]
)
async def test_a_seed_is_staged_then_queued_and_without_a_record_only_seen(
    connected: Services, spec: JobSpec
) -> None:
    spool = io.BytesIO(f"{HOST}/\n".encode())
    stored = await submit(
        connected,
        job_id="j",
        spec=spec,
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
    assert ("0.004" in answer.reason) == (spec.seen == "bloom")


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


async def test_several_urls_are_answered_one_after_the_other(
    job: WrittenJob, options: list[str]
) -> None:
    asked = ["http://a.example/x", "b.example", "ftp://c.example/"]

    async def why(*arguments: str) -> list[str]:
        ran = await asyncio.to_thread(crawlctl, "why", JOB, *arguments, *options)
        assert (0, "") == (ran.code, ran.err)
        return ran.out.splitlines()

    lines = await why(*asked, "--json")
    assert asked == [json.loads(line)["url"] for line in lines]
    assert lines == [line for url in asked for line in await why(url, "--json")]
    alone = [await why(url) for url in asked]
    assert [*alone[0], "", *alone[1], "", *alone[2]] == await why(*asked)


async def test_of_plugins_an_unknown_url_names_only_who_may_have_refused_it(
    connected: Services, job: WrittenJob
) -> None:
    """It showed how many links of the whole job each plugin's rules had refused."""
    stored = (await connected.coord.jobs.get(JOB)).job  # type: ignore[union-attr]
    spec = msgspec.structs.replace(stored.spec, plugin=("prices", "price", "idle"), scope="any")
    asked = msgspec.structs.replace(stored, spec=spec)
    answer = await explain(connected, asked, "http://a.example/")
    assert ("unknown", "no page fetched so far links to it") == (answer.state, answer.reason)
    counts = ("plugin prices: calendar", 2, "plugin prices: other", 7, "deny: x", 3)
    await connected.client.commands([("HSET", job.keys(1).rules, *counts)])
    answer = await explain(connected, asked, "http://a.example/")
    assert ("unknown", ["prices"]) == (answer.state, answer.detail["plugins"])
    assert "plugin prices refused it" in answer.reason
    assert not any(word in str(answer) for word in ("calendar", "idle", "7"))


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
