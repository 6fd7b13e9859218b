"""Keeps the two servers of an embedded run: a program of its own, standard library only.

Run as ``python -I -S keeper.py PLAN`` in a session of its own, so that a terminal's Ctrl-C reaches
neither it nor the servers: workers must be able to drain first. It starts the servers of the plan,
starts one that dies again (same port, same data) up to five times a minute, and stops all when its
standard input ends, which is when its parent is gone for whatever reason, or on SIGTERM.

Should the keeper itself be killed, Linux kills the servers with it. SIGKILL, not SIGTERM: it works
on a stopped or hanging server too, and costs no data, since both servers write their log before
they answer. Elsewhere the parent does it, or ``children.lock`` shows the next run what is left.

PLAN is JSON: ``{"inherit": [fd, ...], "servers": [{"name", "argv", "cwd", "log"}, ...]}``. Each
event is one JSON line on standard output: ``started``, ``died``, ``gave_up``. A parent that does
not read loses events, it never blocks the keeper.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

STOP_TIMEOUT_S: Final = 5.0
"""After SIGTERM; what still runs then is killed."""
RESTARTS: Final = 5
WINDOW_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1


class Server:
    """One server of the plan and the process that is it at present."""

    def __init__(self, plan: dict[str, Any], inherit: list[int]) -> None:
        self.name: str = plan["name"]
        self._argv: list[str] = plan["argv"]
        self._cwd: str = plan["cwd"]
        self._log: str = plan["log"]
        self._inherit = inherit
        self._deaths: list[float] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.start_at: float | None = time.monotonic()
        """When to start it next; None while it runs."""

    def start(self, before_exec: Callable[[], None] | None) -> None:
        """Start it; a program that cannot be started counts as one that died."""
        self.start_at = None
        try:
            with open(self._log, "ab") as log:  # noqa: PTH123  # not worth loading pathlib for
                self.process = subprocess.Popen(  # noqa: S603  # the parent's own argv
                    self._argv,
                    cwd=self._cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=self._inherit,
                    preexec_fn=before_exec,  # noqa: PLW1509  # this process has one thread
                )
        except OSError as error:
            self._note_death({"error": str(error)})
            return
        emit({"event": "started", "server": self.name, "pid": self.process.pid})

    def check(self) -> None:
        """See whether it died, and if so when to start it again."""
        if self.process is not None and self.process.poll() is not None:
            code = self.process.returncode
            self.process = None
            self._note_death({"code": code})

    def _note_death(self, facts: dict[str, Any]) -> None:
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < WINDOW_S] + [now]
        self.start_at = now + _FIRST_PAUSE_S * 2 ** (len(self._deaths) - 1)
        emit({"event": "died", "server": self.name, **facts})

    @property
    def is_hopeless(self) -> bool:
        """Tell whether it has died too often to be started again."""
        return len(self._deaths) > RESTARTS


def emit(event: dict[str, Any]) -> None:
    """Tell the parent, if it listens."""
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except (BlockingIOError, BrokenPipeError):
        # Not reading, or gone: the servers matter more, and end of input follows.
        return


def die_with_parent() -> Callable[[], None] | None:
    """Return what a child runs before its program so that it dies with this process."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        # The parent may have died before the line above was reached.
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def keep(servers: list[Server]) -> int:
    """Keep the servers until told to leave; return the exit code."""
    before_exec = die_with_parent()
    signals = _watch_signals()
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(signals, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            for server in servers:
                if server.start_at is not None and server.start_at <= now:
                    server.start(before_exec)
            pauses = [server.start_at - now for server in servers if server.start_at is not None]
            ready = selector.select(max(0.0, min(pauses)) if pauses else None)
            for key, _ in ready:
                data = os.read(key.fd, 4096)
                if not data or (key.fd == signals and signal.SIGTERM in data):
                    return 0
            for server in servers:
                server.check()
                if server.is_hopeless:
                    emit({"event": "gave_up", "server": server.name})
                    return 1


def _watch_signals() -> int:
    """Return a descriptor that gives the number of each signal received."""
    receive, send = os.pipe()
    os.set_blocking(send, False)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return receive


def stop(servers: list[Server]) -> None:
    """End all servers, politely first."""
    processes = [server.process for server in servers if server.process is not None]
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    """Run the plan given as the only argument."""
    plan = json.loads(sys.argv[1])
    os.set_blocking(1, False)
    servers = [Server(server, plan["inherit"]) for server in plan["servers"]]
    try:
        return keep(servers)
    finally:
        stop(servers)


if __name__ == "__main__":
    sys.exit(main())
