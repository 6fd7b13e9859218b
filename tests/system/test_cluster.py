"""A hand-started cluster crawls a real site while nodes come, leave and are killed.

Three etcd members, Redis, two masters and three workers, each a process of its own started through
the command line. In the middle a worker joins, one is drained, and then the worker with the most
tasks and the acting master are killed. What was crawled is held against a walk that shares no code
with crawlctl, and politeness against the web server's own log.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import eventually
from tests.support.docsite import CLOCK_S, HOSTS, DocSite, Walked, serve
from tests.support.installation import Installation, installation

DELAY_S = 0.02
SHARDS = 16
JOB = "docs"
OPTIONS = ("--allow-private", "--delay", str(DELAY_S), "--shards", str(SHARDS), "--timeout", "2")


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls and users"])
def test_a_site_is_crawled_completely_and_politely_while_nodes_come_and_go(
    tmp_path: Path, cluster_name: str, walked: Walked, *, secure: bool
) -> None:
    hosts = HOSTS[:4] if secure else HOSTS
    with (
        serve(tmp_path / "nginx", hosts=hosts) as site,
        installation(tmp_path, cluster=cluster_name, secure=secure) as cluster,
    ):
        for role, names in (("master", ("m1", "m2")), ("worker", ("w1", "w2", "w3"))):
            for name in names:
                cluster.start(role, name)
        seeds = [site.url(host) for host in hosts]
        with cluster.running("submit", *seeds, *OPTIONS, "--id", JOB, "--wait") as submitted:
            left = _trouble(cluster, len(hosts) * len(walked.status))
            ran = submitted.end(timeout_s=480)
        assert (0, JOB) == (ran.code, ran.out.strip()), ran.err
        _assert_nodes_tell_who_left(cluster, left)
        _assert_complete(cluster, site, walked)
        # A page that was in flight when its worker was killed is asked for again; nothing else is.
        assert len(site.fetched_twice()) <= len(hosts)
        assert site.min_gap_s() >= DELAY_S - CLOCK_S
        doctor = cluster.run("doctor")
        assert 0 == doctor.code, doctor.out + doctor.err


def _trouble(cluster: Installation, pages: int) -> set[str]:
    """Let nodes come and go; return those that left."""
    _wait_for_pages(cluster, pages // 8)
    cluster.start("worker", "w4")
    eventually(lambda: _tasks(cluster)["w4"], within_s=120, what="tasks for the new worker")
    drained = cluster.run("nodes", "drain", "w1")
    assert 0 == drained.code, drained.err
    assert 0 == cluster.nodes["w1"].process.wait(60), cluster.nodes["w1"].log.read_text()
    _wait_for_pages(cluster, pages // 3)

    locks = cluster.json("locks")
    before = {lock["name"]: lock for lock in locks if lock["kind"] == "task"}
    master = next(lock for lock in locks if lock["kind"] == "master")
    victim = Counter(lock["owner"] for lock in before.values()).most_common(1)[0][0]
    for name in (victim, master["owner"]):
        cluster.nodes[name].kill()
    survivors = {"w2", "w3", "w4"} - {victim}

    def taken_over() -> bool:
        now = {lock["name"]: lock for lock in cluster.json("locks")}
        tasks = [lock for lock in now.values() if lock["kind"] == "task"]
        return SHARDS == len(tasks) and survivors == {lock["owner"] for lock in tasks}

    eventually(taken_over, within_s=180, what="all tasks owned by those that are left")
    shown = cluster.json("job", "show", JOB)
    assert "running" == shown["state"], "the rest of the crawl is under new owners"
    for task in shown["tasks"]:
        assert task["owner"] in survivors
        lock = before.get(f"tasks/{JOB}/{task['shard']}")
        if lock is not None:  # it was not just being handed over
            kept = (task["token"], task["owner"]) == (lock["token"], lock["owner"])
            assert kept or task["token"] > lock["token"]
    now = next(lock for lock in cluster.json("locks") if lock["kind"] == "master")
    assert {"m1", "m2"} - {master["owner"]} == {now["owner"]}
    assert now["token"] > master["token"]
    return {"w1", victim, str(master["owner"])}


def _assert_nodes_tell_who_left(cluster: Installation, left: set[str]) -> None:
    nodes = {node["id"]: node for node in cluster.json("nodes")}
    assert set(cluster.nodes) == set(nodes)
    assert left == {name for name, node in nodes.items() if node["state"] == "offline"}
    assert all(nodes[name]["left_at"] for name in left)
    masters = [node for node in nodes.values() if node["role"] == "master"]
    assert ["active", "offline"] == sorted(node["state"] for node in masters)


def _assert_complete(cluster: Installation, site: DocSite, walked: Walked) -> None:
    """Every URL of the walk has exactly one record, and there is no other."""
    exported = cluster.run("export", JOB)
    assert 0 == exported.code, exported.err
    found = [json.loads(line) for line in exported.out.splitlines()]
    statuses = {one["url"]: one["status"] for one in found}
    assert len(statuses) == len(found), "a record twice"
    assert statuses == {
        site.url(host, path): status
        for host in site.hosts
        for path, status in walked.status.items()
    }
    counters = cluster.json("job", "show", JOB)["counters"]
    assert len(found) == counters["discovered"] == counters["fetched"]


def _wait_for_pages(cluster: Installation, pages: int) -> None:
    def look() -> bool:
        jobs: list[dict[str, Any]] = cluster.json("jobs")
        return any(job["counters"]["fetched"] >= pages for job in jobs)

    eventually(look, within_s=240, every_s=0.2, what=f"{pages} pages")


def _tasks(cluster: Installation) -> Counter[str]:
    return Counter(lock["owner"] for lock in cluster.json("locks") if lock["kind"] == "task")
