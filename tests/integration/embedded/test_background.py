"""``up`` and ``down``: served in the background, found by others, gone when it is told to go."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from common.embedded.background import UpRequest, running_up, start_background, stop_background
from common.embedded.folder import Folder, FolderState, holder_of
from common.model.errors import CrawlerError, RefusedError
from common.runtime import upstate
from common.runtime.upstate import UpState
from tests.integration.embedded.processes import (
    FAKE_NODE,
    all_dead,
    eventually,
    is_alive,
    kill_all,
)


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with a state folder of its own; whatever is up at the end is killed."""
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    yield environ
    for file in (tmp_path / "state").rglob("up-*.json"):
        state = running_up(file.stem.removeprefix("up-"), environ)
        if state is not None:
            kill_all([state.pid, *family(state.pid)])


def request(data: Path, *, worker_arguments: tuple[str, ...] = ()) -> UpRequest:
    return UpRequest(
        data=str(data),
        workers=2,
        cluster="test",
        drain_timeout_s=5,
        program=FAKE_NODE,
        worker_arguments=worker_arguments,
    )


def family(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def test_up_serves_until_down(tmp_path: Path, environ: dict[str, str]) -> None:
    data = tmp_path / "data"
    state = start_background(request(data), environ)
    assert is_alive(state.pid)
    assert state.data == str(data)
    assert state.pid == holder_of(data)
    assert running_up("test", environ) == state
    assert running_up("another", environ) is None
    assert upstate.path_of("test", environ).stat().st_mode & 0o777 == 0o600
    pids = [state.pid, *family(state.pid)]
    assert len(pids) == 7
    # It is nobody's child here: the command that started it may end.
    assert state.pid not in family(os.getpid())

    with pytest.raises(RefusedError, match=f"'test' is up already in {data}"):
        start_background(request(tmp_path / "other"), environ)

    assert stop_background("test", environ, timeout_s=20) == state
    assert all_dead(pids, within_s=60)
    assert running_up("test", environ) is None
    assert stop_background("test", environ) is None
    assert "embedded.stopping" in (data / ".crawlctl" / "logs" / "up.log").read_text()


def test_nothing_survives_a_killed_up_and_its_file_is_not_believed(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    state = start_background(request(tmp_path / "data"), environ)
    pids = [state.pid, *family(state.pid)]
    os.kill(state.pid, signal.SIGKILL)
    assert all_dead(pids, within_s=30.0)
    assert running_up("test", environ) is None
    again = start_background(request(tmp_path / "data"), environ)
    assert again.pid != state.pid
    assert stop_background("test", environ, timeout_s=20) == again


def test_a_process_that_merely_reused_the_number_is_left_alone(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    state = UpState(pid=os.getpid(), data=str(tmp_path), etcd="127.0.0.1:1", redis="redis://x")
    upstate.save(state, "test", environ)
    assert running_up("test", environ) is None
    assert stop_background("test", environ) is None


def test_what_goes_wrong_in_the_background_is_said_in_front(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(CrawlerError, match="is a file where a folder is needed") as usage:
        start_background(request(file), environ)
    assert usage.value.exit_code == 2
    with Folder.claim(tmp_path / "data") as folder:
        folder.save_state(FolderState(kind="crawl", job="mine"))
        with pytest.raises(CrawlerError, match=f"in use by process {os.getpid()}") as refused:
            start_background(request(tmp_path / "data"), environ)
        assert refused.value.exit_code == 4
    with pytest.raises(CrawlerError, match=r"--data: .* holds the crawl mine"):
        start_background(request(tmp_path / "data"), environ)
    assert holder_of(tmp_path / "data") is None


def test_up_ends_with_an_error_in_its_log_when_a_node_cannot_be_kept(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    state = start_background(
        request(tmp_path / "data", worker_arguments=("--mode", "die")), environ
    )
    pids = [state.pid, *family(state.pid)]
    assert eventually(lambda: running_up("test", environ) is None, within_s=30)
    assert all_dead(pids, within_s=30.0)
    log = (tmp_path / "data" / ".crawlctl" / "logs" / "up.log").read_text()
    assert "embedded.failed" in log
    assert "cannot be kept running" in log
    assert not upstate.path_of("test", environ).exists()
