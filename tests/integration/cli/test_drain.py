"""``nodes drain`` on nodes started by hand: each ends by itself with exit code 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cli import Ran, crawlctl, eventually, running
from tests.support.servers import EtcdServer, RedisServer


def test_a_drained_master_resigns_and_a_drained_worker_leaves_both_with_exit_0(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> None:
    places = [
        "--etcd", etcd_server.endpoint, "--redis", redis_server.url, "--cluster", cluster_name,
    ]  # fmt: skip

    def command(*arguments: str) -> Ran:
        return crawlctl(*arguments, *places, home=tmp_path)

    def states() -> dict[str, Any]:
        return {node["id"]: node["state"] for node in command("nodes", "--json").json}

    with (
        running("start-master", "--id", "m1", *places, home=tmp_path) as first,
        running("start-worker", "--id", "w1", *places, home=tmp_path) as worker,
    ):
        eventually(
            lambda: {"m1": "active", "w1": "ready"} == states(), within_s=30, what="both nodes"
        )
        with running("start-master", "--id", "m2", *places, home=tmp_path) as second:
            eventually(lambda: states().get("m2") == "standby", within_s=30, what="a standby")
            assert 0 == command("nodes", "drain", "w1").code
            assert 0 == command("nodes", "drain", "m1").code
            assert (0, 0) == (worker.end().code, first.end().code)
            eventually(
                lambda: {"m1": "offline", "m2": "active", "w1": "offline"} == states(),
                within_s=30,
                what="the standby to lead",
            )
            assert 0 == command("nodes", "drain", "m2").code
            assert 0 == second.end().code
