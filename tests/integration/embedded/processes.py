"""What the tests of embedded runs share: watching processes, and a parent process to kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

import common

HERE = Path(__file__).parent
FAKE_NODE = (sys.executable, str(HERE / "fake_node.py"))
_ROOT = Path(common.__file__).parents[1]


def our_environment() -> dict[str, str]:
    """Return an environment in which a script of a test imports what this process imported."""
    return os.environ | {"PYTHONPATH": str(_ROOT)}


def is_alive(pid: int) -> bool:
    """Tell whether the process runs; one that only waits for its exit code to be read does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(predicate: Callable[[], bool], *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


async def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Wait in a coroutine until the condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # other processes set no event
            await asyncio.sleep(0.01)


def command_line(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline())


def environment(pid: int) -> dict[str, str]:
    return psutil.Process(pid).environ()


def files_holding(folder: Path, text: str) -> list[Path]:
    return [
        path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()
    ]


def all_dead(pids: Iterable[int], *, within_s: float) -> bool:
    return eventually(lambda: not any(map(is_alive, pids)), within_s=within_s)


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Parent(NamedTuple):
    """A process that runs an embedded stack and two nodes, and what it started."""

    process: subprocess.Popen[str]
    pids: dict[str, int]

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def running_parent(folder: Path) -> Iterator[Parent]:
    """Run ``embedded_parent.py`` in a process group of its own; nothing of it survives this."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "embedded_parent.py"), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=our_environment(),
        process_group=0,
    )
    pids: dict[str, int] = {}
    try:
        assert process.stdout is not None
        pids.update(json.loads(process.stdout.readline()))
        yield Parent(process, pids)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        kill_all(pids.values())
