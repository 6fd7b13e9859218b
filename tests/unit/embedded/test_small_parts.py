"""The parts of an embedded run that need no process: logs, environments, names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.embedded.launch import child_environment, module_command
from common.embedded.logtail import log_size, log_tail, shift_log
from common.embedded.servers import member_name, server_environment


def test_the_tail_of_a_log_is_its_last_lines_in_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\n\nthree\nfour\n")
    assert log_tail(log) == "two | three | four"
    assert log_tail(log, lines=1) == "four"


def test_the_tail_leaves_out_what_an_earlier_process_wrote(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    start = log_size(log)
    assert log_tail(log, start=start) == "(nothing)"
    with log.open("a") as file:
        file.write("after\n")
    assert log_tail(log, start=start) == "after"


def test_a_missing_log_is_an_empty_one(tmp_path: Path) -> None:
    assert log_size(tmp_path / "log") == 0
    assert log_tail(tmp_path / "log") == "(nothing)"


def test_the_tail_of_a_huge_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff" * 100_000 + b"\nlast\n")
    assert log_tail(log, lines=1) == "last"


def test_only_a_large_log_is_moved_out_of_the_way(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("small")
    shift_log(log)
    assert log.exists()
    with log.open("r+b") as file:
        file.truncate(20_000_000)
    shift_log(log)
    assert not log.exists()
    assert (tmp_path / "log.1").exists()


def test_a_child_gets_its_own_settings_and_none_of_the_users_services() -> None:
    environ = {
        "CRAWLCTL_ETCD": "other:2379",
        "CRAWLCTL_ETCD_USER": "me:secret",
        "CRAWLCTL_CONFIG": "x.toml",
        "CRAWLCTL_LOG_LEVEL": "debug",
        "HOME": "/home/me",
    }
    child = child_environment(environ, etcd="127.0.0.1:1")
    child.pop("PYTHONPATH", None)
    assert child == {
        "CRAWLCTL_ETCD": "127.0.0.1:1",
        "CRAWLCTL_LOG_LEVEL": "debug",
        "HOME": "/home/me",
    }


def test_a_child_never_imports_from_the_current_folder() -> None:
    assert module_command("crawlctl")[0] == sys.executable
    assert module_command("crawlctl")[1] in ("-P", "-I")


def test_flags_of_the_users_own_etcd_are_withheld() -> None:
    assert "ETCD_NAME" not in server_environment({"ETCD_NAME": "a", "HOME": "/"})
    assert server_environment({"HOME": "/"})["HOME"] == "/"


@pytest.mark.parametrize("secret", ["a", "b" * 40])
def test_the_public_name_of_a_server_does_not_hold_its_secret(secret: str) -> None:
    assert member_name(secret) == member_name(secret)
    assert secret not in member_name(secret).removeprefix("crawlctl-") or len(secret) == 1
    assert member_name(secret) != member_name(secret + "x")
