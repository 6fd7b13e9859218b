"""Several workers on one machine, as child processes (``start-worker --processes N``).

Each is a node of its own, with its own id, lease and locks. One that dies is started again, under a
new id, since the old one stays taken until its lease has run out; one that keeps dying ends them
all. They run in sessions of their own, so that Ctrl-C reaches only this process, which drains them;
and they watch their standard input, whose other end this process holds, so that none outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

import structlog

from common.embedded.launch import child_environment, module_command
from common.model.errors import RefusedError, UsageError
from common.runtime.endpoints import host_and_port
from common.runtime.process import stop_on_signals

log = structlog.get_logger()

RESTARTS = 5
"""Deaths within ``WINDOW_S`` seconds that are put up with."""
WINDOW_S = 60.0
_FIRST_PAUSE_S = 0.2
_HOPELESS = (UsageError.exit_code, RefusedError.exit_code)
"""Exit codes that the next start would only repeat."""


class WorkerProcesses:
    """Runs ``count`` workers until a signal comes or one of them cannot be kept running."""

    def __init__(
        self, name: str, count: int, *, http: str | None, arguments: Sequence[str]
    ) -> None:
        self._name = name
        self._count = count
        self._http = http
        self._arguments = list(arguments)
        self._running: set[Process] = set()
        # Unlike an embedded run, these workers use the very services this process was told of.
        settings = {key: text for key, text in os.environ.items() if key.startswith("CRAWLCTL_")}
        self._environment = child_environment(os.environ) | settings

    async def run(self) -> int:
        """Run them; return 0 after a drain, else the exit code of the one that failed."""
        stop = stop_on_signals()
        keepers = [asyncio.create_task(self._keep(number)) for number in range(1, self._count + 1)]
        stopped = asyncio.create_task(stop.wait())
        waiting: set[asyncio.Task[int]] = set(keepers)
        code = 0
        while waiting and not stop.is_set() and code == 0:
            done, _ = await asyncio.wait({*waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            ended = waiting & done
            waiting -= ended
            code = max((task.result() for task in ended), default=0)
        stopped.cancel()
        for keeper in waiting:
            keeper.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._drain()
        return code

    async def _keep(self, number: int) -> int:
        """Keep one worker running; return its exit code when that is no use or it has left."""
        deaths: list[float] = []
        generation = 0
        while True:
            suffix = f"{number}.{generation}" if generation else str(number)
            process = await self._spawn(f"{self._name}-{suffix}", number)
            code = await process.wait()
            self._running.discard(process)
            if code == 0:
                return 0
            now = time.monotonic()
            deaths = [at for at in deaths if now - at < WINDOW_S] + [now]
            log.warning("worker.died", id=f"{self._name}-{suffix}", code=code)
            if code in _HOPELESS or len(deaths) > RESTARTS:
                return code if code > 0 else 1
            await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (len(deaths) - 1))
            generation += 1

    async def _spawn(self, node_id: str, number: int) -> Process:
        own = ["--id", node_id, "--exit-with-parent"]
        if self._http is not None:
            host, port = host_and_port(self._http, where="--http", lowest_port=0)
            text = f"[{host}]" if ":" in host else host
            own += ["--http", f"{text}:{port + number - 1 if port else 0}"]
        process = await asyncio.create_subprocess_exec(
            *module_command("crawlctl"),
            "start-worker",
            *self._arguments,
            *own,
            stdin=PIPE,
            env=self._environment,
            start_new_session=True,
        )
        self._running.add(process)
        return process

    async def _drain(self) -> None:
        """Let all leave; how long that may take is theirs to bound."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(process.wait() for process in self._running))
