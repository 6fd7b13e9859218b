"""Marks every test by its folder and shares one real etcd and one real Redis per run.

Tests that break a server start their own (tests/support/servers.py); tests that use a shared one
keep apart by ``cluster_name``.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.servers import EtcdServer, RedisServer, start_etcd, start_redis, stopping

SKIPS = {
    "NO NGINX": 7, "NO SITE": 5, "NO TLS": 1, "NO SHARED": 11, "NOT LINUX": 3, "NO BASH": 1,
    "NO CC": 2,
}  # fmt: skip
"""How many tests may be skipped for each reason, where it is not CRAWLCTL_REQUIRE=all: what nginx
serves, what needs a data server with TLS or a clock of its own, and what reads the reference data
beside the project. Everything else runs everywhere."""

# A property holds however busy the machine is. The same examples each time: what is found by chance
# is found by scripts/fuzz and scripts/chaos, which say how to find it again.
hypothesis.settings.register_profile(
    "crawlctl",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("crawlctl")

_LONGEST_ID_BYTES = 40
_HERE = Path(__file__).parent
_MARKED_FOLDERS = ("unit", "repo", "integration", "system", "chaos")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--servers",
        default="",
        help="what tests of the frontier run on, of redis, valkey and cluster; by default on the "
        "first two, and those marked on_cluster on a Redis Cluster as well",
    )


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long binary arguments after their parameter.

    What is in them may depend on the moment they are made (gzip holds the time), and processes that
    run tests side by side must find the same tests.
    """
    return argname if isinstance(val, bytes) and len(val) > _LONGEST_ID_BYTES else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(_HERE):
            continue
        folder = item.path.relative_to(_HERE).parts[0]
        if folder in _MARKED_FOLDERS:
            item.add_marker(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tested; see SKIPS."""
    for reason, count in _skipped(terminalreporter).items():
        terminalreporter.write_line(f"NOT TESTED HERE: {count} tests, {reason}", yellow=True)


def _skipped(reporter: pytest.TerminalReporter) -> Counter[str]:
    reasons: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", []):
        assert isinstance(report.longrepr, tuple)
        reasons[report.longrepr[2].removeprefix("Skipped: ").split(":")[0]] += 1
    return reasons


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run in which something was skipped that may not be, or more of it than is known."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or exitstatus != pytest.ExitCode.OK:
        return
    required = os.environ.get("CRAWLCTL_REQUIRE") == "all"
    for reason, count in _skipped(reporter).items():
        allowed = 0 if required else SKIPS.get(reason, 0)
        if count > allowed:
            reporter.write_line(
                f"FAILED: {count} tests were skipped ({reason}); allowed here: {allowed}", red=True
            )
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = start_etcd(tmp_path_factory.mktemp("etcd"))
    with stopping(server):
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = start_redis(tmp_path_factory.mktemp("redis"))
    with stopping(server):
        yield server


@pytest.fixture
def cluster_name() -> str:
    """A name nobody else uses: keys of two tests never meet."""
    return f"test-{uuid.uuid4().hex[:12]}"
