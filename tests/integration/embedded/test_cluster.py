"""All of an embedded run together, and what a second run does about the first one's remains."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from common.coord import Acquired, buried_below, connect
from common.coord.member import EtcdOptions
from common.coord.session import Session
from common.embedded.cluster import EmbeddedCluster
from common.embedded.folder import Folder
from common.model.ids import NodeId
from tests.integration.embedded.processes import FAKE_NODE, all_dead, environment, until


async def test_leaving_ends_nodes_and_servers(tmp_path: Path) -> None:
    with Folder.claim(tmp_path) as folder:
        async with EmbeddedCluster.open(
            folder, workers=2, cluster="mine", program=FAKE_NODE
        ) as cluster:
            pids = cluster.nodes.pids | cluster.stack.pids
            assert set(pids) == {"master", "worker-1", "worker-2", "keeper", "etcd", "redis"}
            await until(lambda: all("ready" in p.read_text() for p in cluster.nodes.logs.values()))
            given = environment(pids["worker-2"])
            told = cluster.nodes.logs["worker-2"].read_text()
            assert f"{cluster.endpoints.etcd} {cluster.endpoints.redis}" in told
            assert given["CRAWLCTL_CLUSTER"] == "mine"
        assert all_dead(pids.values(), within_s=0.0)


async def test_an_error_inside_ends_nodes_and_servers_too(tmp_path: Path) -> None:
    pids: dict[str, int] = {}
    with Folder.claim(tmp_path) as folder, pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with EmbeddedCluster.open(folder, workers=1, program=FAKE_NODE) as cluster:
            pids |= cluster.nodes.pids | cluster.stack.pids
            raise ZeroDivisionError
    assert len(pids) == 5
    assert all_dead(pids.values(), within_s=0.0)


async def test_cancelling_ends_nodes_and_servers_too(tmp_path: Path) -> None:
    pids: dict[str, int] = {}

    async def run() -> None:
        with Folder.claim(tmp_path) as folder:
            async with EmbeddedCluster.open(folder, workers=1, program=FAKE_NODE) as cluster:
                pids.update(cluster.nodes.pids | cluster.stack.pids)
                await asyncio.Event().wait()

    running = asyncio.create_task(run())
    await until(lambda: bool(pids))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert all_dead(pids.values(), within_s=0.0)


async def test_what_a_killed_run_held_is_buried_before_the_next_nodes_start(tmp_path: Path) -> None:
    me = NodeId("me")
    with Folder.claim(tmp_path) as folder:
        async with EmbeddedCluster.open(folder, workers=1, program=FAKE_NODE) as cluster:
            options = EtcdOptions(endpoints=(cluster.endpoints.etcd,))
            coord = await connect(options, cluster="default")
            session = await Session.open(coord.etcd, ttl_s=60)
            held = await coord.locks.acquire(session, "something", owner=me)
            assert isinstance(held, Acquired)
            assert await buried_below(coord.etcd, coord.keys) == 0
            # The process dies without giving its lease back.
            os.kill(cluster.stack.pids["etcd"], signal.SIGKILL)
            closing = asyncio.create_task(coord.close())
            await closing
    with Folder.claim(tmp_path) as folder:
        async with EmbeddedCluster.open(folder, workers=1, program=FAKE_NODE) as cluster:
            options = EtcdOptions(endpoints=(cluster.endpoints.etcd,))
            coord = await connect(options, cluster="default")
            assert await coord.locks.list() == []
            assert await buried_below(coord.etcd, coord.keys) > held.token
            await coord.close()


async def test_a_node_that_cannot_be_kept_running_is_reported(tmp_path: Path) -> None:
    with Folder.claim(tmp_path) as folder:
        async with (
            asyncio.timeout(30),
            EmbeddedCluster.open(
                folder, workers=1, program=FAKE_NODE, worker_arguments=("--mode", "die")
            ) as cluster,
        ):
            assert "worker-1.5 cannot be kept running" in str(await cluster.wait_failed())
