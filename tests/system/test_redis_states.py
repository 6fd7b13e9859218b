"""Redis takes no writes in the middle of a crawl: workers say why, and go on when it is mended."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.support.cli import eventually
from tests.support.installation import Installation
from tests.support.servers import start_etcd, start_redis, stopping
from tests.support.site import Page, Site

PAGES = {"/": Page(links=[f"/{number}" for number in range(60)])} | {
    f"/{number}": Page() for number in range(60)
}


def _tell(port: int, *words: str) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(" ".join(words).encode() + b"\r\n")
        assert connection.recv(64).startswith(b"+OK")


def test_a_crawl_stands_still_while_redis_takes_no_writes_and_then_goes_on(
    tmp_path: Path, cluster_name: str
) -> None:
    etcd, redis = start_etcd(tmp_path / "etcd"), start_redis(tmp_path / "redis")
    with stopping(etcd), stopping(redis), Site(PAGES, addresses=["127.0.0.1"]) as site:
        where = ("--etcd", etcd.endpoint, "--redis", redis.url, "--cluster", cluster_name)
        cluster = Installation(tmp_path, where)
        try:
            cluster.start("master", "m1")
            worker = cluster.start("worker", "w1")
            submitted = cluster.run(
                *("submit", site.url("/"), "--allow-private", "--delay", "0.05", "--shards", "2"),
                *("--id", "stands-still"),
            )
            assert submitted.code == 0, submitted.err
            eventually(lambda: _fetched(cluster) >= 10, within_s=60, what="ten pages")
            _tell(redis.port, "CONFIG", "SET", "maxmemory", "1")
            eventually(lambda: "maxmemory" in _reasons(cluster), within_s=60, what="the reason")
            assert "refuses writes" in worker.log.read_text()
            _tell(redis.port, "CONFIG", "SET", "maxmemory", "0")
            assert cluster.run("job", "wait", "stands-still").code == 0
            exported = cluster.run("export", "stands-still")
        finally:
            cluster.end()
    found = [json.loads(line) for line in exported.out.splitlines()]
    assert sorted(one["url"] for one in found) == sorted(site.url(path) for path in PAGES)
    assert {one["outcome"] for one in found} == {"fetched"}


def _fetched(cluster: Installation) -> int:
    return int(cluster.json("job", "show", "stands-still")["counters"]["fetched"])


def _reasons(cluster: Installation) -> str:
    (node,) = [node for node in cluster.json("nodes") if node["id"] == "w1"]
    return " ".join(node["reasons"])
