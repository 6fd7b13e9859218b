"""The servers of the test support behave as the fault tests assume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.servers import start_etcd, start_redis, stopping

_ROOT = Path(__file__).parents[3]

_PROGRAM = """
import sys, time
from pathlib import Path
from tests.support.servers import start_etcd
print(start_etcd(Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


def _is_alive(pid: int) -> bool:
    """Tell whether the process runs; one that ended and was not waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(
    sys.platform != "linux", reason="NOT LINUX: only Linux kills children with their parent"
)
def test_a_server_dies_with_a_killed_test_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    environ = os.environ | {"PYTHONPATH": str(_ROOT)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _is_alive(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while _is_alive(pid):
        assert time.monotonic() < deadline, "the etcd child outlived its parent"
        time.sleep(0.02)


def test_servers_keep_their_ports_and_data_over_a_restart(tmp_path: Path) -> None:
    etcd, redis = start_etcd(tmp_path / "etcd"), start_redis(tmp_path / "redis")
    with stopping(etcd), stopping(redis):
        before = (etcd.endpoint, redis.url, etcd.pid, redis.pid)
        for server in (etcd, redis):
            server.kill()
            server.restart()
        assert (etcd.endpoint, redis.url) == before[:2]
        assert etcd.pid != before[2]
        assert redis.pid != before[3]
