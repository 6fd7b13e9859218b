"""Master and workers as child processes: started again when they die, drained in order."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from common.embedded.folder import Folder
from common.embedded.nodes import Nodes
from common.embedded.stack import Endpoints
from common.model.errors import ServiceUnavailable
from tests.integration.embedded.processes import (
    FAKE_NODE,
    all_dead,
    command_line,
    environment,
    is_alive,
    until,
)

ENDPOINTS = Endpoints(
    etcd="127.0.0.1:1",
    redis="redis://:geheim@127.0.0.1:2/0",
    etcd_program="etcd",
    redis_program="Redis",
)


@asynccontextmanager
async def running_nodes(
    path: Path,
    *,
    workers: int = 2,
    mode: str = "",
    first: int | None = None,
    program: Sequence[str] = FAKE_NODE,
) -> AsyncIterator[Nodes]:
    with Folder.claim(path) as folder:
        nodes = Nodes(
            folder,
            cluster="test",
            workers=workers,
            worker_arguments=("--mode", mode) if mode else (),
            program=program,
        )
        try:
            await nodes.start(first)
            nodes.begin(ENDPOINTS)
            yield nodes
        finally:
            await nodes.kill()


def all_ready(nodes: Nodes) -> bool:
    return all(path.exists() and "ready" in path.read_text() for path in nodes.logs.values())


async def test_one_master_and_the_workers_are_started(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as nodes:
        await until(lambda: all_ready(nodes))
        assert set(nodes.pids) == {"master", "worker-1", "worker-2"}
        log = nodes.logs["worker-1"].read_text()
        flags = "'--exit-with-parent', '--settings-from-parent'"
        assert f"['start-worker', {flags}, '--id', 'worker-1']" in log
        assert "start-master" in nodes.logs["master"].read_text()
        # The endpoints come by standard input: a command line can be read by everyone.
        assert ENDPOINTS.redis in log
        for pid in nodes.pids.values():
            assert "geheim" not in command_line(pid)
            assert "geheim" not in str(environment(pid))
            assert os.getsid(pid) == pid


async def test_settings_of_the_users_own_services_do_not_reach_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRAWLCTL_ETCD_USER", "me:secret")
    monkeypatch.setenv("CRAWLCTL_LOG_LEVEL", "debug")
    async with running_nodes(tmp_path) as nodes:
        await until(lambda: all_ready(nodes))
        given = environment(nodes.pids["worker-1"])
    assert "CRAWLCTL_ETCD_USER" not in given
    assert given["CRAWLCTL_LOG_LEVEL"] == "debug"


async def test_draining_ends_all_in_time(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as nodes:
        await until(lambda: all_ready(nodes))
        pids = nodes.pids
        assert await nodes.drain(timeout_s=10) == []
        assert nodes.pids == {}
        assert all_dead(pids.values(), within_s=0.0)


async def test_a_worker_that_does_not_drain_is_killed_and_named(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, mode="deaf", workers=1) as nodes:
        await until(lambda: all_ready(nodes))
        pids = nodes.pids
        started = time.monotonic()
        assert await nodes.drain(timeout_s=0.3) == ["worker-1"]
        assert time.monotonic() - started < 20
        assert all_dead(pids.values(), within_s=0.0)


@pytest.mark.parametrize("error", [None, ServiceUnavailable("etcd is away")])
async def test_the_rest_is_started_when_the_first_are_at_work(
    tmp_path: Path, error: ServiceUnavailable | None
) -> None:
    may_start = asyncio.Event()

    async def wait() -> None:
        await may_start.wait()
        if error:
            raise error

    async with running_nodes(tmp_path, first=2) as nodes:
        nodes.start_rest(wait)
        await until(lambda: all("ready" in nodes.logs[n].read_text() for n in nodes.pids))
        assert set(nodes.pids) == {"master", "worker-1"}
        may_start.set()
        await until(lambda: set(nodes.pids) == {"master", "worker-1", "worker-2"})
        await until(lambda: all_ready(nodes))
        os.kill(nodes.pids["worker-2"], signal.SIGKILL)
        await until(lambda: set(nodes.pids) == {"master", "worker-1", "worker-2.1"})


async def test_the_rest_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may be stuck, in a plugin's code for instance."""
    monkeypatch.setattr("common.embedded.nodes.REST_WITHIN_S", 0.2)
    async with running_nodes(tmp_path, first=2) as nodes:
        nodes.start_rest(asyncio.Event().wait)
        await until(lambda: set(nodes.pids) == {"master", "worker-1", "worker-2"})


async def test_the_rest_is_not_started_any_more_once_all_are_to_leave(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, first=2) as nodes:
        nodes.start_rest(asyncio.Event().wait)
        await until(lambda: all("ready" in nodes.logs[n].read_text() for n in nodes.pids))
        assert await nodes.drain(timeout_s=10) == []
        assert not nodes.logs["worker-2"].exists()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_worker_that_cannot_be_started_later_is_an_error(
    tmp_path: Path, *, is_first: bool
) -> None:
    program = tmp_path / "node"
    program.symlink_to(FAKE_NODE[0])
    async with running_nodes(
        tmp_path / "folder", first=2, program=(str(program), *FAKE_NODE[1:])
    ) as nodes:
        program.unlink()
        if is_first:
            os.kill(nodes.pids["worker-1"], signal.SIGKILL)
        else:
            nodes.start_rest(partial(asyncio.sleep, 0))
        async with asyncio.timeout(30):
            error = await nodes.wait_failed()
        assert "cannot be started" in str(error)
        assert str(program) in str(error)


async def test_a_killed_worker_is_replaced_under_a_new_id(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as nodes:
        os.kill(nodes.pids["worker-1"], signal.SIGKILL)
        await until(lambda: set(nodes.pids) == {"master", "worker-1.1", "worker-2"})


async def test_a_node_that_dies_again_and_again_is_given_up_naming_its_log(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, mode="die", workers=1) as nodes, asyncio.timeout(30):
        error = await nodes.wait_failed()
        assert "worker-1.5 cannot be kept running" in str(error)
        assert f"{nodes.logs['worker-1']}) ends: " in str(error)
        assert str(error).endswith("the fake node was told to die")


async def test_a_node_that_leaves_by_itself_stays_away(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, mode="leave", workers=1) as nodes:
        await until(lambda: set(nodes.pids) == {"master"})
        failed = asyncio.create_task(nodes.wait_failed())
        done, _ = await asyncio.wait([failed], timeout=0.5)
        assert not done
        assert set(nodes.pids) == {"master"}
        failed.cancel()


async def test_nothing_is_started_again_while_draining(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as nodes:
        pid = nodes.pids["worker-1"]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_alive(pid))
        await nodes.drain(timeout_s=5)
        assert nodes.pids == {}
