"""Limits of a job are exact, over all shards."""

from __future__ import annotations

import json

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


def test_the_budget_of_a_host_and_the_depth_limit_are_exact(up: Command) -> None:
    pages = {f"/{n}": Page(links=[f"/{n + k}" for k in range(1, 4)]) for n in range(100)}
    with Site(pages, addresses=["127.0.0.1", "127.0.0.2"]) as site:
        seeds = [site.url("/0", host=host) for host in range(2)]
        common = ["--allow-private", "--delay", "0", "--per-host", "4", "--shards", "4"]
        by_host = up("submit", *seeds, *common, "--max-pages-per-host", "25", "--wait").out.strip()
        by_depth = up("submit", seeds[0], *common, "--max-depth", "2", "--wait").out.strip()
        hosts = [
            json.loads(line)["url"].split("/")[2]
            for line in up("export", by_host).out.splitlines()
            if json.loads(line)["outcome"] == "fetched"
        ]
        assert [25, 25] == [hosts.count(site.authority(host)) for host in range(2)]
    found = [json.loads(line) for line in up("export", by_depth).out.splitlines()]
    # Links go one to three pages ahead: two links deep is up to page 6.
    assert {f"/{n}" for n in range(7)} == {"/" + one["url"].rsplit("/", 1)[1] for one in found}
    assert 2 == max(one["depth"] for one in found)
    assert show(up, by_depth)["counters"]["filtered"] > 0
