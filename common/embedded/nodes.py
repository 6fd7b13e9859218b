"""The master and the workers of an embedded run, as child processes.

Each runs in a session of its own, so that a terminal's Ctrl-C reaches only the process that decides
to drain; watches its standard input, whose other end this process holds, so that it does not
outlive it; and inherits ``children.lock``. All are started before the servers are up, load their
code meanwhile, and begin when they are told where the servers are: on their standard input, since
a command line, with its password, could be read by other users.

Loading their code is work for a whole core each. Where there are more of them than cores, some can
be held back until the first are at work, so that these are so much sooner (:meth:`Nodes.start`).

One that dies is started again under a new id, since the old id stays taken until its lease has run
out. One that leaves by itself (``nodes drain``) stays away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from common.embedded.folder import Folder
from common.embedded.launch import child_environment, module_command
from common.embedded.logtail import log_size, log_tail, shift_log
from common.embedded.stack import Endpoints
from common.model.errors import CrawlerError, UsageError

_log = structlog.get_logger()

RESTARTS: Final = 5
WINDOW_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.1
_KILL_TIMEOUT_S: Final = 5.0
REST_WITHIN_S: Final = 10.0
"""How long the rest waits for the first to be at work."""
_MASTER_LEAVE_S: Final = 2.0
"""What the master gets to leave in even when the workers have used up the time."""


class _Node:
    """One seat: the process that fills it at present, and its successors."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.process: Process | None = None
        self.generation = 0
        self.deaths: list[float] = []
        self.log_start = 0

    @property
    def id(self) -> str:
        """The node id of the present process."""
        return self.name if self.generation == 0 else f"{self.name}.{self.generation}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None


class Nodes:
    """Starts, watches and drains one master and some workers. Used once, in one loop."""

    def __init__(
        self,
        folder: Folder,
        *,
        cluster: str,
        workers: int,
        master_arguments: Sequence[str] = (),
        worker_arguments: Sequence[str] = (),
        program: Sequence[str] | None = None,
    ) -> None:
        program = module_command("crawlctl") if program is None else program
        names = ["master", *(f"worker-{number}" for number in range(1, workers + 1))]
        self._nodes = []
        for name in names:
            is_master = name == "master"
            command = (
                *program,
                "start-master" if is_master else "start-worker",
                "--exit-with-parent",
                "--settings-from-parent",
                *(master_arguments if is_master else worker_arguments),
            )
            self._nodes.append(_Node(name, command, folder.logs / f"{name}.log"))
        self._children_fd = folder.children_fd
        self._environment = child_environment(os.environ, cluster=cluster)
        self._settings = b""
        self._failed: asyncio.Future[CrawlerError] = asyncio.get_running_loop().create_future()
        self._keepers: dict[str, asyncio.Task[None]] = {}

    async def start(self, first: int | None = None) -> None:
        """Start all, or the master and workers that are the ``first``; they wait for `begin`."""
        for node in self._nodes[:first]:
            await self._start(node)

    def start_rest(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Start those that are not started yet in the background, once ``wait`` returns."""
        self._keepers["rest"] = asyncio.create_task(self._start_rest(wait), name="rest")

    async def _start_rest(self, wait: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(REST_WITHIN_S):
                await wait()
        except (CrawlerError, TimeoutError) as error:  # etcd is away just now, or a node stuck
            _log.info("embedded.not_waiting", reason=str(error))
        try:
            for node in self._nodes:
                if node.process is None:
                    await self._start(node)
        except OSError as error:
            self._fail(CrawlerError(f"a worker cannot be started: {error}"))

    async def _start(self, node: _Node) -> None:
        await self._spawn(node)
        self._keepers[node.name] = asyncio.create_task(self._keep(node), name=node.name)

    def begin(self, endpoints: Endpoints) -> None:
        """Tell all where the servers are; they join when they are ready."""
        given = {"CRAWLCTL_ETCD": endpoints.etcd, "CRAWLCTL_REDIS": endpoints.redis}
        self._settings = json.dumps(given).encode() + b"\n"
        for node in self._nodes:
            if node.is_running:
                self._tell(node)

    def _tell(self, node: _Node) -> None:
        assert node.process is not None
        assert node.process.stdin is not None
        node.process.stdin.write(self._settings)

    async def wait_failed(self) -> CrawlerError:
        """Wait until one dies for good and return why."""
        return await asyncio.shield(self._failed)

    async def drain(self, *, timeout_s: float) -> list[str]:
        """Let all leave: workers first, then the master; kill what has not left in time.

        Returns:
            The ids of those that were killed.
        """
        await self._stop_keeping()
        deadline = time.monotonic() + timeout_s
        for group, least_s in ((self._nodes[1:], 0.0), (self._nodes[:1], _MASTER_LEAVE_S)):
            running = [node.process for node in group if node.process and node.is_running]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            await _wait_all(running, max(least_s, deadline - time.monotonic()))
        killed = [node.id for node in self._nodes if node.is_running]
        await self.kill()
        return killed

    async def kill(self) -> None:
        """End all at once; afterwards none is left. Idempotent."""
        await self._stop_keeping()
        running = [node.process for node in self._nodes if node.process and node.is_running]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await _wait_all(running, _KILL_TIMEOUT_S)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running nodes, by node id."""
        return {
            node.id: node.process.pid for node in self._nodes if node.process and node.is_running
        }

    @property
    def logs(self) -> dict[str, Path]:
        """Log file of each seat."""
        return {node.name: node.log for node in self._nodes}

    async def _spawn(self, node: _Node) -> None:
        shift_log(node.log)
        node.log_start = log_size(node.log)
        with node.log.open("ab") as log:
            node.process = await asyncio.create_subprocess_exec(
                *node.command,
                "--id",
                node.id,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=log,
                env=self._environment,
                pass_fds=(self._children_fd,),
                start_new_session=True,
            )
        if self._settings:
            self._tell(node)

    async def _keep(self, node: _Node) -> None:
        """Start the node again whenever it dies, until that is no use or it left by itself."""
        while node.process is not None:
            code = await node.process.wait()
            if code == 0:
                _log.info("embedded.node_left", node=node.id)
                return
            now = time.monotonic()
            node.deaths = [at for at in node.deaths if now - at < WINDOW_S] + [now]
            _log.warning("embedded.node_died", node=node.id, code=code, log=str(node.log))
            if code == UsageError.exit_code or len(node.deaths) > RESTARTS:
                tail = log_tail(node.log, start=node.log_start)
                said = f"{node.id} cannot be kept running; its log ({node.log}) ends: {tail}"
                self._fail(CrawlerError(said))
                return
            await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (len(node.deaths) - 1))
            node.generation += 1
            try:
                await self._spawn(node)
            except OSError as error:
                self._fail(CrawlerError(f"{node.id} cannot be started again: {error}"))
                return

    def _fail(self, error: CrawlerError) -> None:
        if not self._failed.done():
            self._failed.set_result(error)

    async def _stop_keeping(self) -> None:
        """Start nothing again from here on."""
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


async def _wait_all(processes: Sequence[Process], timeout_s: float) -> None:
    """Wait until all have ended or the time is over."""
    if processes:
        waits = [asyncio.create_task(process.wait()) for process in processes]
        _, late = await asyncio.wait(waits, timeout=max(0.0, timeout_s))
        for wait in late:
            wait.cancel()
        await asyncio.gather(*late, return_exceptions=True)
