"""The package itself: cheap to import, and pure where it says so."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_coordinator_loads_neither_etcd_nor_redis() -> None:
    code = (
        "import sys, coordinator, coordinator.plan;"
        "sys.exit(bool({'aetcd', 'grpc', 'redis', 'aiohttp'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
