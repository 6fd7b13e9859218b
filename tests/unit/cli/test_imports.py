"""Nothing is imported from the folder that a command is called in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.calling import checkout_environment

ROOT = Path(__file__).resolve().parents[3]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = checkout_environment()
    environ.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, "-m", "crawlctl", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["signal", "click", "redis", "common", "worker", "msgspec"])
def test_a_module_in_the_current_folder_is_not_run(tmp_path: Path, name: str) -> None:
    """Symptom: a user's redis.py broke the program, or was run by it."""
    (tmp_path / f"{name}.py").write_text("raise SystemExit('run by mistake')")
    done = run(tmp_path, "start-worker", "--redis", "redis://127.0.0.1:1", "--etcd", "nowhere")
    assert (2, "") == (done.returncode, done.stdout), done.stderr
    assert done.stderr.startswith("crawlctl: --etcd: 'nowhere'"), done.stderr


def test_a_plugin_is_found_on_the_path_or_by_its_file_alone(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("raise SystemExit('run by mistake')")
    options = ("--redis", "redis://127.0.0.1:1", "--etcd", "127.0.0.1:1", "--plugin")
    done = run(tmp_path, "start-worker", *options, "shop:Prices")
    assert (2, True) == (done.returncode, "there is no module 'shop'" in done.stderr), done.stderr
    done = run(tmp_path, "start-worker", *options, "shop.py:Prices")
    assert (2, True) == (done.returncode, "SystemExit: run by mistake" in done.stderr), done.stderr


def test_a_checkout_runs_in_its_own_folder() -> None:
    done = run(ROOT, "--version")
    assert (0, True) == (done.returncode, done.stdout.startswith("crawlctl ")), done.stderr
