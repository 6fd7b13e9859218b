"""The private etcd and data server of an embedded run, from start to stop.

Both run under a keeper process, which does not outlive this process, nor they it. A server that
dies is started again by the keeper, a keeper that dies by this class: clients see an outage of a
fraction of a second on the same endpoints. What cannot be mended ends in :meth:`Stack.wait_failed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from common.embedded import servers
from common.embedded.binaries import Program, find_etcd, find_redis
from common.embedded.folder import Folder, write_atomically
from common.embedded.keeping import KeeperProcess
from common.embedded.logtail import log_size, log_tail
from common.embedded.probes import Answer, probe_etcd, probe_redis
from common.embedded.servers import HOST, Durability
from common.model.errors import ServiceUnavailable

_log = structlog.get_logger()

_START_TRIES: Final = 5
_SILENT_S: Final = 30.0
"""How long a server may say nothing. One that is reading its data gets the time it needs."""
_POLL_S: Final = 0.015
_KEEPER_RESTARTS: Final = 5
_WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the servers of an embedded run are, as settings name them."""

    etcd: str
    """``127.0.0.1:PORT``."""
    redis: str = field(repr=False)
    """``redis://:PASSWORD@127.0.0.1:PORT/0``."""
    etcd_program: str
    redis_program: str
    """Which programs serve there, for people: ``etcd 3.4.23 (/usr/bin/etcd)``."""


class _PortTakenError(Exception):
    """Somebody took a port between the look and the start; never leaves this module."""


class Stack:
    """Starts, watches and stops the two servers of a claimed folder. Used once, in one loop."""

    def __init__(self, folder: Folder, *, durability: Durability = "always") -> None:
        self._folder = folder
        self._durability = durability
        self._plans: list[dict[str, Any]] = []
        self._keeper: KeeperProcess | None = None
        self._watcher: asyncio.Task[ServiceUnavailable] | None = None

    async def start(self) -> Endpoints:
        """Start both servers and return where they are once they answer.

        Raises:
            UsageError: a server program is missing.
            ServiceUnavailable: a server does not come up; the message holds the end of its log.
        """
        programs = await self._find_programs()
        secret = servers.load_secret(self._folder)
        tried: set[int] = set()
        while True:
            etcd_port, redis_port = servers.free_ports(2, taken=tried)
            tried |= {etcd_port, redis_port}
            self._plan(programs, etcd_port=etcd_port, redis_port=redis_port, secret=secret)
            try:
                await self._start_on(etcd_port, redis_port, secret)
                break
            except _PortTakenError as error:
                if len(tried) >= 2 * _START_TRIES:
                    raise ServiceUnavailable(str(error)) from error
        self._remember(programs)
        self._watcher = asyncio.create_task(self._watch(), name="embedded-stack")
        return Endpoints(
            etcd=f"{HOST}:{etcd_port}",
            redis=f"redis://:{secret}@{HOST}:{redis_port}/0",
            etcd_program=str(programs["etcd"]),
            redis_program=str(programs["redis"]),
        )

    async def wait_failed(self) -> ServiceUnavailable:
        """Wait until the servers are down for good and return why."""
        if self._watcher is None:
            raise RuntimeError("the stack has not been started")
        return await asyncio.shield(self._watcher)

    async def stop(self) -> None:
        """Stop both servers, politely first; afterwards none of them is left. Idempotent."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        if self._keeper is not None:
            await self._keeper.end()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of ``keeper``, ``etcd`` and ``redis``."""
        if self._keeper is None:
            return {}
        return {"keeper": self._keeper.pid, **self._keeper.server_pids}

    async def _find_programs(self) -> dict[str, Program]:
        """Return the programs to run, those that made the data if they are still to be had."""
        try:
            known = json.loads((self._folder.own / "servers.json").read_bytes())
        except FileNotFoundError:
            known = {}
        etcd, redis = await asyncio.gather(
            asyncio.to_thread(find_etcd, same_as=known.get("etcd")),
            asyncio.to_thread(find_redis, same_as=known.get("redis")),
        )
        for name, program in (("etcd", etcd), ("redis", redis)):
            if known.get(name, program.label) != program.label:
                _log.warning("embedded.other_release", data_of=known[name], found=program.label)
        return {"etcd": etcd, "redis": redis}

    def _remember(self, programs: dict[str, Program]) -> None:
        labels = {name: program.label for name, program in programs.items()}
        write_atomically(self._folder.own / "servers.json", json.dumps(labels).encode())

    def _plan(
        self, programs: dict[str, Program], *, etcd_port: int, redis_port: int, secret: str
    ) -> None:
        self._plans = [
            servers.etcd_plan(self._folder, programs["etcd"], port=etcd_port, secret=secret),
            servers.redis_plan(
                self._folder,
                programs["redis"],
                port=redis_port,
                secret=secret,
                durability=self._durability,
            ),
        ]

    async def _start_on(self, etcd_port: int, redis_port: int, secret: str) -> None:
        """Start both and wait until both answer; after an error none of them is left."""
        log_starts = {plan["name"]: log_size(Path(plan["log"])) for plan in self._plans}
        self._keeper = await KeeperProcess.spawn(self._folder, self._plans)
        is_up = False
        try:
            deadline = time.monotonic() + _SILENT_S
            while True:
                etcd, redis = await asyncio.gather(
                    probe_etcd(etcd_port, secret), probe_redis(redis_port, secret)
                )
                # Looked at after the answers: a server that could not take its port may have been
                # "answered for" by whoever has it.
                if self._keeper.dead is not None:
                    raise self._explain(self._keeper.dead, log_starts)
                if Answer.FOREIGN in (etcd, redis):
                    raise _PortTakenError(
                        f"a port of {HOST} is taken by another server ({etcd_port} or {redis_port})"
                    )
                if etcd is redis is Answer.READY:
                    is_up = True
                    return
                if redis is Answer.LOADING:
                    deadline = time.monotonic() + _SILENT_S
                if time.monotonic() > deadline:
                    silent = "redis" if etcd is Answer.READY else "etcd"
                    raise self._explain(silent, log_starts)
                await asyncio.sleep(_POLL_S)
        finally:
            if not is_up:
                await self._keeper.end()

    def _explain(self, name: str, log_starts: dict[str, int]) -> Exception:
        """Return the error for a server that does not come up."""
        path = self._folder.logs / f"{name}.log"
        start = log_starts[name]
        tail = log_tail(path, start=start)
        message = f"the private {name} server does not come up; its log ({path}) ends: {tail}"
        if "address already in use" in log_tail(path, start=start, lines=50).lower():
            return _PortTakenError(message)
        return ServiceUnavailable(message)

    async def _watch(self) -> ServiceUnavailable:
        """Start the keeper again when it dies; return once that is no use."""
        deaths: list[float] = []
        while self._keeper is not None:
            await self._keeper.wait_ended()
            now = time.monotonic()
            deaths = [at for at in deaths if now - at < _WINDOW_S] + [now]
            name = self._keeper.given_up or ("keeper" if len(deaths) > _KEEPER_RESTARTS else None)
            if name is not None:
                path = self._folder.logs / f"{name}.log"
                return ServiceUnavailable(
                    f"the private {name} server dies again and again; its log ({path}) ends: "
                    f"{log_tail(path)}"
                )
            _log.warning("embedded.keeper_died", pid=self._keeper.pid)
            self._keeper = await KeeperProcess.spawn(self._folder, self._plans)
        raise RuntimeError("the stack has not been started")
