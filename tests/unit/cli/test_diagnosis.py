"""What doctor concludes from what it was told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.coord import EndpointStatus, LockInfo, NodeInfo, NodeView
from common.frontier import ServerInfo, ShardStats
from common.frontier.topology import Topology, parse_nodes
from common.model import counters
from crawlctl.cluster_diagnosis import judge_topology
from crawlctl.diagnosis import (
    exit_code,
    judge_etcd,
    judge_redis,
)
from crawlctl.findings import Finding, Status
from crawlctl.invariants import (
    judge_nodes,
    suspicious_fences,
    unbalanced,
)
from tests.unit.cli.test_jobview import JOB

GOOD_REDIS = ServerInfo(
    version="7.2.4",
    is_valkey=False,
    run_id="r",
    appendonly=True,
    appendfsync="always",
    replicas=0,
    eviction="noeviction",
    used_bytes=1,
    limit_bytes=0,
    clock_s=1000.0,
)


def stats(shard: int, *, token: int = 0, **counted: int) -> ShardStats:
    return ShardStats(
        shard=shard,
        exists=True,
        state=None,
        run="r",
        token=token,
        counters=dict.fromkeys(counters.NAMES, 0) | counted,
        staged=0,
        grant=0,
        seen_estimate=0,
        layers=1,
    )


def statuses(findings: list[Finding]) -> dict[str, Status]:
    return {one.check: one.status for one in findings}


def test_a_log_that_is_synced_every_second_is_sound_and_its_price_is_told() -> None:
    found = judge_redis(GOOD_REDIS._replace(appendfsync="everysec"), now_s=1000.0)
    (said,) = [one for one in found if one.check == "redis.persistence"]
    assert said.status is Status.OK
    assert "fetched again, and none is lost" in said.detail


def test_a_good_data_server_has_no_complaints() -> None:
    found = judge_redis(GOOD_REDIS, now_s=1000.0)
    assert {one.status for one in found} <= {Status.OK, Status.INFO}


@pytest.mark.parametrize(
    ("change", "check", "status"),
    [
        ({"appendonly": False}, "redis.persistence", Status.FAILED),
        ({"appendfsync": "no"}, "redis.persistence", Status.WARNING),
        ({"appendfsync": None}, "redis.persistence", Status.WARNING),
        ({"eviction": "allkeys-lru"}, "redis.eviction", Status.FAILED),
        ({"used_bytes": 90, "limit_bytes": 100}, "redis.memory", Status.WARNING),
    ],
)
def test_settings_that_break_promises_are_found_with_a_remedy(
    change: dict[str, Any], check: str, status: Status
) -> None:
    found = judge_redis(GOOD_REDIS._replace(**change), now_s=1000.0)
    (one,) = (finding for finding in found if finding.check == check)
    assert one.status is status
    assert one.remedy


def test_clocks_apart_are_told_but_are_no_failure() -> None:
    found = judge_redis(GOOD_REDIS, now_s=4600.0)
    assert statuses(found)["clocks"] is Status.INFO
    assert exit_code(found) == 0


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("3.5.1", Status.WARNING),
        ("3.5.2", Status.WARNING),
        ("3.5.3", None),
        ("3.4.23", None),
        ("3.6.0-rc.1", None),
        ("3.3.27", Status.FAILED),
    ],
)
def test_releases_of_etcd_are_judged(version: str, status: Status | None) -> None:
    found = judge_etcd([EndpointStatus(endpoint="h:1", version=version, raft_term=2)])
    assert statuses(found).get("etcd.version") is status


def test_a_release_that_loses_data_under_load_is_no_fault_of_a_private_server() -> None:
    member = EndpointStatus(endpoint="h:1", version="3.5.1", raft_term=2)
    assert statuses(judge_etcd([member], is_private=True))["etcd.version"] is Status.INFO


def test_a_member_that_is_silent_makes_the_services_unreachable() -> None:
    found = judge_etcd(
        [
            EndpointStatus(endpoint="a:1", version="3.5.9", raft_term=2),
            EndpointStatus(endpoint="b:1", error="no answer"),
        ]
    )
    assert exit_code(found) == 3
    assert any("b:1" in one.detail for one in found)


def test_a_member_out_of_space_is_a_failure() -> None:
    found = judge_etcd([EndpointStatus(endpoint="a:1", version="3.5.9", warnings=("NOSPACE",))])
    assert exit_code(found) == 1


def node(role: str, state: str, *, left_at: str | None = None) -> NodeView:
    info = msgspec.convert(
        {"id": role, "role": role, "state": state, "pid": 1, "host": "h", "started_at": "t"},
        NodeInfo,
    )
    term = 7 if state == "active" else None
    return NodeView(info=info, term=term, ttl_seconds=None, left_at=left_at)


def test_missing_nodes_are_warned_of() -> None:
    assert statuses(judge_nodes([node("master", "active"), node("worker", "ready")])) == {
        "nodes": Status.OK
    }
    found = judge_nodes([node("master", "standby"), node("worker", "offline", left_at="t")])
    assert statuses(found) == {"nodes.master": Status.WARNING, "nodes.workers": Status.WARNING}


def test_counters_that_do_not_add_up_are_a_failure() -> None:
    good = stats(0, discovered=3, queued=1, fetched=2)
    bad = stats(1, discovered=3, queued=1, fetched=1)
    (found,) = unbalanced("x", [good, bad])
    assert found.status is Status.FAILED
    assert "shard 1" in found.detail


def test_a_fence_above_its_lock_is_suspicious() -> None:
    locks = [
        LockInfo(
            name=f"tasks/x/{shard}",
            kind="task",
            owner="w",
            token=10,
            age_seconds=1,
            ttl_seconds=9,
        )
        for shard in (0, 1, 2)
    ]
    looks = [stats(0, token=10), stats(1, token=9), stats(2, token=11), stats(3, token=50)]
    job = msgspec.structs.replace(JOB, id="x")
    found = suspicious_fences(job, locks, [*looks, stats(4, token=51)], revision=50)
    told = [(one.status, one.detail.partition(":")[0]) for one in found]
    assert told == [
        (Status.WARNING, "shard 1"),
        (Status.FAILED, "shard 2"),
        (Status.FAILED, "shard 4"),
    ]
    assert "not reached" in found[-1].detail


def test_a_cluster_is_judged_by_its_slots_what_moves_and_who_takes_over() -> None:
    def node(name: str, slots: str, *, flags: str = "master", of: str = "-") -> str:
        return f"{name} 10.0.0.1:70@17 {flags} {of} 0 0 1 connected {slots}\n"

    whole = node("a", "0-8000") + node("b", "8001-16383")
    replicas = node("c", "", flags="slave", of="a") + node("d", "", flags="slave", of="b")
    good = Topology(parse_nodes((whole + replicas).encode(), by_name=False))
    assert statuses(judge_topology(good, [])) == {
        "redis.cluster": Status.OK, "redis.replicas": Status.OK,
    }  # fmt: skip
    alone = Topology(parse_nodes(node("a", "0-8000").encode(), by_name=False))
    found = judge_topology(alone, ["7 from 10.0.0.1:70"])
    assert statuses(found) == {
        "redis.cluster": Status.FAILED,
        "redis.slots": Status.WARNING,
        "redis.replicas": Status.INFO,
    }
    assert "8383 of 16384 slots" in found[0].detail
    assert "7 from 10.0.0.1:70" in found[1].detail


def test_what_is_said_of_a_node_names_it() -> None:
    found = judge_redis(GOOD_REDIS, now_s=1000.0, where="10.0.0.1:70: ")
    assert all(one.detail.startswith("10.0.0.1:70: ") for one in found)
