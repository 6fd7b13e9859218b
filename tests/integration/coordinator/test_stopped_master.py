"""A master process stopped for longer than its lease, that wakes up as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.model.job import JobState
from tests.integration.coordinator.rig import LEASE_TTL_S, Rig
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def process(rig: Rig, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    settings = rig.settings
    command = [
        *(sys.executable, "-m", "crawlctl", "start-master", "--id", "m1"),
        *("--lease-ttl", f"{LEASE_TTL_S:g}", "--cluster", settings.cluster),
        *("--etcd", settings.etcd_endpoints[0], "--redis", settings.redis_urls[0]),
    ]
    with (tmp_path / "m1.log").open("wb") as log:
        running = subprocess.Popen(command, cwd=ROOT, stderr=log)
    yield running
    running.kill()
    running.wait()


async def test_a_master_that_was_stopped_past_its_lease_wakes_up_as_a_candidate(
    rig: Rig, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    async def is_active(name: str) -> bool:
        return await rig.active_master() == name

    await until(lambda: is_active("m1"), within_s=60)
    worker = await rig.worker({})
    worker.gate.clear()
    await rig.submit([f"http://h{number}.test/" for number in range(20)], max_pages=15)
    await rig.until_state(JobState.RUNNING)
    os.kill(process.pid, signal.SIGSTOP)
    rig.master("m2")
    await until(lambda: is_active("m2"), within_s=2 * LEASE_TTL_S + 5)
    worker.gate.set()
    finished = await rig.until_state(JobState.FINISHED)

    os.kill(process.pid, signal.SIGCONT)

    async def is_standing_by() -> tuple[str, ...]:
        nodes = {view.info.id: view.info for view in await rig.coord.members.list()}
        return nodes["m1"].reasons if "m1" in nodes and nodes["m1"].state == "standby" else ()

    (reason,) = await until(is_standing_by, within_s=60)
    assert "lost term" in reason
    log = (tmp_path / "m1.log").read_text()
    assert "master.demoted" in log
    assert await rig.job() == finished
    assert (await rig.counters())["fetched"] == 15
    assert await rig.shard_states() == {"closed"}

    process.terminate()
    assert await asyncio.to_thread(process.wait, 15) == 0
