"""Limits of a job are exact, over all shards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import eventually
from tests.support.installation import Installation
from tests.support.servers import EtcdServer, RedisServer
from tests.support.site import Page, Site
from tests.system.conftest import Command
from tests.system.test_outcomes import show


def test_the_page_budget_is_exact_and_the_rest_is_dropped_and_explained(up: Command) -> None:
    pages = {f"/{n}": Page(links=[f"/{n + k}" for k in range(1, 6)]) for n in range(200)}
    addresses = [f"127.0.0.{number}" for number in range(1, 9)]
    with Site(pages, addresses=addresses) as site:
        seeds = [site.url("/0", host=host) for host in range(8)]
        options = ["--allow-private", "--delay", "0", "--per-host", "4", "--shards", "16"]
        job = up("submit", *seeds, *options, "--max-pages", "300", "--wait").out.strip()
    shown = show(up, job)
    assert ("finished", 300) == (shown["state"], shown["counters"]["fetched"])
    exported = [json.loads(line) for line in up("export", job).out.splitlines()]
    assert shown["counters"]["discovered"] == len(exported)
    assert {"max_pages"} == {one["rule"] for one in exported if one["outcome"] == "dropped"}


def records_of(up: Command, job: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in up("export", job).out.splitlines()]


def test_the_budget_of_a_host_and_the_depth_limit_are_exact(up: Command) -> None:
    pages = {f"/{n}": Page(links=[f"/{n + k}" for k in range(1, 4)]) for n in range(100)}
    with Site(pages, addresses=["127.0.0.1", "127.0.0.2"]) as site:
        seeds = [site.url("/0", host=host) for host in range(2)]
        common = ["--allow-private", "--delay", "0", "--per-host", "4", "--shards", "4"]
        by_host = up("submit", *seeds, *common, "--max-pages-per-host", "25", "--wait").out.strip()
        spread = up(
            "submit", *seeds, *common, "--max-pages-per-host", "25", "--shard-by", "url", "--wait"
        ).out.strip()
        by_depth = up("submit", seeds[0], *common, "--max-depth", "2", "--wait").out.strip()
        for job in (by_host, spread):
            hosts = [
                one["url"].split("/")[2]
                for one in records_of(up, job)
                if one["outcome"] == "fetched"
            ]
            assert [25, 25] == [hosts.count(site.authority(host)) for host in range(2)]
        why = {one["rule"] for one in records_of(up, spread) if one["outcome"] == "dropped"}
        assert {"max_pages_per_host"} == why
    found = [json.loads(line) for line in up("export", by_depth).out.splitlines()]
    # Links go one to three pages ahead: two links deep is up to page 6.
    assert {f"/{n}" for n in range(7)} == {"/" + one["url"].rsplit("/", 1)[1] for one in found}
    assert 2 == max(one["depth"] for one in found)
    assert show(up, by_depth)["counters"]["filtered"] > 0


def test_a_link_that_one_page_was_too_deep_for_is_taken_from_another(up: Command) -> None:
    """A link cut by depth is not known afterwards; depth is that of the first admission."""
    pages = {
        "/": Page(links=["/slow", "/b"]),
        "/b": Page(links=["/c"]),
        "/c": Page(links=["/x"]),
        "/slow": Page(links=["/x"], delay_s=3),
        "/x": Page(links=["/y"]),
        "/y": Page(),
    }
    with Site(pages) as site:
        options = ("--allow-private", "--delay", "0", "--per-host", "4", "--shards", "2")
        job = up("submit", site.url("/"), *options, "--max-depth", "2", "--wait").out.strip()
        paths = site.paths()
        assert paths.index("/c") < paths.index("/x")
    exported = [json.loads(line) for line in up("export", job).out.splitlines()]
    found = {"/" + one["url"].rsplit("/", 1)[1]: one["depth"] for one in exported}
    assert {"/": 0, "/slow": 1, "/b": 1, "/c": 2, "/x": 2} == found
    counters = show(up, job)["counters"]
    assert (5, 2) == (counters["discovered"], counters["filtered"])


HOSTS = 24
LIMITS = {"--max-pages": 1000, "--max-pages-per-host": 40}


@pytest.fixture
def three_workers(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> Iterator[Installation]:
    """A master and three workers, started by hand."""
    where = ("--etcd", etcd_server.endpoint, "--redis", redis_server.url)
    installation = Installation(tmp_path, [*where, "--cluster", cluster_name])
    try:
        installation.start("master", "m", "--lease-ttl", "5")
        for number in range(1, 4):
            installation.start("worker", f"w{number}", "--lease-ttl", "5")
        yield installation
    finally:
        installation.end()


@pytest.mark.parametrize("limit", list(LIMITS))
def test_a_budget_over_sixteen_shards_is_exact_though_a_worker_is_killed(
    three_workers: Installation, limit: str
) -> None:
    pages = {f"/{n}": Page(links=[f"/{n + k}" for k in range(1, 6)]) for n in range(80)}
    addresses = [f"127.0.0.{number}" for number in range(1, HOSTS + 1)]
    options = ("--allow-private", "--delay", "0.2", "--timeout", "2", "--shards", "16")
    with Site(pages, addresses=addresses) as site:
        seeds = [site.url("/0", host=host) for host in range(HOSTS)]
        budget = (limit, str(LIMITS[limit]), "--id", "j")
        submitted = three_workers.run("submit", *seeds, *options, *budget)
        assert 0 == submitted.code, submitted.err

        def counters() -> dict[str, Any]:
            found: dict[str, Any] = three_workers.json("job", "show", "j")["counters"]
            return found

        def owners_of_tasks() -> Counter[str]:
            tasks = three_workers.json("job", "show", "j")["tasks"]
            return Counter(task["owner"] for task in tasks if task["owner"])

        eventually(lambda: len(owners_of_tasks()) > 1, within_s=90, what="several owners")
        # By the site's log: a command takes seconds on a busy machine, the budget not many.
        eventually(lambda: len(site.requests) >= 250, within_s=90, what="pages")
        three_workers.nodes[owners_of_tasks().most_common(1)[0][0]].kill()
        assert len(site.requests) < 900, "it was killed midway"
        waited = three_workers.run("job", "wait", "j", timeout_s=240)
        assert 0 == waited.code, waited.err
        asked = {(entry.host, entry.path) for entry in site.requests} - {
            (host, "/robots.txt") for host in range(HOSTS)
        }
    ended = counters()
    exported = [json.loads(line) for line in three_workers.run("export", "j").out.splitlines()]
    assert len(exported) == len({one["url"] for one in exported}) == ended["discovered"]
    fetched = Counter(one["url"].split("/")[2] for one in exported if one["outcome"] == "fetched")
    if limit == "--max-pages":
        assert 1000 == ended["fetched"] == fetched.total()
    else:
        assert dict.fromkeys(map(site.authority, range(HOSTS)), 40) == dict(fetched)
        assert 40 * HOSTS == ended["fetched"]
    rule = limit.removeprefix("--").replace("-", "_")
    assert {rule} == {one["rule"] for one in exported if one["outcome"] == "dropped"}
    # What was in flight when its worker was killed may be dropped instead of fetched again.
    assert ended["fetched"] <= len(asked) <= ended["fetched"] + HOSTS
