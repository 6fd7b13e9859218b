"""Signals and the parent's death, in real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DEADLINE_S = 20

WAITS = """
import asyncio
from common.runtime.process import stop_on_signals

async def main():
    stop = stop_on_signals()
    print("ready", flush=True)
    await stop.wait()
    print("draining", flush=True)
    await asyncio.sleep({drain_s})

asyncio.run(main())
"""
FOLLOWS_PARENT = """
import time
from common.runtime.process import exit_with_parent

exit_with_parent()
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_the_first_signal_lets_the_process_finish() -> None:
    with running(WAITS.format(drain_s=0)) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def test_a_second_signal_leaves_at_once() -> None:
    with running(WAITS.format(drain_s=60)) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 130


def test_a_process_ends_when_its_parent_lets_go_of_its_input() -> None:
    with running(FOLLOWS_PARENT) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 1
