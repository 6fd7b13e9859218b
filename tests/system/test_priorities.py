"""Two jobs at once share a worker by the weights of their priorities."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli import crawlctl, eventually, running
from tests.support.servers import EtcdServer, RedisServer
from tests.support.site import Page, Site

PLACES = 8
HOSTS = 6
PAGES = 24
"""A host. Each takes a place for a fifth of a second."""


def slow_pages(count: int) -> dict[str, Page]:
    links = [f"/{number}" for number in range(1, count)]
    return {"/": Page(links=links)} | {path: Page(delay_s=0.2) for path in links}


def addresses(first: int) -> list[str]:
    return [f"127.0.0.{first + number}" for number in range(HOSTS)]


def pages_of(site: Site) -> set[tuple[int, str]]:
    return {(entry.host, entry.path) for entry in site.requests if entry.path != "/robots.txt"}


def test_a_job_of_higher_priority_overtakes_one_that_holds_every_place(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> None:
    """Both want every place; two steps of priority are four places to one."""
    where = {
        "CRAWLCTL_ETCD": etcd_server.endpoint,
        "CRAWLCTL_REDIS": redis_server.url,
        "CRAWLCTL_CLUSTER": cluster_name,
    }

    def command(*arguments: str) -> str:
        ran = crawlctl(*arguments, home=tmp_path, **where)
        assert 0 == ran.code, ran.err
        return ran.out.strip()

    def submitted(site: Site, priority: int) -> str:
        seeds = [site.url("/", host=host) for host in range(HOSTS)]
        options = ["--allow-private", "--delay", "0", "--per-host", "64", "--shards", "16"]
        return command("submit", *seeds, *options, "--priority", str(priority))

    with (
        running("start-master", home=tmp_path, **where),
        running("start-worker", "--concurrency", str(PLACES), home=tmp_path, **where),
        Site(slow_pages(10 * PAGES), addresses=addresses(11)) as low_site,
        Site(slow_pages(PAGES), addresses=addresses(31)) as high_site,
    ):
        low = submitted(low_site, 0)
        eventually(lambda: len(low_site.requests) > PLACES, within_s=60, what="the first job")
        high = submitted(high_site, 2)
        eventually(lambda: len(high_site.requests) > PLACES, within_s=60, what="the second job")
        before = len(low_site.requests)
        command("job", "wait", high)
        ended_at = max(entry.end for entry in high_site.requests)
        meanwhile = sum(1 for entry in low_site.requests if entry.end < ended_at) - before
        command("job", "cancel", low)
    assert HOSTS * PAGES == len(pages_of(high_site))
    # A quarter, and some for the turns of batches; without weights it would be as many.
    assert 10 < meanwhile < 0.6 * HOSTS * PAGES, meanwhile
