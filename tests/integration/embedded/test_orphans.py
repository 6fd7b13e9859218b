"""Nothing an embedded run started outlives it, whichever of its processes is killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from common.embedded.folder import Folder
from tests.integration.embedded.processes import all_dead, is_alive, running_parent


def test_a_killed_parent_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_parent(tmp_path) as parent:
        assert set(parent.pids) == {"keeper", "etcd", "redis", "master", "worker-1"}
        assert all(map(is_alive, parent.pids.values()))
        parent.process.kill()
        started = time.monotonic()
        # Claiming waits for the children of the former run by itself.
        Folder.claim(tmp_path).close()
        assert all_dead(parent.pids.values(), within_s=0.0)
        assert time.monotonic() - started < 20


def test_a_killed_parent_and_keeper_leave_nothing_behind(tmp_path: Path) -> None:
    with running_parent(tmp_path) as parent:
        # The parent may not mend what the keeper's death broke.
        parent.process.send_signal(signal.SIGSTOP)
        os.kill(parent.pids["keeper"], signal.SIGKILL)
        assert all_dead([parent.pids[name] for name in ("etcd", "redis")], within_s=30.0)
        parent.process.kill()
        assert all_dead(parent.pids.values(), within_s=30.0)
        Folder.claim(tmp_path).close()


def test_a_stopped_server_does_not_survive_either(tmp_path: Path) -> None:
    with running_parent(tmp_path) as parent:
        os.kill(parent.pids["redis"], signal.SIGSTOP)
        os.kill(parent.pids["keeper"], signal.SIGKILL)
        parent.process.kill()
        assert all_dead(parent.pids.values(), within_s=30.0)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_drains_the_nodes_before_the_servers_go(tmp_path: Path, times: int) -> None:
    with running_parent(tmp_path) as parent:
        for _ in range(times):
            # A terminal sends it to the whole foreground process group.
            os.killpg(parent.process.pid, signal.SIGINT)
        assert parent.read_line() == "servers live"
        assert parent.read_line() == "drained"
        assert parent.process.wait(10) == 0
        assert all_dead(parent.pids.values(), within_s=0.0)
