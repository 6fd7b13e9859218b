"""What limits a job, judged from facts."""

from __future__ import annotations

from typing import Any

import pytest

from common.model.job import JobState
from crawlctl.limits import Situation, WorkerLook, document, judge

STAGES = dict.fromkeys(
    ("robots", "pace", "connect", "first_byte", "body", "parse", "links", "settle"), 0.1
)


def worker(*, cpu: float = 0.3, **stages: float) -> WorkerLook:
    return WorkerLook("w1", cpu, STAGES | stages)


def situation(**facts: Any) -> Situation:
    usual: dict[str, Any] = {
        "job": "spring",
        "state": JobState.RUNNING,
        "is_kept_open": False,
        "without_worker": None,
        "next_visit_at": None,
        "waiting": 500,
        "in_flight": 30,
        "hosts_due": 3,
        "hosts_waiting": 5,
        "hosts_busy": 9,
        "workers": [worker()],
    }
    return Situation(**usual | facts)


@pytest.mark.parametrize(
    ("facts", "limit", "said"),
    [
        ({"state": JobState.PAUSED}, "state", "paused"),
        ({"workers": []}, "workers", "no worker owns a part of it yet"),
        ({"workers": [], "without_worker": "w1: lacks plugin x"}, "workers", "lacks plugin x"),
        ({"waiting": 0, "in_flight": 0}, "end", "nothing is left"),
        ({"workers": [worker(cpu=0.1), worker(cpu=0.97)]}, "cpu", "97%"),
        ({"hosts_due": 0, "hosts_waiting": 300}, "politeness", "300 hosts"),
        ({"workers": [worker(pace=20.0, first_byte=4.0)]}, "politeness", "their turn"),
        ({"workers": [worker(first_byte=20.0)]}, "sites", "9 hosts"),
        ({"hosts_due": 0, "hosts_waiting": 0, "workers": [worker(body=9.0)]}, "sites", "answer"),
        ({"workers": [worker(settle=20.0, first_byte=4.0)]}, "redis", "written to Redis"),
        ({"workers": [worker(parse=3.0, settle=1.0)]}, "cpu", "parsed"),
        (
            {"hosts_due": 20, "hosts_waiting": 300, "workers": [worker(settle=9.0)]},
            "politeness",
            "300 hosts waiting for the delay or a turn and 20 due",
        ),
        (
            {"hosts_due": 31, "hosts_waiting": 300, "workers": [worker(settle=9.0)]},
            "redis",
            "Redis",
        ),
        (
            {
                "hosts_due": 0,
                "hosts_waiting": 3,
                "hosts_busy": 300,
                "workers": [worker(first_byte=280.0)],
            },
            "sites",
            "300 hosts to answer",
        ),
    ],
)
def test_the_limit_of_a_job_is_named(facts: dict[str, Any], limit: str, said: str) -> None:
    verdict = judge(situation(**facts))
    assert limit == verdict.limit
    assert said in verdict.reason
    assert verdict.remedy


@pytest.mark.parametrize(
    ("facts", "limit", "remedy"),
    [
        ({}, "end", "it finishes"),
        ({"is_kept_open": True}, "end", "'crawlctl job close spring' lets it finish"),
        (
            {"is_kept_open": True, "next_visit_at": "2026-12-01T00:00:00.000Z"},
            "visits", "'crawlctl job close spring' lets it finish",
        ),
        ({"state": JobState.PAUSED}, "state", "'crawlctl job resume spring'"),
        ({"state": JobState.PENDING}, "state", "seeds"),
        ({"state": JobState.FINISHED}, "state", "it is over"),
        ({"state": JobState.CANCELLED}, "state", "it is over"),
    ],
)  # fmt: skip
def test_what_is_proposed_for_a_job_at_rest_is_possible(
    facts: dict[str, Any], limit: str, remedy: str
) -> None:
    """A finished job was to be resumed, and one that is kept open to be let finish, by itself."""
    verdict = judge(situation(waiting=0, in_flight=0, **facts))
    assert limit == verdict.limit
    assert remedy in verdict.remedy
    assert (facts.get("next_visit_at") or "") in verdict.reason


@pytest.mark.parametrize(
    ("due", "waiting", "busy", "limit", "said"),
    [
        (0, 1, 0, "politeness", "1 host waiting"),
        (1, 9, 2, "politeness", "9 hosts waiting"),
        (1, 2, 0, "politeness", "and 1 due"),
        (1, 1, 0, "workers", "1 host to ask now"),
        (1, 0, 0, "workers", "1 host to ask now"),
        (0, 0, 1, "sites", "1 host asked just now"),
        (0, 1, 5, "sites", "5 hosts asked just now"),
        (0, 0, 0, "sites", "waits for another try, or its host is blocked"),
    ],
)
def test_where_hardly_a_page_is_under_way_its_stage_is_not_what_limits(
    due: int, waiting: int, busy: int, limit: str, said: str
) -> None:
    """It said Redis of a job that waited for its delay, since the one page was written just then.

    Politeness is said where most hosts wait, and never of hosts that are due or being asked.
    """
    few = [WorkerLook("w1", 0.1, {"settle": 0.12, "first_byte": 0.02})]
    facts = situation(hosts_due=due, hosts_waiting=waiting, hosts_busy=busy, workers=few)
    verdict = judge(facts)
    assert (limit, True) == (verdict.limit, said in verdict.reason)
    assert verdict.remedy


def test_a_profile_sums_the_stages_of_its_workers() -> None:
    shown = document(situation(workers=[worker(pace=2.0), worker(pace=3.5)]))
    assert 5.5 == shown["stages"]["pace"]
    assert {"due": 3, "waiting": 5, "busy": 9} == shown["hosts"]
    assert ["w1", "w1"] == [one["id"] for one in shown["workers"]]
