"""A folder has one user at a time, and only what crawlctl made in it is ever deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.embedded.folder import Folder, FolderState, holder_of
from common.model.errors import RefusedError, UsageError
from common.model.job import JobSpec
from tests.integration.embedded.processes import eventually, our_environment


def test_a_folder_is_created_with_its_parents(tmp_path: Path) -> None:
    with Folder.claim(tmp_path / "a" / "b") as folder:
        assert folder.path == tmp_path / "a" / "b"
        assert folder.etcd.is_dir()
        assert folder.own.stat().st_mode & 0o077 == 0


def test_a_relative_path_counts_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Folder.claim("out") as folder:
        assert folder.path == tmp_path / "out"


def test_a_folder_in_use_is_refused_naming_the_process(tmp_path: Path) -> None:
    with (
        Folder.claim(tmp_path),
        pytest.raises(RefusedError, match=f"in use by process {os.getpid()}"),
    ):
        Folder.claim(tmp_path)


def test_a_folder_given_up_can_be_claimed_again(tmp_path: Path) -> None:
    Folder.claim(tmp_path).close()
    assert holder_of(tmp_path) is None
    with Folder.claim(tmp_path):
        assert holder_of(tmp_path) == os.getpid()


def test_a_living_child_of_a_former_run_keeps_the_folder(tmp_path: Path) -> None:
    folder = Folder.claim(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=-1, pass_fds=[folder.children_fd]
    )
    folder.close()
    try:
        with pytest.raises(RefusedError, match=rf"process {child.pid}\); end them"):
            Folder.claim(tmp_path, wait_s=0.05)
        # The refusal gave the folder up again.
        assert holder_of(tmp_path) is None
        child.kill()
        Folder.claim(tmp_path, wait_s=5.0).close()
    finally:
        child.kill()
        child.communicate()


def test_a_child_that_did_not_inherit_the_lock_keeps_nothing(tmp_path: Path) -> None:
    folder = Folder.claim(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        folder.close()
        Folder.claim(tmp_path, wait_s=0.0).close()
        child.kill()


@pytest.mark.parametrize("name", ["results.jsonl", "summary.json", "warc"])
def test_results_of_somebody_else_are_never_taken_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name} exists and belongs to no crawl"):
        Folder.claim(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_folder_that_writes_no_results_may_lie_beside_some(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("mine")
    with Folder.claim(tmp_path, outputs=()) as folder:
        folder.wipe()
    assert (tmp_path / "results.jsonl").read_text() == "mine"


def test_a_foreign_dot_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".crawlctl").mkdir()
    (tmp_path / ".crawlctl" / "notes").write_text("mine")
    with pytest.raises(UsageError, match="was not made by crawlctl"):
        Folder.claim(tmp_path)


def test_an_empty_dot_folder_is_a_start_that_was_cut_short(tmp_path: Path) -> None:
    (tmp_path / ".crawlctl").mkdir()
    Folder.claim(tmp_path).close()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("")
    with pytest.raises(UsageError, match=f"{file} is a file where a folder is needed"):
        Folder.claim(file)
    with pytest.raises(UsageError, match="leads through a file"):
        Folder.claim(file / "deeper")


def test_a_folder_that_cannot_be_written_is_refused_with_the_reason() -> None:
    # Not even root may create folders here.
    with pytest.raises(UsageError, match=r"/proc/crawl cannot be used \(.+\); choose a folder"):
        Folder.claim("/proc/crawl")


def test_wiping_deletes_only_what_we_made(tmp_path: Path) -> None:
    with Folder.claim(tmp_path) as folder:
        folder.save_state(FolderState(kind="crawl", job="a"))
        (folder.etcd / "data").mkdir()
        (folder.etcd / "data" / "file").write_text("")
        for name in ("results.jsonl", "summary.json", "notes.txt", "results.jsonl.bak"):
            (tmp_path / name).write_text("")
        warc = tmp_path / "warc"
        warc.mkdir()
        for name in ("crawl-1.warc.gz", "crawl-2.warc.gz.open", "readme"):
            (warc / name).write_text("")

        folder.wipe()

        left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
        assert left == [
            ".crawlctl",
            ".crawlctl/children.lock",
            ".crawlctl/etcd",
            ".crawlctl/lock",
            ".crawlctl/logs",
            ".crawlctl/redis",
            "notes.txt",
            "results.jsonl.bak",
            "warc",
            "warc/readme",
        ]
        assert holder_of(tmp_path) == os.getpid()
        (warc / "readme").unlink()
        folder.wipe()
        assert not warc.exists()


def test_the_state_survives_the_process(tmp_path: Path) -> None:
    spec = JobSpec(max_depth=2, deny=("x",))
    state = FolderState(kind="crawl", job="a", spec=spec, seeds="5d", versions={"etcd": "3.4"})
    with Folder.claim(tmp_path) as folder:
        assert folder.load_state() is None
        folder.save_state(state)
    with Folder.claim(tmp_path) as folder:
        assert folder.load_state() == state


@pytest.mark.parametrize(
    "content",
    ["", "{", '{"kind": "crawl", "spec": {"warp": 9}}', '{"kind": "crawl", "spec": {"delay": -1}}'],
)
def test_a_state_that_cannot_be_read_is_an_error_with_a_remedy(
    tmp_path: Path, content: str
) -> None:
    with Folder.claim(tmp_path) as folder:
        (folder.own / "state.json").write_text(content)
        with pytest.raises(UsageError, match=r"cannot be read .* start over with --fresh"):
            folder.load_state()


def test_a_state_of_another_layout_is_refused(tmp_path: Path) -> None:
    with Folder.claim(tmp_path) as folder:
        folder.save_state(FolderState(kind="crawl", version=99))
        with pytest.raises(UsageError, match="written by another version"):
            folder.load_state()


def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "from common.embedded.folder import Folder\n"
        f"folder = Folder.claim({str(tmp_path)!r})\n"
        "print(1, flush=True)\n"
        "input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=-1, stdout=-1, env=our_environment()
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        assert holder_of(tmp_path) == holder.pid
        with pytest.raises(RefusedError, match=f"process {holder.pid}"):
            Folder.claim(tmp_path)
        holder.kill()
        assert eventually(lambda: holder_of(tmp_path) is None, within_s=30.0)
        Folder.claim(tmp_path).close()
    finally:
        holder.kill()
        holder.communicate()
