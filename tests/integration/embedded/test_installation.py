"""What runs from the private environment of a checkout keeps the scripts from replacing it."""

from __future__ import annotations

import configparser
import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import crawlctl
from tests.support.cli import Ran, environment, eventually

CHECKOUT = Path(__file__).resolve().parents[3]
LOCK = "in-use.lock"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A changed checkout, whose environment runs what this process runs."""
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    for name in ("crawl", "_start.sh", "_env.py"):
        shutil.copy(CHECKOUT / "scripts" / name, checkout / "scripts" / name)
    # All that is read of it before something is installed.
    setup = configparser.ConfigParser()
    setup["options"] = {"install_requires": "nothing"}
    with (checkout / "setup.cfg").open("w") as file:
        setup.write(file)
    made = checkout / ".venv"
    venv.create(made, symlinks=True)
    for name in (LOCK, "install.lock"):
        (made / name).touch()
    (site,) = made.glob("lib/python*/site-packages")
    imported = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join([str(Path(crawlctl.__file__).parents[1]), *imported]))
    return checkout


def run(checkout: Path, *command: str) -> Ran:
    done = subprocess.run(
        command, env=surroundings(checkout), capture_output=True, text=True, timeout=120,
        cwd=checkout.parent, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


def surroundings(checkout: Path) -> dict[str, str]:
    return environment(checkout.parent, PYTHON=sys.executable)


def program(checkout: Path) -> tuple[str, ...]:
    return (str(checkout / ".venv" / "bin" / "python"), "-I", "-m", "crawlctl")


def script(checkout: Path) -> Ran:
    """Crawl by the script, which has to install first."""
    return run(checkout, str(checkout / "scripts" / "crawl"), "http://127.0.0.1:1/", "-o", "out")


@contextmanager
def installing(checkout: Path) -> Iterator[None]:
    """Hold the lock as an installation does; fails while something runs from the environment."""
    number = os.open(checkout / ".venv" / LOCK, os.O_RDWR)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)


def may_install(checkout: Path) -> bool:
    try:
        with installing(checkout):
            return True
    except BlockingIOError:
        return False


def test_nothing_is_installed_while_an_up_runs_from_the_environment(checkout: Path) -> None:
    """An ``up`` of the activated environment lost its code to the next ``scripts/crawl``."""
    assert may_install(checkout)
    up = run(checkout, *program(checkout), "up", "--data", "data", "--workers", "1")
    try:
        assert 0 == up.code, up.err
        refused = script(checkout)
        assert 4 == refused.code, refused.err
        assert "something started before still runs from its environment" in refused.err
        assert "crawlctl down" in refused.err
    finally:
        down = run(checkout, *program(checkout), "down")
    assert 0 == down.code, down.err
    eventually(lambda: may_install(checkout), within_s=30, what="an environment that is free")


def test_nothing_is_installed_while_a_command_runs_from_the_environment(checkout: Path) -> None:
    with subprocess.Popen(
        [*program(checkout), "demo-site", "--port", "0"], stdout=subprocess.PIPE,
        env=surroundings(checkout), text=True,
    ) as site:  # fmt: skip
        try:
            assert site.stdout is not None
            assert site.stdout.readline().startswith("http://")
            assert 4 == script(checkout).code
        finally:
            site.kill()
    eventually(lambda: may_install(checkout), within_s=30, what="an environment that is free")


def test_a_command_is_refused_while_its_environment_is_installed(checkout: Path) -> None:
    with installing(checkout):
        refused = run(checkout, *program(checkout), "schema", "job")
    assert (4, "") == (refused.code, refused.out)
    assert "is being installed anew" in refused.err
    assert 0 == run(checkout, *program(checkout), "schema", "job").code
