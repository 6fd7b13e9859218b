"""A crawl on a server that syncs its log once a second, and a crash that takes that second back."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from tests.support.cli import eventually
from tests.support.installation import Installation
from tests.support.servers import start_etcd, start_redis, stopping
from tests.support.site import Page, Site

COUNT = 160
PAGES = {"/": Page(links=["/1"])} | {
    f"/{number}": Page(links=[f"/{after}" for after in (number + 1, 2 * number) if after <= COUNT])
    for number in range(1, COUNT + 1)
}
JOB = "everysec"


def test_a_crash_costs_requests_but_no_page_and_no_record_twice(
    tmp_path: Path, cluster_name: str
) -> None:
    etcd = start_etcd(tmp_path / "etcd")
    redis = start_redis(tmp_path / "redis", appendfsync="everysec")
    log, synced = redis.folder / "appendonlydir", tmp_path / "synced"
    with stopping(etcd), stopping(redis), Site(PAGES, addresses=["127.0.0.1"]) as site:
        where = ("--etcd", etcd.endpoint, "--redis", redis.url, "--cluster", cluster_name)
        cluster = Installation(tmp_path, where)
        try:
            cluster.start("master", "m1")
            worker = cluster.start("worker", "w1")
            submitted = cluster.run(
                *("submit", site.url("/"), "--allow-private", "--delay", "0.1", "--shards", "3"),
                *("--id", JOB),
            )
            assert submitted.code == 0, submitted.err
            # By the site's log: a command takes seconds on a busy machine, the crawl not many.
            eventually(lambda: len(site.requests) >= 20, within_s=60, what="twenty pages")
            shutil.copytree(log, synced)
            before = len(site.requests)
            eventually(lambda: len(site.requests) >= before + 12, within_s=60, what="ten more")
            redis.kill()
            shutil.rmtree(log)
            shutil.copytree(synced, log)
            redis.launch()
            redis.wait_ready()
            assert cluster.run("job", "wait", JOB).code == 0
            exported = cluster.run("export", JOB)
            doctor = cluster.run("doctor")
        finally:
            cluster.end()
        requests = Counter(site.paths())
    found = Counter(json.loads(line)["url"] for line in exported.out.splitlines())
    assert found == Counter(site.url(path) for path in PAGES)
    assert any(count > 1 for count in requests.values()), "the crash took nothing back"
    assert "task.adopted" in worker.log.read_text()
    assert doctor.code == 0, doctor.out + doctor.err
