"""Commands that act on the cluster itself: breaking locks, draining nodes."""

from __future__ import annotations

import pytest

from tests.support.cli import eventually
from tests.support.site import Page, Site
from tests.system.conftest import Command
from tests.system.test_outcomes import show
from tests.system.test_truth import listing

PAGES = {f"/{n}": Page(links=[f"/{n + 1}", f"/{n + 2}"]) for n in range(60)} | {
    "/60": Page(), "/61": Page(),
}  # fmt: skip
OPTIONS = ("--allow-private", "--delay", "0.5", "--shards", "3")
"""So slow that commands have time to act before the crawl ends; see ``finish``."""


def finish(up: Command, site: Site, job: str) -> None:
    """Let some more pages be fetched, judge their pace, then hurry to the end."""
    goal = min(len(site.requests) + 3, len(PAGES))  # a busy machine may be late
    eventually(lambda: len(site.requests) >= goal, within_s=60, what="pages of new owners")
    assert site.min_gap() >= 0.5
    hurried = up("job", "host", job, site.authority(0), "--delay", "0")
    assert hurried.code in (0, 4), hurried.err  # 4: the job is over
    waited = up("job", "wait", job)
    assert 0 == waited.code, waited.err


@pytest.mark.commands("locks show", "locks release")
def test_a_broken_lock_is_taken_again_under_a_newer_token_and_nothing_is_lost(
    up: Command,
) -> None:
    with Site(PAGES) as site:
        job = up("submit", site.url("/0"), *OPTIONS, "--id", "j").out.strip()
        eventually(lambda: show(up, job)["counters"]["fetched"] >= 3, within_s=30, what="pages")
        eventually(lambda: _held(up) == 3, within_s=60, what="an owner of each task")
        shown = [up("locks", "show", f"tasks/j/{shard}", "--json").json for shard in range(3)]
        assert {"task"} == {lock["kind"] for lock in shown}
        first = shown[0]
        stale = up("locks", "release", first["name"], "--token", str(first["token"] - 1))
        assert (4, True) == (stale.code, str(first["token"]) in stale.err), stale.err
        for lock in shown:
            broken = up("locks", "release", lock["name"], "--token", str(lock["token"]))
            assert 0 == broken.code, broken.err
        again = up("locks", "release", first["name"], "--token", str(first["token"]))
        assert 4 == again.code
        old = {lock["name"]: lock["token"] for lock in shown}
        eventually(
            lambda: _newer(listing(up, "locks"), old), within_s=60, what="new owners of the locks"
        )
        finish(up, site, job)
        exported = up("export", job).out.splitlines()
    assert len(PAGES) == len(exported) == show(up, job)["counters"]["fetched"]
    assert 1 == up("locks", "show", "tasks/j/0").code


def _held(up: Command) -> int:
    return sum(lock["kind"] == "task" for lock in listing(up, "locks"))


def _newer(locks: list[dict[str, object]], old: dict[str, int]) -> bool:
    now = {str(lock["name"]): int(str(lock["token"])) for lock in locks}
    return all(now.get(name, 0) > token for name, token in old.items())


def test_a_master_whose_lock_is_broken_leads_again_under_a_newer_term(up: Command) -> None:
    term = up("locks", "show", "master", "--json").json["token"]
    assert 0 == up("locks", "release", "master", "--token", str(term)).code
    with Site(PAGES) as site:
        done = up("submit", site.url("/0"), *OPTIONS, "--delay", "0.05", "--wait")
        assert 0 == done.code, done.err
    assert term < up("locks", "show", "master", "--json").json["token"]


@pytest.mark.commands("nodes drain")
def test_a_drained_worker_hands_over_and_leaves_and_the_crawl_goes_on(up: Command) -> None:
    with Site(PAGES) as site:
        job = up("submit", site.url("/0"), *OPTIONS, "--id", "j").out.strip()
        eventually(lambda: show(up, job)["counters"]["fetched"] >= 3, within_s=30, what="pages")
        owner = next(task["owner"] for task in show(up, job)["tasks"] if task["queued"])
        drained = up("nodes", "drain", owner)
        assert 0 == drained.code, drained.err
        eventually(
            lambda: "offline" == _node(up, owner)["state"], within_s=60, what="the node to leave"
        )
        assert 1 == up("nodes", "drain", owner).code, "it has left"
        finish(up, site, job)
        exported = up("export", job).out.splitlines()
    assert len(PAGES) == len(exported)
    assert 1 == up("nodes", "drain", "nobody").code


def _node(up: Command, node_id: str) -> dict[str, object]:
    return next(node for node in listing(up, "nodes") if node["id"] == node_id)
