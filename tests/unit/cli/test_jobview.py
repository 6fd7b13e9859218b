"""A job as it is shown: the shape of the contract, without secrets."""

from __future__ import annotations

import json

import msgspec

from common.coord import LockInfo
from common.frontier import ShardStats
from common.frontier.visits import Waiting
from common.model import counters
from common.model.job import Job, JobSpec, JobState
from crawlctl.jobview import JobLook, differing_field, document
from crawlctl.show import json_text

SPEC = JobSpec(
    shards=2,
    header=("Authorization: Bearer secret1",),
    cookie=("sid=secret2",),
    proxy="http://user:secret3@proxy:3128",
)
JOB = Job(
    id="spring",
    spec=SPEC,
    state=JobState.FINISHED,
    seeds=7,
    created_at="2026-01-01T00:00:00.000Z",
    started_at="2026-01-01T00:00:10.000Z",
    finished_at="2026-01-01T00:00:30.000Z",
)


def look(job: Job = JOB) -> JobLook:
    stats = [
        ShardStats(
            shard=shard,
            exists=True,
            state=None,
            run="r",
            token=5,
            counters=dict.fromkeys(counters.NAMES, 0) | {"discovered": 20, "fetched": 20},
            staged=0,
            grant=0,
            seen_estimate=21,
            layers=1,
        )
        for shard in range(2)
    ]
    return JobLook(job, stats)


def test_the_shape_is_that_of_the_contract() -> None:
    lock = LockInfo(
        name="tasks/spring/1", kind="task", owner="w1", token=5, age_seconds=1.0, ttl_seconds=9
    )
    shown = json.loads(json_text(document(look(), [lock])))
    assert {
        "id", "state", "spec", "created_at", "started_at", "finished_at", "counters", "tasks",
    } <= set(shown)  # fmt: skip
    assert shown["state"] == "finished"
    assert shown["spec"]["seeds"] == 7
    assert shown["counters"]["fetched"] == 40
    assert shown["counters"]["pages_per_second"] == 2.0
    assert shown["counters"]["seen_estimate"] == 42
    assert shown["counters"]["false_positive_estimate"] == 0
    assert shown["tasks"][0]["owner"] is None
    assert shown["tasks"][1] == {
        "shard": 1, "owner": "w1", "token": 5, "queued": 0, "delayed": 0, "in_flight": 0,
    }  # fmt: skip
    assert "tasks" not in document(look())


def test_secrets_are_hidden() -> None:
    text = json_text(document(look()))
    assert "secret" not in text
    shown = json.loads(text)["spec"]
    assert shown["header"] == ["Authorization: ***"]
    assert shown["cookie"] == ["sid=***"]
    assert shown["proxy"] == "***"


def test_a_bloom_filter_shows_how_often_it_errs_and_what_that_may_have_cost() -> None:
    spec = msgspec.structs.replace(SPEC, seen="bloom", seen_rate=0.01)
    job = msgspec.structs.replace(JOB, spec=spec)
    full = [
        one._replace(counters=one.counters | {"discovered": 6144}, layers=2, inserted=0)
        for one in look().stats
    ]
    shown = document(JobLook(job, full))
    assert shown["seen"]["mode"] == "bloom"
    assert (shown["seen"]["layers"], shown["seen"]["fill"]) == (2, 0.0)
    assert shown["seen"]["stated_rate"] == 0.01
    # A filter is whole buckets: that of the first layer is larger than it has to be.
    assert 0.1 * 0.01 / 8 < shown["seen"]["false_positive_rate"] <= 0.01 / 8
    expected = shown["seen"]["false_positive_rate"] * 2 * 6144
    assert abs(shown["counters"]["false_positive_estimate"] - expected) < 0.1
    assert document(look())["seen"] == {
        "mode": "exact", "layers": 1, "fill": 0.0, "stated_rate": 0.0, "false_positive_rate": 0.0,
    }  # fmt: skip


def test_while_seeds_are_staged_their_number_is_unknown() -> None:
    assert document(look(msgspec.structs.replace(JOB, seeds=-1)))["spec"]["seeds"] is None


def test_the_differing_field_is_named_without_secrets() -> None:
    assert differing_field(JobSpec(), JobSpec()) is None
    assert differing_field(JobSpec(delay=1.0), JobSpec(delay=2.5)) == ("delay", "1.0", "2.5")
    other = differing_field(SPEC, msgspec.structs.replace(SPEC, cookie=("sid=secret4",)))
    assert other == ("cookie", "one secret", "another")


def test_a_job_whose_seeds_are_not_complete_says_so() -> None:
    staging = msgspec.structs.replace(JOB, state=JobState.PENDING, seeds=-1)
    shown = document(look(staging))
    assert (None, True) == (shown["spec"]["seeds"], "seeds are not complete" in shown["reason"])
    assert document(look(msgspec.structs.replace(staging, seeds=0)))["reason"] is None
    ended = msgspec.structs.replace(staging, state=JobState.CANCELLED)
    assert document(look(ended))["reason"] is None


def test_rules_that_refused_links_are_shown_where_they_were_looked_at() -> None:
    assert "filtered_by_rule" not in document(look())
    rules = {"scope: host": 3, "deny: x": 1}
    assert rules == document(look()._replace(filtered_by_rule=rules))["filtered_by_rule"]


def test_what_no_visit_comes_to_any_more_waits_for_none() -> None:
    """A job that was closed went on saying that pages wait for a visit."""
    spec = msgspec.structs.replace(SPEC, recrawl=60.0)
    opened = msgspec.structs.replace(JOB, spec=spec, state=JobState.RUNNING, keep_open=True)
    closed = msgspec.structs.replace(opened, keep_open=False)
    cancelled = msgspec.structs.replace(opened, state=JobState.CANCELLED)
    expected = [(opened, 9, "1970-01-01T00:00:05.000Z"), (closed, 0, None), (cancelled, 0, None)]
    for job, pages, next_at in expected:
        shown = document(look(job), [], visits=Waiting(9, 5000))["recrawl"]
        assert (pages, next_at) == (shown["waiting"], shown["next_visit_at"])
