"""``locks``, ``nodes`` and ``job show`` tell the truth during a crawl and after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli import eventually
from tests.support.site import Page, Site
from tests.system.conftest import Command
from tests.system.test_outcomes import show

PAGES = 120


def pages() -> dict[str, Page]:
    found = {
        f"/{number}": Page(title=str(number), links=[f"/{number + 1}", f"/{number + 2}"])
        for number in range(PAGES - 2)
    }
    return found | {"/": Page(links=["/0"])}


def listing(up: Command, name: str) -> list[dict[str, Any]]:
    ran = up(name, "--json")
    assert 0 == ran.code, ran.err
    found: list[dict[str, Any]] = ran.json
    return found


def test_locks_nodes_and_tasks_agree_during_a_crawl_and_after_it(up: Command) -> None:
    with Site(pages(), addresses=["127.0.0.1", "127.0.0.2", "127.0.0.3"]) as site:
        seeds = [site.url("/", host=host) for host in range(3)]
        options = ["--allow-private", "--delay", "0.1", "--shards", "6"]
        job = up("submit", *seeds, *options).out.strip()
        eventually(
            lambda: show(up, job)["counters"]["fetched"] >= 20, within_s=60, what="pages fetched"
        )
        locks = {lock["name"]: lock for lock in listing(up, "locks")}
        nodes = {node["id"]: node for node in listing(up, "nodes")}
        shown = show(up, job)
        assert [job] == [one["id"] for one in listing(up, "jobs")]
        assert {"running"} == {shown["state"]}
        # A finished look at a running crawl: each task has an owner, and that owner holds its lock.
        assert 6 == len(shown["tasks"])
        for task in shown["tasks"]:
            lock = locks[f"tasks/{job}/{task['shard']}"]
            assert (lock["owner"], lock["token"]) == (task["owner"], task["token"])
            assert "task" == lock["kind"]
            assert 0 < lock["ttl_seconds"] <= 10
            assert lock["age_seconds"] >= 0
            assert task["owner"] in nodes
        masters = [node for node in nodes.values() if node["role"] == "master"]
        assert ["active"] == [master["state"] for master in masters]
        assert locks["master"]["token"] == masters[0]["term"]
        workers = [node for node in nodes.values() if node["role"] == "worker"]
        assert 2 == len(workers)
        assert {"ready", "busy"} >= {worker["state"] for worker in workers}
        assert {"cpu", "memory_bytes", "in_flight"} <= set(workers[0]["load"])
        waited = up("job", "wait", job)
        assert 0 == waited.code, waited.err
    shown = show(up, job)
    assert "finished" == shown["state"]
    assert shown["finished_at"] > shown["started_at"] > shown["created_at"]
    assert {0} == {task["queued"] + task["in_flight"] for task in shown["tasks"]}
    # A finished job holds no locks.
    eventually(
        lambda: {"master"} == {lock["name"] for lock in listing(up, "locks")},
        within_s=60,
        what="the locks of a finished job to go",
    )
    exported = [json.loads(line) for line in up("export", job).out.splitlines()]
    assert shown["counters"]["fetched"] == len(exported)
    doctor = up("doctor", "--json")
    assert 0 == doctor.code, doctor.out + doctor.err


@pytest.mark.commands("job pause", "job resume")
def test_a_paused_job_fetches_nothing_and_goes_on_when_resumed(up: Command) -> None:
    with Site(pages()) as site:
        options = ["--allow-private", "--delay", "0.1", "--shards", "2"]
        job = up("submit", site.url("/"), *options).out.strip()
        eventually(lambda: len(site.requests) > 20, within_s=60, what="requests")
        assert 0 == up("job", "pause", job).code
        eventually(
            lambda: show(up, job)["counters"]["in_flight"] == 0, within_s=60, what="a quiet job"
        )
        asked = len(site.requests)
        paused = show(up, job)
        assert "paused" == paused["state"]
        assert paused["counters"]["queued"] > 0
        assert asked == len(site.requests), "a paused job asked for something"
        assert 0 == up("job", "resume", job).code
        assert 0 == up("job", "wait", job).code
    shown = show(up, job)
    # The start page, the numbered ones, and the last two links lead nowhere (404).
    assert (PAGES + 1, "finished") == (shown["counters"]["fetched"], shown["state"])


@pytest.mark.commands("job cancel")
def test_a_cancelled_job_ends_with_the_rest_dropped_and_counted(up: Command) -> None:
    with Site(pages()) as site:
        options = ["--allow-private", "--delay", "0.2", "--shards", "2"]
        job = up("submit", site.url("/"), *options).out.strip()
        eventually(lambda: len(site.requests) > 5, within_s=60, what="requests")
        assert 0 == up("job", "cancel", job).code
        assert 1 == up("job", "wait", job).code
        counters = eventually(
            lambda: _if_settled(show(up, job)["counters"]), within_s=60, what="an empty frontier"
        )
    assert "cancelled" == show(up, job)["state"]
    assert counters["dropped"] > 0
    exported = [json.loads(line) for line in up("export", job).out.splitlines()]
    assert counters["discovered"] == len(exported)
    assert {"cancelled"} == {one["rule"] for one in exported if one["outcome"] == "dropped"}
    assert 4 == up("job", "resume", job).code, "a cancelled job cannot be resumed"


@pytest.mark.parametrize("never", [("--paused",), ("--plugin", "nobody-has-it")])
def test_a_cancelled_job_that_nobody_worked_on_is_dropped_all_the_same(
    up: Command, never: tuple[str, ...]
) -> None:
    job = up("submit", "http://127.0.0.1:9/", "--allow-private", *never).out.strip()
    eventually(lambda: show(up, job)["counters"]["queued"], within_s=60, what="its seed")
    assert 0 == up("job", "cancel", job).code
    counters = eventually(
        lambda: _if_settled(show(up, job)["counters"]), within_s=60, what="an empty frontier"
    )
    assert (1, 1) == (counters["discovered"], counters["dropped"])
    (record,) = (json.loads(line) for line in up("export", job).out.splitlines())
    assert ("dropped", "cancelled") == (record["outcome"], record["rule"])


def _if_settled(counters: dict[str, int]) -> dict[str, int]:
    waiting = counters["queued"] + counters["delayed"] + counters["in_flight"]
    return counters if waiting == 0 else {}
