"""The main job on real input: a real documentation site, real servers, real processes.

The set of fetched URLs is held against a walk that shares no code with crawlctl, and politeness
against the web server's own log.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import assert_none_left, at_least_lines, eventually, records, running
from tests.support.docsite import CLOCK_S, HOSTS, DocSite, Walked, serve

DELAY_S = 0.05


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DocSite]:
    with serve(tmp_path / "nginx", hosts=HOSTS) as one:
        yield one


def crawl_of(site: DocSite, out: Path, hosts: list[str], *, delay: float) -> list[str]:
    seeds = [site.url(host) for host in hosts]
    options = ["--allow-private", "--delay", str(delay), "--workers", "2"]
    return ["crawl", *seeds, "-o", str(out), *options]


def assert_complete(site: DocSite, out: Path, hosts: list[str], walked: Walked) -> None:
    """Every URL of the walk has exactly one record, and there is no other."""
    found = records(out / "results.jsonl")
    counts = Counter(record["url"] for record in found)
    expected = {site.url(host, path) for host in hosts for path in walked.status}
    assert expected == set(counts)
    assert [] == [url for url, count in counts.items() if count > 1]
    by_path = {record["url"]: record["status"] for record in found}
    assert walked.status == {path: by_path[site.url(hosts[0], path)] for path in walked.status}
    summary = json.loads((out / "summary.json").read_text())
    assert len(expected) == summary["counters"]["discovered"]
    assert len(expected) == summary["counters"]["fetched"]


def test_eight_hosts_are_crawled_completely_once_and_politely(
    site: DocSite, walked: Walked, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with running(*crawl_of(site, out, HOSTS, delay=DELAY_S)) as crawl:
        ran = crawl.end(timeout_s=240)
    assert 0 == ran.code, ran.err
    assert_complete(site, out, HOSTS, walked)
    assert [] == site.fetched_twice()
    assert site.min_gap_s() >= DELAY_S - CLOCK_S
    workers = Counter(record["worker"] for record in records(out / "results.jsonl"))
    assert 2 == len(workers), f"both workers did pages: {workers}"
    assert_none_left(out)


@pytest.mark.alone
@pytest.mark.parametrize("end", ["ctrl-c", "kill -9"])
def test_interrupted_crawl_resumes_within_three_seconds_and_ends_complete(
    site: DocSite, walked: Walked, tmp_path: Path, end: str
) -> None:
    out, hosts = tmp_path / "out", HOSTS[:4]
    command = crawl_of(site, out, hosts, delay=0.02)
    resumed_after_s = []
    for results in (300, 600, None):
        started, asked_before = time.time(), len(site.requests())
        with running(*command) as crawl:
            eventually(
                lambda n=asked_before: len(site.requests()) > n, within_s=60, what="a request"
            )
            if asked_before:
                resumed_after_s.append(site.requests()[asked_before].start - started)
            if results is None:
                ran = crawl.end(timeout_s=180)
                continue
            eventually(at_least_lines(out / "results.jsonl", results), within_s=60, what="results")
            if end == "ctrl-c":
                crawl.interrupt()
                left = crawl.end()
                assert 130 == left.code
                assert left.out.startswith("interrupted: "), left.out
            else:
                crawl.kill_group()
                crawl.end()
        assert_none_left(out)
    assert 0 == ran.code, ran.err
    # The better of two: what else the machine does is not ours.
    assert min(resumed_after_s) <= 3.0
    assert_complete(site, out, hosts, walked)
    assert site.min_gap_s() >= 0.02 - CLOCK_S
    if end == "ctrl-c":
        assert [] == site.fetched_twice()
    assert_none_left(out)
