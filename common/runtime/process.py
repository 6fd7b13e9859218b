"""A process and its surroundings: signals, the process that started it, the machine's cores."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Final

INTERRUPTED: Final = 130
"""Exit code of a process told to leave."""
SHOW_CURSOR: Final = b"\x1b[?25h\n"


def stop_on_signals() -> asyncio.Event:
    """Return an event set by the first SIGTERM or SIGINT: finish what is in flight, then leave.

    A second signal leaves at once, without cleaning up: whatever this process holds is left to its
    leases, and all that matters was committed elsewhere. Must be called in the running loop.
    """
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            if sys.stderr.isatty():  # a progress line hides the cursor
                os.write(sys.stderr.fileno(), SHOW_CURSOR)
            os._exit(INTERRUPTED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


async def end_others(*, within_s: float) -> list[str]:
    """Cancel every other task of the loop; return the names of those that would not end in time.

    The loop waits for them without a limit when it is closed.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if not others:
        return []
    for task in others:
        task.cancel()
    _, left = await asyncio.wait(others, timeout=within_s)
    return sorted(task.get_name() for task in left)


def exit_with_parent() -> None:
    """End this process at once when its standard input ends.

    The parent holds the other end of the pipe and never writes: however it dies, the kernel closes
    it. Unlike a watch on the parent's pid this has no race and works on every POSIX system.
    """
    threading.Thread(target=_exit_at_end_of_input, name="exit-with-parent", daemon=True).start()


def _exit_at_end_of_input() -> None:
    number = sys.stdin.fileno()
    while os.read(number, 4096):
        pass
    os._exit(1)


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
