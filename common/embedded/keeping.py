"""The keeper process (``keeper.py``) as its parent sees it: started, listened to, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any, Final, Self

import structlog

from common.embedded import keeper
from common.embedded.folder import Folder
from common.embedded.servers import server_environment

_log = structlog.get_logger()

_END_TIMEOUT_S: Final = keeper.STOP_TIMEOUT_S + 3.0


class KeeperProcess:
    """A running keeper and what it has reported so far."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.server_pids: dict[str, int] = {}
        """Process id of each server, as last reported."""
        self.dead: str | None = None
        """The first server that died, if any; the keeper starts it again."""
        self.given_up: str | None = None
        """The server that died too often."""
        self._reader = asyncio.create_task(self._listen(), name="embedded-keeper")

    @classmethod
    async def spawn(cls, folder: Folder, plans: list[dict[str, Any]]) -> Self:
        """Start a keeper for these servers; they may not be up yet when this returns."""
        plan = {"inherit": [folder.children_fd], "servers": plans}
        with (folder.logs / "keeper.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(Path(keeper.__file__)),
                json.dumps(plan),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=server_environment(os.environ),
                pass_fds=(folder.children_fd,),
                start_new_session=True,
            )
        return cls(process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait_ended(self) -> None:
        """Wait until it is dead, and its servers with it."""
        await asyncio.shield(self._reader)
        await self._process.wait()
        if sys.platform != "linux" and self._process.returncode not in (0, 1):
            # Nobody else would end what a killed keeper leaves behind.
            for pid in self.server_pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def end(self) -> None:
        """Stop the servers, politely first, and the keeper with them. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self.wait_ended()
        except TimeoutError:
            _log.warning("embedded.keeper_hangs", pid=self.pid)
            self._process.kill()
            await self.wait_ended()

    async def _listen(self) -> None:
        if self._process.stdout is None:
            return
        async for line in self._process.stdout:
            self._note(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        name = event["server"]
        match event["event"]:
            case "started":
                is_restart = name in self.server_pids
                self.server_pids[name] = event["pid"]
                if is_restart:
                    _log.info("embedded.server_restarted", server=name, pid=event["pid"])
            case "died":
                self.dead = self.dead or name
                facts = {key: event[key] for key in ("code", "error") if key in event}
                _log.warning("embedded.server_died", server=name, **facts)
            case "gave_up":
                self.given_up = name
