"""A worker process on real servers: degraded and fit again, and what it does when one is away."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from common.coord import NodeInfo
from common.model.job import JobState
from tests.integration.coordinator.rig import Rig
from tests.support.servers import EtcdServer, RedisServer, start_etcd, start_redis, stopping
from tests.support.site import Page, Request, Site
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
ENDLESS = {f"/{n}": Page(links=[f"/{2 * n + 1}", f"/{2 * n + 2}"]) for n in range(2000)}


class Servers(NamedTuple):
    etcd: EtcdServer
    redis: RedisServer


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    etcd, redis = start_etcd(tmp_path / "etcd"), start_redis(tmp_path / "redis")
    with stopping(etcd), stopping(redis):
        yield Servers(etcd, redis)


@pytest.fixture
async def rig(servers: Servers, cluster_name: str) -> AsyncIterator[Rig]:
    async with Rig.open(servers.etcd.endpoint, servers.redis.url, cluster=cluster_name) as rig:
        yield rig


class Nodes:
    """Real node processes, each with its log."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig = rig
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, node: str, *options: str, role: str = "worker") -> subprocess.Popen[bytes]:
        settings = self._rig.settings
        command = [
            *(sys.executable, "-m", "crawlctl", f"start-{role}", "--id", node, *options),
            *("--cluster", settings.cluster, "--etcd", settings.etcd_endpoints[0]),
            *("--redis", settings.redis_urls[0]),
        ]
        with (self._folder / f"{node}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stderr=log)
        self._running.append(process)
        return process

    def log(self, node: str) -> str:
        return (self._folder / f"{node}.log").read_text()

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def nodes(rig: Rig, tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(rig, tmp_path)
    yield nodes
    nodes.end()


async def until_state(rig: Rig, node: str, *states: str, within_s: float = 60) -> NodeInfo:
    async def is_so() -> NodeInfo | None:
        infos = {view.info.id: view.info for view in await rig.coord.members.list()}
        return infos[node] if node in infos and infos[node].state in states else None

    found = await until(is_so, within_s=within_s)
    assert found is not None
    return found


async def test_a_worker_whose_loop_stood_still_is_degraded_for_a_while(
    rig: Rig, nodes: Nodes
) -> None:
    """Its lease outlived the stop, so nothing else would tell of it."""
    process = nodes.start("w1", "--lease-ttl", "20")
    await until_state(rig, "w1", "ready")
    os.kill(process.pid, signal.SIGSTOP)
    await asyncio.sleep(6)
    os.kill(process.pid, signal.SIGCONT)
    degraded = await until_state(rig, "w1", "degraded")
    assert any("event loop: late by" in reason for reason in degraded.reasons)
    assert degraded.weight < 1
    fit = await until_state(rig, "w1", "ready")
    assert fit.reasons == ()
    assert "worker.session_lost" not in nodes.log("w1")


async def test_a_worker_without_redis_takes_nothing_new_until_it_answers_again(
    rig: Rig, nodes: Nodes, servers: Servers
) -> None:
    rig.master()
    nodes.start("w1")
    await until_state(rig, "w1", "ready")
    await asyncio.to_thread(servers.redis.pause)

    async def says_so() -> bool:
        return "Redis does not answer" in (await until_state(rig, "w1", "degraded")).reasons

    await until(says_so, within_s=60)
    await asyncio.to_thread(servers.redis.resume)
    await until_state(rig, "w1", "ready")


@pytest.mark.parametrize("slow", ["etcd", "redis"])
async def test_a_node_waits_for_servers_that_are_slow_to_start(
    rig: Rig, nodes: Nodes, servers: Servers, slow: str
) -> None:
    """On a busy machine all start at once, and nobody starts the node a second time."""
    server = getattr(servers, slow)
    await asyncio.to_thread(server.pause)
    process = nodes.start("w1")
    await asyncio.sleep(6)
    assert process.poll() is None, nodes.log("w1")
    await asyncio.to_thread(server.resume)
    await until_state(rig, "w1", "ready")


async def test_a_worker_over_its_memory_limit_gets_no_task_and_the_job_says_why(
    rig: Rig, nodes: Nodes
) -> None:
    rig.master()
    nodes.start("w1", "--memory-limit", "1M")
    degraded = await until_state(rig, "w1", "degraded")
    assert any("memory" in reason for reason in degraded.reasons)
    await rig.submit([], keep_open=True, shards=2)
    await rig.until_state(JobState.RUNNING, within_s=30)
    nodes.start("w2")

    async def has_all() -> bool:
        locks = await rig.coord.locks.list()
        return sorted(lock.owner for lock in locks if lock.kind == "task") == ["w2", "w2"]

    await until(has_all, within_s=60)


async def test_a_worker_that_cannot_renew_its_lease_stops_before_it_can_have_ended(
    rig: Rig, nodes: Nodes, servers: Servers
) -> None:
    """etcd hangs: nobody tells the worker anything; its own clock must."""
    ttl_s = 6.0
    with Site(ENDLESS) as site:
        nodes.start("m1", role="master")
        nodes.start("w1", "--lease-ttl", f"{ttl_s:g}")
        await rig.submit([site.url("/0")], shards=1, delay=0.05, allow_private=True)

        async def is_crawling() -> bool:
            return len(site.requests) > 5

        await until(is_crawling, within_s=60)
        await asyncio.to_thread(servers.etcd.pause)
        paused_at_s = time.monotonic()

        async def is_lost() -> bool:
            return "session.lost" in nodes.log("w1")

        await until(is_lost, within_s=ttl_s + 20)
        lost_after_s = time.monotonic() - paused_at_s
        await asyncio.sleep(0.5)  # what was on the wire
        before = len(site.requests)
        await asyncio.sleep(1.5)
        assert len(site.requests) == before, "it still crawls without a lease"
        assert lost_after_s < ttl_s
        await asyncio.to_thread(servers.etcd.resume)

        async def is_crawling_again() -> bool:
            return len(site.requests) > before + 3

        await until(is_crawling_again, within_s=60)


async def test_the_lock_of_a_drained_task_is_held_until_its_last_page_has_ended(
    rig: Rig, nodes: Nodes
) -> None:
    """Let go before, and the next owner would fetch the page as well."""

    async def owners() -> list[str]:
        return [lock.owner for lock in await rig.coord.locks.list() if lock.kind == "task"]

    asked = threading.Event()

    def slow(_: Request) -> Page:
        asked.set()
        return Page(delay_s=15)

    with Site({"/": slow}) as site:
        nodes.start("m1", role="master")
        drained = nodes.start("w1")
        await rig.submit([site.url("/")], keep_open=True, shards=1, allow_private=True)

        assert await asyncio.to_thread(asked.wait, 60)
        drained.send_signal(signal.SIGTERM)
        await until_state(rig, "w1", "draining")
        await asyncio.sleep(2)  # several rounds of what it does while it drains
        held_by = await owners()
        assert "/" not in site.paths(), "the page was answered before it was looked at"
        assert held_by == ["w1"]
        assert await asyncio.to_thread(drained.wait, 60) == 0
        assert await owners() == []
        assert site.paths().count("/") == 1


async def test_a_job_whose_frontier_is_gone_is_damaged_and_never_finished(
    rig: Rig, nodes: Nodes
) -> None:
    with Site(ENDLESS) as site:
        nodes.start("m1", role="master")
        nodes.start("w1")
        await rig.submit([site.url("/0")], shards=3, delay=0.05, allow_private=True)

        async def is_crawling() -> bool:
            return len(site.requests) > 5

        await until(is_crawling, within_s=60)
        await rig.client.commands([("FLUSHALL",)])

        async def is_over() -> bool:
            return (await rig.job()).job.state.is_final

        await until(is_over, within_s=60)
    job = (await rig.job()).job
    assert job.state is JobState.DAMAGED
    assert "shards gone from Redis: 3 of 3 " in (job.reason or "")


async def test_a_worker_that_comes_back_takes_its_own_name_at_once(rig: Rig, nodes: Nodes) -> None:
    """Its key of the former session may outlive that by a whole lease."""
    process = nodes.start("w1", "--lease-ttl", "60")
    first = await until_state(rig, "w1", "ready")
    leases = await rig.coord.etcd.get(rig.coord.keys.node("w1"))
    assert leases is not None
    await rig.coord.etcd.revoke(leases.lease)
    again = await until_state(rig, "w1", "ready", "busy", within_s=50)
    assert again.is_same_process(first)
    assert process.poll() is None
