"""A whole crawler in the background, as ``crawlctl up`` starts it; the yardstick of a real site."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cli import Ran, assert_none_left, crawlctl
from tests.support.docsite import HOSTS, Walked, serve, walk

Command = Callable[..., Ran]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Command]:
    """Run commands against private servers, a master and two workers; all gone afterwards."""
    data, home = tmp_path / "data", tmp_path / "home"
    home.mkdir()

    def command(*arguments: str, timeout_s: float = 120) -> Ran:
        return crawlctl(*arguments, home=home, timeout_s=timeout_s)

    started = command("up", "--data", str(data), "--workers", "2")
    assert 0 == started.code, started.err
    try:
        yield command
    finally:
        stopped = command("down")
        assert_none_left(data)
    assert 0 == stopped.code, stopped.err


@pytest.fixture(scope="session")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    """The closure of one host of the documentation site; all eight serve the same pages.

    Walked once a run, by one of the processes that run tests side by side.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    told = shared / "walked.json"
    with (shared / "walked.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            with serve(tmp_path_factory.mktemp("yardstick"), hosts=HOSTS[:1]) as site:
                told.write_text(json.dumps(walk(site, HOSTS[0]).status))
    return Walked(json.loads(told.read_text()))
