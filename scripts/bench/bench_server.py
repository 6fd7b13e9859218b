"""A private server for the benches, and the CPU time of its main thread.

Redis runs every command and every script in one thread: what one core can do is URLs per second of
that thread's CPU time. On a shared machine this is far steadier than the wall clock.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from common.frontier import FrontierClient, RedisOptions
from common.model.errors import FrontierUnavailable

Command = tuple[str | bytes | int | float, ...]


class BenchServer(NamedTuple):
    """A running server and one client of it."""

    client: FrontierClient
    pid: int

    def cpu_s(self) -> float:
        """Return the CPU seconds of the main thread so far."""
        thread = Path(f"/proc/{self.pid}/task/{self.pid}")
        try:
            return int((thread / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # no such file in this kernel: the coarser count of ticks
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def info(self, section: str, field: str) -> str:
        (raw,) = await self.client.commands([("INFO", section)])
        lines = dict(line.split(":", 1) for line in raw.decode().splitlines() if ":" in line)
        return lines[field]

    async def used_bytes(self) -> int:
        return int(await self.info("memory", "used_memory"))

    async def do(self, *command: str | bytes | float) -> Any:
        (reply,) = await self.client.commands([command])
        return reply


@asynccontextmanager
async def bench_server(
    *, fsync: str = "no", program: str | None = None, options: Sequence[str] = ()
) -> AsyncIterator[BenchServer]:
    """Start a server on a free port with its data in a folder of its own; end it at last.

    Args:
        fsync: "no" = without AOF, else ``appendfsync``.
        program: of the server; redis-server or valkey-server of PATH.
        options: further command line options.
    """
    found = program or shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise SystemExit("put redis-server or valkey-server on PATH, or give --server")
    aof = (
        ["--appendonly", "no"] if fsync == "no" else ["--appendonly", "yes", "--appendfsync", fsync]
    )
    with tempfile.TemporaryDirectory() as folder:
        port = random.randrange(20_000, 30_000)
        command = [found, "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", ""]
        command += [*aof, "--loglevel", "warning", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
        client = FrontierClient(RedisOptions(urls=(f"redis://127.0.0.1:{port}/0",)))
        try:
            await _wait_ready(client, process)
            yield BenchServer(client, process.pid)
        finally:
            await client.close()
            process.terminate()
            process.wait()


async def _wait_ready(client: FrontierClient, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            await client.infos()
        except FrontierUnavailable:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start") from None
            time.sleep(0.05)  # noqa: ASYNC251
        else:
            return
