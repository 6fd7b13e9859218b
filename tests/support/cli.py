"""Running crawlctl as a user does: a process, its exit code, what it printed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

_Seen = TypeVar("_Seen")


class Ran(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(home: Path | None = None, **extra: str) -> dict[str, str]:
    """Return an environment in which no setting of the machine's user reaches the command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CRAWLCTL_")}
    if home is not None:
        kept |= {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    return kept | extra


def crawlctl(
    *arguments: str,
    home: Path | None = None,
    timeout_s: float = 120,
    cwd: Path | None = None,
    **extra: str,
) -> Ran:
    """Run a command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "crawlctl", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(home, **extra),
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class Running:
    """A command that still runs, in a process group of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def interrupt(self) -> None:
        """Press Ctrl-C: SIGINT to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill_group(self) -> None:
        """Kill -9 of the whole group."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, timeout_s: float = 60) -> Ran:
        """Wait for it."""
        out, err = self.process.communicate(timeout=timeout_s)
        return Ran(self.process.returncode, out, err)


@contextlib.contextmanager
def running(*arguments: str, home: Path | None = None, **extra: str) -> Iterator[Running]:
    """Start a command; whatever is left of it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "crawlctl", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment(home, **extra),
        start_new_session=True,
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(ValueError):  # its output was read already
            process.communicate(timeout=30)


def eventually(
    look: Callable[[], _Seen], *, within_s: float, every_s: float = 0.05, what: str = ""
) -> _Seen:
    """Return what ``look`` sees once it is true; fail when that takes too long."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {within_s} s: {what or look}"
        time.sleep(every_s)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return every process that has a file of a crawl's folder open or in its command line."""
    inside = str(folder.resolve())
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            opened = any(file.path.startswith(inside) for file in process.open_files())
            if opened or any(inside in part for part in process.cmdline()):
                found.append(process)
    return found


def assert_none_left(folder: Path, *, within_s: float = 10) -> None:
    """Assert that no process of a crawl's folder is left."""
    eventually(
        lambda: not processes_of(folder), within_s=within_s, what=f"processes left on {folder}"
    )


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def at_least_lines(path: Path, count: int) -> Callable[[], bool]:
    """Return a look that is true once a file has so many lines."""

    def look() -> bool:
        return path.exists() and path.read_bytes().count(b"\n") >= count

    return look


def job_options(options: dict[str, object]) -> Sequence[str]:
    """Return options as arguments: ``{"delay": 0.1}`` -> ``--delay 0.1``; True = a flag."""
    found: list[str] = []
    for name, value in options.items():
        found.append("--" + name.replace("_", "-"))
        if value is not True:
            found.append(str(value))
    return found
