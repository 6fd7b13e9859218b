"""A crawl over a Redis Cluster while a slot of it moves and one of its masters is killed.

Three masters with a replica each, a master and two workers, each a process of its own. What was
crawled is held against the site's link graph, politeness against the web server's own log.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from common.frontier.keys import TaskKeys
from common.frontier.offers import shard_of
from common.model.ids import HostKey, JobId, Task
from tests.support.cli import eventually
from tests.support.installation import Installation, Node
from tests.support.rediscluster import RedisCluster, redis_cluster, slot_of
from tests.support.servers import start_etcd, start_redis, stopping
from tests.support.site import Page, Request, Site

HOSTS = 6
COUNT = 80
DELAY_S = 0.3
NOTED_S = 0.03
"""The site notes the end of a response late when the machine is busy."""
SHARDS = 12
JOB = "clustered"


def test_a_crawl_outlives_a_migration_and_a_failover(tmp_path: Path, cluster_name: str) -> None:
    etcd = start_etcd(tmp_path / "etcd")
    with (
        stopping(etcd),
        redis_cluster(tmp_path / "redis", replicas=True, start=start_redis) as redis,
        _site() as site,
    ):
        where = ("--etcd", etcd.endpoint, "--redis", redis.url, "--cluster", cluster_name)
        cluster = Installation(tmp_path, where)
        try:
            cluster.start("master", "m1")
            workers = [cluster.start("worker", name) for name in ("w1", "w2")]
            seeds = [site.url("/0", host=host) for host in range(HOSTS)]
            submitted = cluster.run(
                *("submit", *seeds, "--allow-private", "--delay", f"{DELAY_S}"),
                *("--shards", f"{SHARDS}", "--id", JOB),
            )
            assert submitted.code == 0, submitted.err
            _until_pages(site, HOSTS * COUNT // 10)
            shard = shard_of(HostKey(f"http://{site.authority(0)}"), SHARDS)
            meta = TaskKeys(cluster_name, Task(JobId(JOB), shard)).meta
            _move_slot(redis, slot_of(meta), workers)
            _until_pages(site, len(site.requests) + HOSTS * COUNT // 5)
            victim = redis.owner_of(meta)
            victim.kill()
            redis.wait_taken_over(redis.replicas[redis.masters.index(victim)])
            waited = cluster.run("job", "wait", JOB, timeout_s=400)
            assert waited.code == 0, waited.err
            exported = cluster.run("export", JOB)
            shown = cluster.json("job", "show", JOB)
            doctor = cluster.run("doctor")
            said = _said(workers)
        finally:
            cluster.end()
        gap_s = site.min_gap()
    found = Counter(json.loads(line)["url"] for line in exported.out.splitlines())
    wanted = [site.url(f"/{one}", host=host) for host in range(HOSTS) for one in range(COUNT)]
    assert found == Counter(wanted), "each page once, and no other"
    counters = shown["counters"]
    assert len(found) == counters["discovered"] == counters["fetched"]
    assert gap_s >= DELAY_S - NOTED_S
    assert f"Redis at 127.0.0.1:{victim.port} is unreachable" in said
    assert doctor.code == 0, doctor.out + doctor.err


def _site() -> Site:
    """Return a site half of whose pages are linked by pages of another host only."""

    def page(number: int) -> Callable[[Request], Page]:
        def answer(request: Request) -> Page:
            children = range(3 * number + 1, min(3 * number + 4, COUNT))
            hosts = ((request.host + child % 2) % HOSTS for child in children)
            links = [
                site.url(f"/{child}", host=host)
                for child, host in zip(children, hosts, strict=True)
            ]
            return Page(links=links)

        return answer

    site = Site(
        {f"/{number}": page(number) for number in range(COUNT)},
        addresses=[f"127.0.0.{number + 1}" for number in range(HOSTS)],
    )
    return site


def _move_slot(redis: RedisCluster, slot: int, workers: Sequence[Node]) -> None:
    """Move a slot key by key; a worker meets it half-way."""
    source = redis.owner_of_slot(slot)
    target = next(one for one in redis.masters if one is not source)
    redis.open_slot(slot, source, target)
    redis.move_keys(slot, source, target, count=2)
    met = "is moving a slot to another node"
    eventually(lambda: met in _said(workers), within_s=60, what="a worker that waits for the slot")
    while redis.move_keys(slot, source, target, count=1):
        pass
    redis.close_slot(slot, source, target)


def _until_pages(site: Site, count: int) -> None:
    eventually(lambda: len(site.requests) >= count, within_s=120, what=f"{count} requests")


def _said(workers: Sequence[Node]) -> str:
    return "".join(worker.log.read_text() for worker in workers)
