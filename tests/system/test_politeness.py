"""A host is asked as rarely as promised, whoever asks: judged by the web server's own log."""

from __future__ import annotations

import itertools
import json
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from tests.support.cli import Running, crawlctl, eventually, running
from tests.support.docsite import CLOCK_S, HOSTS, serve
from tests.support.servers import EtcdServer, RedisServer
from tests.support.site import Answer, Entry, Page, Site, closure, redirect

TIMEOUT_S = 2.0
NOTED_S = 0.03
"""The sites of this process note the end of a response late when the process is busy."""
SLOW_S = 0.1
"""How long an answer takes where it matters that several are open at one time."""
COMMON = ("--allow-private", "--timeout", str(TIMEOUT_S))


class _Cluster(NamedTuple):
    """A master and two workers, and how to speak with them."""

    command: Callable[..., str]
    where: dict[str, str]
    home: Path
    redis_url: str

    def records(self, job: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.command("export", job).splitlines()]

    def until_workers(self, count: int) -> None:
        eventually(
            lambda: self.command("nodes", "--json").count('"worker"') >= count,
            within_s=60,
            what=f"{count} workers",
        )


@pytest.fixture(scope="module")
def nodes(
    etcd_server: EtcdServer, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Cluster]:
    home = tmp_path_factory.mktemp("home")
    where = {
        "CRAWLCTL_ETCD": etcd_server.endpoint,
        "CRAWLCTL_REDIS": redis_server.url,
        "CRAWLCTL_CLUSTER": f"polite-{secrets.token_hex(4)}",
    }

    def command(*arguments: str) -> str:
        ran = crawlctl(*arguments, home=home, **where)
        assert 0 == ran.code, ran.err
        return ran.out.strip()

    with ExitStack() as stack:
        for arguments in (("start-master",), ("start-worker",), ("start-worker",)):
            stack.enter_context(running(*arguments, "--lease-ttl", "3", home=home, **where))
        cluster = _Cluster(command, where, home, redis_server.url)
        cluster.until_workers(2)
        yield cluster


class _Third(NamedTuple):
    """A third worker, for one test."""

    cluster: _Cluster
    node: str
    process: Running

    def kill_amid(self, job: str) -> None:
        """Kill it once it has done a page of the job."""
        eventually(
            lambda: self.node in {one["worker"] for one in self.cluster.records(job)},
            within_s=60,
            what="a page of the worker that is to be killed",
        )
        self.process.kill_group()


@contextmanager
def third_worker(nodes: _Cluster) -> Iterator[_Third]:
    node = f"third-{secrets.token_hex(2)}"
    start = ("start-worker", "--id", node, "--lease-ttl", "3")
    with running(*start, home=nodes.home, **nodes.where) as process:
        nodes.until_workers(3)
        yield _Third(nodes, node, process)


def tree(count: int) -> dict[str, Page]:
    """Return pages each of which links to the next ones, so that many are known soon."""
    return {
        f"/{one}": Page(links=[f"/{n}" for n in range(4 * one + 1, 4 * one + 5) if n < count])
        for one in range(count)
    }


def write_site(folder: Path, count: int) -> Path:
    folder.chmod(0o755)  # the server's own user reads it
    for path, page in tree(count).items():
        links = "".join(f'<a href="{link[1:]}.html">{link}</a>' for link in page.links)
        file = folder / f"{path[1:]}.html"
        file.write_text(f"<!doctype html><title>{path}</title>{links}")
    return folder


def test_one_host_spread_over_workers_is_spaced_also_when_one_is_killed(
    nodes: _Cluster, tmp_path: Path
) -> None:
    """Three workers share one host (--shard-by url) and one connection; one of them is killed."""
    delay_s = 0.12
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(tmp_path / "nginx", hosts=HOSTS[:1], root=write_site(Path(folder), 70)) as site,
        third_worker(nodes) as third,
    ):
        options = (*COMMON, "--delay", str(delay_s), "--shard-by", "url", "--shards", "9")
        seed = site.url(HOSTS[0], "/0.html")
        job = nodes.command("submit", seed, *options)
        third.kill_amid(job)
        nodes.command("job", "wait", job)
        records, again = nodes.records(job), site.fetched_twice()
        # From the end of each response to the next start: so there was one request at a time.
        assert site.min_gap_s() >= delay_s - CLOCK_S
        walked = closure([seed])
    assert sorted(walked) == sorted(str(one["url"]) for one in records)
    assert 70 == len(walked)
    assert 3 == len({one["worker"] for one in records})
    assert len(again) <= 1, "more than what was on the wire when its worker was killed"


def test_two_jobs_and_a_robots_txt_elsewhere_are_spaced_on_the_host_they_share(
    nodes: _Cluster,
) -> None:
    """The longer delay and the fewer connections hold for both; hosts 1 to 3 have their robots.txt
    on host 0."""
    delay_s = 0.3
    rules = Page(content_type="text/plain", body=b"User-agent: *\nAllow: /")
    elsewhere: dict[str, Answer] = {
        "/0": Page(), "/robots.txt": lambda _: redirect(site.url("/rules")),
    }  # fmt: skip
    with Site(
        [tree(16) | {"/rules": rules}, *[elsewhere] * 3],
        addresses=[f"127.0.0.{number}" for number in range(41, 45)],
    ) as site:
        seeds = [site.url("/0", host=host) for host in range(4)]

        def submitted(agent: str, *options: str) -> str:
            return nodes.command("submit", *seeds, *COMMON, "--user-agent", agent, *options)

        brisk = submitted("brisk", "--delay", "0", "--per-host", "4", "--shards", "16", "--paused")
        strict = submitted("strict", "--delay", str(delay_s), "--shard-by", "url", "--shards", "4")
        eventually(lambda: site.requests, within_s=60, what="the strict job")
        nodes.command("job", "resume", brisk)
        for job in (brisk, strict):
            nodes.command("job", "wait", job)
        log = sorted(entry for entry in site.requests if entry.host == 0)
    strict_times = [entry.start for entry in log if entry.user_agent == "strict"]
    together = [one for one in log if strict_times[0] <= one.start <= strict_times[-1]]
    assert {"brisk", "strict"} == {one.user_agent for one in together}
    assert 6 <= sum("/rules" == one.path for one in log)
    gaps = [later.start - earlier.end for earlier, later in itertools.pairwise(together)]
    assert min(gaps) >= delay_s - NOTED_S, min(gaps)
    assert 2 * 19 == len(nodes.records(brisk)) + len(nodes.records(strict))


def crowd(address: str, *, hosts: int, pages: int) -> Site:
    """Return a site of several hosts (ports) on one address, whose answers take a while."""
    slow: dict[str, Answer] = {
        path: replace(page, delay_s=SLOW_S) for path, page in tree(pages).items()
    }
    rules = Page(content_type="text/plain", body=b"User-agent: *\nAllow: /", delay_s=SLOW_S)
    return Site(slow | {"/robots.txt": rules}, addresses=[address] * hosts)


def at_once(log: Iterable[Entry]) -> int:
    """Return the most requests that were surely open at one time, whatever their host."""
    ends = [(one.start, 1) for one in log] + [(one.end - NOTED_S, -1) for one in log]
    return max(itertools.accumulate(step for _, step in sorted(ends)))


@pytest.mark.parametrize(
    ("limit", "options"),
    [
        ("--per-ip", ("--delay", "0", "--per-host", "3")),
        ("--per-domain", ("--delay", "0.05")),
        ("--per-ip", ("--delay", "0", "--shard-by", "url", "--per-domain", "3")),
    ],
    ids=["address", "domain-with-delay", "both-by-url"],
)
def test_hosts_of_one_address_or_domain_are_limited_together_also_when_a_worker_is_killed(
    nodes: _Cluster, limit: str, options: tuple[str, ...]
) -> None:
    """Many hosts on one address, three workers, one of them killed; without the option the same
    crawl asks for more at once. An address stands for itself as a domain."""
    with (
        crowd("127.0.0.46", hosts=24, pages=3) as site,
        third_worker(nodes) as third,
    ):
        seeds = [site.url("/0", host=host) for host in range(24)]
        free = nodes.command("submit", *seeds, *COMMON, *options[:4], "--shards", "9", "--wait")
        unlimited, asked = at_once(site.requests), len(site.requests)
        job = nodes.command("submit", *seeds, *COMMON, *options, limit, "2", "--shards", "9")
        third.kill_amid(job)
        nodes.command("job", "wait", job)
        log = sorted(site.requests, key=lambda one: one.end)[asked:]
    assert unlimited > 2, "the test cannot fail"
    assert at_once(log) <= 2
    assert 24 * 3 == len(nodes.records(job)) == len(nodes.records(free))
    assert 24 <= sum("/robots.txt" == one.path for one in log)


def test_the_smaller_limit_of_two_jobs_on_one_address_holds_for_both(nodes: _Cluster) -> None:
    """For as long as the one with the smaller limit is active."""
    with crowd("127.0.0.47", hosts=6, pages=24) as site:
        seeds = [site.url("/0", host=host) for host in range(6)]

        def submitted(agent: str, *options: str) -> str:
            common = (*COMMON, "--delay", "0", "--user-agent", agent, "--shards", "6")
            return nodes.command("submit", *seeds, *common, *options)

        brisk = submitted("brisk", "--per-ip", "4", "--max-depth", "1", "--paused")
        strict = submitted("strict", "--per-ip", "1", "--robots", "ignore")
        eventually(lambda: site.requests, within_s=60, what="the strict job")
        nodes.command("job", "resume", brisk)
        for job in (brisk, strict):
            nodes.command("job", "wait", job)
        log = sorted(site.requests)
    strict_times = [one.start for one in log if one.user_agent == "strict"]
    together = [one for one in log if strict_times[0] <= one.start <= strict_times[-1]]
    assert {"brisk", "strict"} == {one.user_agent for one in together}
    assert 1 == at_once(together)
    assert (6 * 5, 6 * 24) == (len(nodes.records(brisk)), len(nodes.records(strict)))


def test_without_a_delay_permits_cost_no_round_trip_a_page(nodes: _Cluster) -> None:
    """One call a second or so serves as many pages as the site can give."""
    with redis.Redis.from_url(nodes.redis_url) as server, Site(tree(1500)) as site:

        def permit_calls() -> int:
            stats = server.info("commandstats")
            return int(stats.get("cmdstat_pexpire", {}).get("calls", 0))  # only permits expire

        before = permit_calls()
        options = (*COMMON, "--delay", "0", "--per-host", "32", "--shards", "4")
        job = nodes.command("submit", site.url("/0"), *options)
        nodes.command("job", "wait", job)
        seconds = max(one.end for one in site.requests) - min(one.start for one in site.requests)
        calls = permit_calls() - before
    assert 1500 == len(nodes.records(job))
    assert calls <= 3 * (seconds + 2), (calls, seconds)
    assert calls < 150
