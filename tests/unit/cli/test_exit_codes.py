"""Errors are one clear sentence and the exit code of the contract."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from tests.unit.cli.calling import Caller, checkout_environment, in_new_process


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["crwal"], ["no command 'crwal'", "did you mean crawl?", "crawlctl --help"]),
        (["--foo", "jobs"], ["No such option", "--foo"]),
        (["submit", "--max-dept", "1", "http://h.example/"], ["--max-dept", "--max-depth"]),
        (["crawl", "http://h.example/"], ["Missing option", "-o", "crawlctl crawl --help"]),
        (["job"], ["Missing command", "crawlctl job --help"]),
        (["submit"], ["no seed", "--seeds"]),
        (["submit", "http://h.example/", "--delay", "soon"], ["--delay", "'soon'"]),
        (["submit", "http://h.example/", "--delay", "-1"], ["--delay", "from 0 to 86400"]),
        (["submit", "http://h.example/", "--delay", "nan"], ["--delay", "'nan'", "number"]),
        (["submit", "http://h.example/", "--per-ip", "0"], ["--per-ip", "from 1 to 1024"]),
        (["submit", "http://h.example/", "--per-domain", "2k"], ["--per-domain", "'2k'"]),
        (
            ["submit", "http://h.example/", "--per-ip", "2", "--proxy", "http://p:1"],
            ["--per-ip", "--proxy", "--per-domain"],
        ),
        (["submit", "http://h.example/", "--max-pages", "1.5"], ["--max-pages", "whole number"]),
        (["submit", "http://h.example/", "--max-pages", "9" * 400], ["--max-pages", "out of"]),
        (["up", "--data", "d", "--workers", "0"], ["--workers", "from 1 to 256"]),
        (["submit", "http://h.example/", "--timeout", "inf"], ["--timeout", "'inf'", "number"]),
        (["submit", "http://h.example/", "--max-body", "9" * 400], ["--max-body", "out of range"]),
        (["submit", "http://h.example/", "--max-body", "9" * 9999], ["--max-body", "16M"]),
        (["submit", "http://h.example/", "--follow", ","], ["--follow", "','", "iframe"]),
        (["crawl", "http://h.example/", "-o", ""], ["-o", "empty"]),
        (["up", "--data", ""], ["--data", "empty"]),
        (["export", "x", "-o", ""], ["-o", "empty"]),
        (["start-worker", "--warc-dir", ""], ["--warc-dir", "empty"]),
        (["start-worker", "--lease-ttl", "nan"], ["--lease-ttl", "'nan'", "number"]),
        (["job", "wait", "x", "--timeout", "nan"], ["--timeout", "'nan'", "number"]),
        (["job", "wait", "x", "--timeout", "-1"], ["--timeout", "from 0"]),
        (["job", "host", "x", "h", "--delay", "nan"], ["--delay", "'nan'", "number"]),
        (["submit", "http://h.example/", "--shards", "0"], ["--shards", "from 1 to 4096"]),
        (["submit", "http://h.example/", "--scope", "all"], ["--scope", "host"]),
        (["submit", "http://h.example/", "--deny", "("], ["--deny", "regular expression"]),
        (["submit", "http://h.example/", "--follow", "b"], ["--follow", "'b'", "iframe"]),
        (["submit", "http://h.example/", "--max-body", "x"], ["--max-body", "16M"]),
        (["submit", "http://h.example/", "--header", "x"], ["--header", "NAME: VALUE"]),
        (
            ["submit", "http://h.example/", "--header", "A: b\nC: d"],
            ["--header A", "a line of text"],
        ),
        (["submit", "http://h.example/", "--cookie", "x"], ["--cookie", "NAME=VALUE"]),
        (["submit", "http://h.example/", "--header", "X: env:"], ["--header X", "env:NAME"]),
        (["submit", "http://h.example/", "--cookie", "x=@"], ["--cookie x", "@FILE"]),
        (["submit", "http://h.example/", "--proxy", "http://h:99999"], ["--proxy", "HOST:PORT"]),
        (["crawl", "http://h.example/", "-o", "o", "--proxy", "env:UNSET"], ["--proxy", "'UNSET'"]),
        (
            ["crawl", "http://h.example/", "-o", "o", "--header", "X: @/no/such"],
            ["--header X", "/no/such"],
        ),
        (["submit", "http://h.example/", "--plugin", "a:B"], ["--plugin", "'a:B'", "NAME"]),
        (["submit", "http://h.example/", "--plugin", "a/b"], ["--plugin", "'a/b'", "valid name"]),
        (["start-worker", "--plugin", "name"], ["--plugin", "'name'", "MODULE:OBJECT"]),
        (["up", "--data", "d", "--plugin", "no_such:X"], ["--plugin X", "'no_such'", "FILE.py"]),
        (["start-worker", "--plugin", "json:loads"], ["--plugin loads", "crawlctl.plugins.Plugin"]),
        (
            ["crawl", "http://h.example/", "-o", "o", "--plugin", "/no/such.py:X"],
            ["--plugin X", "no file /no/such.py"],
        ),
        (
            ["crawl", "http://h.example/", "-o", "o", "--plugin", "absent"],
            ["--plugin", "no plugin is named 'absent'", "MODULE:OBJECT"],
        ),
        (["submit", "http://h.example/", "--accept", "html"], ["--accept", "text/html"]),
        (["submit", "http://h.example/", "--proxy", "socks4://h"], ["--proxy", "http://"]),
        (["submit", "http://h.example/", "--user-agent", "a\x07"], ["--user-agent"]),
        (["submit", "http://h.example/", "--id", "a/b"], ["--id", "'a/b'", "valid name"]),
        (["submit", "ftp://h.example/"], ["'ftp'", "http or https"]),
        (["submit", "http://127.0.0.1/"], ["127.0.0.1", "--allow-private"]),
        (["submit", "localhost:8000"], ["localhost", "--allow-private"]),
        (["submit", "--seeds", "/no/such/file"], ["--seeds", "/no/such/file"]),
        (["jobs", "--etcd", "nowhere"], ["--etcd", "HOST:PORT"]),
        (["--log-level", "loud", "jobs"], ["--log-level", "warning"]),
        (["job", "wait", "x", "--timeout", "long"], ["--timeout", "'long'"]),
        (["start-worker", "--lease-ttl", "1"], ["--lease-ttl", "2"]),
        (["start-worker", "--http", "8000"], ["--http", "HOST:PORT"]),
        (["start-master", "--id", "a b"], ["--id", "'a b'"]),
        (["schema", "page"], ["page", "job"]),
        (["submit", "http://h.example/\udcff"], ["URL:", "UTF-8"]),
        (["submit", "http://h.example/", "--user-agent", "\udcff"], ["--user-agent:", "UTF-8"]),
        (["submit", "http://h.example/", "--allow", "a", "--allow=\udcff"], ["--allow:", "UTF-8"]),
        (["submit", "http://h.example/", "--traps", "--sitemaps"], ["--traps NAMES --sitemaps"]),
        (["submit", "h.example", "--user-agent", "--sitemaps"], ["--user-agent TEXT --sitemaps"]),
        (
            ["submit", "h.example", "--allow", "--etcd=a:1"],
            ["--allow:", "--etcd is another option"],
        ),
        (["crawl", "h.example", "-o", "--fresh"], ["-o DIR --fresh"]),
        (["crawl", "h.example", "-o", "o", "--seeds", "--no-sitemaps"], ["--seeds FILE|-"]),
        (["--cluster", "--etcd", "jobs"], ["--cluster NAME --etcd"]),
        (["job", "--cluster", "-q", "show", "x"], ["--cluster NAME -q"]),
        (["job", "wait", "x", "--timeout", "-q"], ["--timeout SECONDS -q"]),
        (["submit", "h.example", "--traps", "none,path"], ["--traps", "none, or path"]),
        (
            ["submit", "h.example", "--sitemaps", "--max-depth", "0"],
            ["--sitemaps", "give --max-depth 1"],
        ),
        (["submit", "h.example", "--seen-rate", "0.001"], ["--seen-rate", "add --seen bloom"]),
        (
            ["submit", "h.example", "--timeout", "5", "--connect-timeout", "6"],
            ["--connect-timeout: 6", "a longer --timeout"],
        ),
        (["export", "j", "--format", "parquet"], ["-o", "give a file"]),
        (["export", "j", "--format", "csv", "-o", "x.PARQUET"], ["-o", "parquet", "--format"]),
        (["export", "j", "--format", "parquet", "--consume", "g"], ["-o", "give a folder"]),
        (["job", "show", "\udcff"], ["ID:", "UTF-8"]),
        (["--cluster", "\udcff", "jobs"], ["--cluster:", "UTF-8"]),
        (["\udcff"], ["no command"]),
    ],
    ids=lambda value: ascii(" ".join(value))[:80] if isinstance(value, list) else None,
)
def test_wrong_use_exits_2_and_names_the_field(
    call: Caller, arguments: list[str], words: list[str]
) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("crawlctl: ")
    for word in words:
        assert word in line


def test_a_value_may_look_like_an_option_where_it_is_meant(call: Caller) -> None:
    """After an equals sign or two dashes it is what it says."""
    unreachable = ("--etcd", "127.0.0.1:1")
    assert 3 == call("job", "show", *unreachable, "--", "--config").code
    assert 3 == call("submit", "http://h.example/", "--user-agent=-q", *unreachable).code


@pytest.mark.parametrize(
    "option",
    [
        "--shard-by", "--store",
        "--follow-export",
    ],
)  # fmt: skip
def test_what_this_version_cannot_do_is_not_offered(call: Caller, option: str) -> None:
    answer = call("submit", "http://h.example/", option, "1")
    assert answer.code == 2
    assert option in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs"],
        ["submit", "http://h.example/"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_an_unreachable_service_exits_3_within_seconds_and_is_named(
    call: Caller, arguments: list[str]
) -> None:
    etcd = f"127.0.0.1:{closed_port()}"
    started = time.monotonic()
    answer = call(*arguments, "--etcd", etcd, "--redis", f"redis://127.0.0.1:{closed_port()}/0")
    assert answer.code == 3
    assert etcd in (answer.out if arguments == ["doctor"] else answer.err)
    assert "Traceback" not in answer.err
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    "arguments",
    [
        ["--etcd", "nowhere", "job", "show", "x"],
        ["job", "--etcd", "nowhere", "show", "x"],
        ["job", "show", "x", "--etcd", "nowhere"],
        ["--etcd", "elsewhere", "job", "show", "--etcd", "nowhere", "x"],
    ],
    ids=" ".join,
)
def test_global_options_are_taken_before_and_after_the_command(
    call: Caller, arguments: list[str]
) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert "--etcd: 'nowhere'" in answer.err


def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "crawlctl", "schema", "job"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=checkout_environment(),
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process:
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("closed", "arguments", "words"),
    [(1, ["jobs"], "standard output is closed"), (0, ["submit", "--seeds", "-"], "--seeds")],
)
def test_a_closed_standard_file_is_wrong_use(closed: int, arguments: list[str], words: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}>&-', "sh", sys.executable, "-m", "crawlctl",
         *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=checkout_environment(),
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert words in line


_INTERRUPTED_BY_THE_FIRST_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv[0] = "crawlctl"
import crawlctl.__main__
"""
_INTERRUPTED_AFTER_THE_END = """
import os, signal, sys
sys.argv[0] = "crawlctl"
from crawlctl.__main__ import main
assert main(["schema", "job"]) == 0
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("program", [_INTERRUPTED_BY_THE_FIRST_IMPORT, _INTERRUPTED_AFTER_THE_END])
def test_an_interrupt_before_or_after_the_command_is_quiet(program: str) -> None:
    answer = in_new_process("-c", program)
    assert answer.code == 130
    assert answer.err == ""


def test_messages_do_not_carry_control_characters(call: Caller) -> None:
    answer = call("submit", "ftp://h/\x1b[2J")
    assert "\x1b" not in answer.err
    answer = call("job", "show", "\x1b]0;x\x07", "--etcd", "\x1b[2J")
    assert "\x1b" not in answer.err
