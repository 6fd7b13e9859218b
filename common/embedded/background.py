"""``up`` and ``down``: an embedded cluster that goes on in the background.

One process serves a folder: it claims it, opens the cluster, announces itself in the user's state
folder (:mod:`common.runtime.upstate`), where every other command finds it, and leaves on SIGTERM.
:func:`start_background` starts it and returns when it is ready or has said why not.

An announcement is believed only while its process holds the lock of its folder: process ids are
used again, and a crash leaves the file behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from common.embedded.cluster import EmbeddedCluster
from common.embedded.folder import OWN, Folder, FolderState, holder_of
from common.embedded.launch import child_environment, module_command
from common.embedded.logtail import log_tail, shift_log
from common.embedded.servers import Durability
from common.model.errors import CrawlerError, RefusedError, ServiceUnavailable, UsageError
from common.runtime import installation, logs, upstate
from common.runtime.process import stop_on_signals
from common.runtime.upstate import UpState

_log = structlog.get_logger()

JOIN_TIMEOUT_S: Final = 15.0
"""How long "up" waits for its nodes before it says that it is up all the same."""

_POLL_S: Final = 0.02
_KILL_TIMEOUT_S: Final = 5.0

# Runs between the command and the server: forks, so that the server is nobody's child and nobody
# has to wait for it, then becomes it. A program of its own: only one without threads may fork.
_DETACH: Final = (
    "import os, sys\nif os.fork():\n    os._exit(0)\nos.execv(sys.argv[1], sys.argv[1:])"
)


class UpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What ``up`` is to run."""

    data: str
    """Absolute path of the folder."""
    workers: int
    cluster: str = "default"
    durability: Durability = "always"
    master_arguments: tuple[str, ...] = ()
    worker_arguments: tuple[str, ...] = ()
    drain_timeout_s: float = 30.0
    log_level: str = "info"
    log_format: str = "text"
    program: tuple[str, ...] | None = None


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why it does not serve, as told to the command that waits."""

    message: str
    exit_code: int


async def supervise(request: UpRequest, *, on_ready: Callable[[UpState], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain and stop everything.

    Args:
        request: what to run.
        on_ready: called once, when everything is started and announced.

    Raises:
        RefusedError: the folder is in use.
        CrawlerError: something does not start, or dies for good.
    """
    stop = stop_on_signals()
    with Folder.claim(request.data, outputs=()) as folder:
        _check_kind(folder)
        _log_into(folder.logs / "up.log", request)
        async with EmbeddedCluster.open(
            folder,
            workers=request.workers,
            cluster=request.cluster,
            durability=request.durability,
            master_arguments=request.master_arguments,
            worker_arguments=request.worker_arguments,
            drain_timeout_s=request.drain_timeout_s,
            program=request.program,
        ) as cluster:
            state = UpState(
                pid=os.getpid(),
                data=str(folder.path),
                etcd=cluster.endpoints.etcd,
                redis=cluster.endpoints.redis,
                etcd_program=cluster.endpoints.etcd_program,
                redis_program=cluster.endpoints.redis_program,
            )
            upstate.save(state, request.cluster, os.environ)
            try:
                if request.program is None:  # nodes of another program may never join
                    await _wait_joined(cluster, stop)
                on_ready(state)
                await _serve(cluster, stop)
            finally:
                upstate.remove(state.pid, request.cluster, os.environ)


async def _wait_joined(cluster: EmbeddedCluster, stop: asyncio.Event) -> None:
    """Wait until the nodes can be found, so that the next command finds them.

    Raises:
        CrawlerError: one of them is down for good.
    """
    joined = asyncio.create_task(cluster.wait_joined())
    failed = asyncio.create_task(cluster.wait_failed())
    stopping = asyncio.create_task(stop.wait())
    waits = (joined, failed, stopping)
    try:
        await asyncio.wait(waits, timeout=JOIN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise failed.result()
        if not joined.done():
            _log.warning("embedded.nodes_not_joined", after_s=JOIN_TIMEOUT_S)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _check_kind(folder: Folder) -> None:
    """Keep a crawl's own data and those of ``up`` apart: their jobs would share the servers."""
    state = folder.load_state()
    if state is None:
        folder.save_state(FolderState(kind="up"))
    elif state.kind != "up":
        raise UsageError(
            f"--data: {folder.path} holds the crawl {state.job}; choose another folder"
        )


async def _serve(cluster: EmbeddedCluster, stop: asyncio.Event) -> None:
    """Wait for the end: told to stop, or broken."""
    failed = asyncio.create_task(cluster.wait_failed())
    told = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((failed, told), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            error = failed.result()
            _log.error("embedded.failed", reason=str(error))
            raise error
        _log.info("embedded.stopping")
    finally:
        for task in (failed, told):
            task.cancel()
        await asyncio.gather(failed, told, return_exceptions=True)


def running_up(cluster: str, environ: Mapping[str, str]) -> UpState | None:
    """Return the running ``up`` of this cluster name; None when there is none."""
    state = upstate.load(cluster, environ)
    return state if state is not None and holder_of(state.data) == state.pid else None


def start_background(
    request: UpRequest, environ: Mapping[str, str], *, timeout_s: float = 120.0
) -> UpState:
    """Start ``up`` in the background and return where it serves, once it does.

    Raises:
        RefusedError: this cluster name is up already, or the folder is in use.
        CrawlerError: with the message (and exit code) of what went wrong there.
    """
    running = running_up(request.cluster, environ)
    if running is not None:
        raise RefusedError(
            f"--cluster: {request.cluster!r} is up already in {running.data} (process "
            f"{running.pid}); stop it with crawlctl down, or choose another name"
        )
    receive, send = os.pipe()
    with os.fdopen(receive, "rb", buffering=0) as answer:
        try:
            subprocess.run(  # noqa: S603  # our own code, no shell
                [
                    sys.executable,
                    *("-I", "-S", "-c", _DETACH),
                    *module_command("common.embedded.background"),
                    str(send),
                    msgspec.json.encode(request).decode(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(send,),
                env=child_environment(environ),
                start_new_session=True,
                check=True,
            )
        finally:
            os.close(send)
        raw = _read_all(answer.fileno(), time.monotonic() + timeout_s)
    return _outcome(raw, request, timeout_s)


def _outcome(raw: bytes | None, request: UpRequest, timeout_s: float) -> UpState:
    """Turn what the server said into a value or the error it met."""
    log = Path(request.data) / OWN / "logs" / "up.log"
    if raw is None:
        raise ServiceUnavailable(
            f"the crawler in {request.data} is not up after {timeout_s:.0f} s; see {log}, and "
            "stop it with crawlctl down"
        )
    try:
        return msgspec.json.decode(raw, type=UpState)
    except (msgspec.ValidationError, msgspec.DecodeError):
        pass
    try:
        failure = msgspec.json.decode(raw, type=_Failure)
    except (msgspec.ValidationError, msgspec.DecodeError):
        raise ServiceUnavailable(
            f"the crawler in {request.data} ended before it was up; its log ({log}) ends: "
            f"{log_tail(log)}"
        ) from None
    error = CrawlerError(failure.message)
    error.exit_code = failure.exit_code
    raise error


def stop_background(
    cluster: str, environ: Mapping[str, str], *, timeout_s: float = 60.0
) -> UpState | None:
    """Stop the running ``up`` of this cluster name and return what it was; None when none runs.

    It is killed when it has not drained in time; its children die with it.
    """
    state = running_up(cluster, environ)
    if state is None:
        return None
    for number, patience_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, _KILL_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if holder_of(state.data) != state.pid:
                upstate.remove(state.pid, cluster, environ)
                return state
            time.sleep(_POLL_S)
    raise CrawlerError(f"process {state.pid}, which serves {state.data}, does not end")


def _read_all(number: int, deadline: float) -> bytes | None:
    """Return all until the other side closes; None when it does not in time."""
    chunks: list[bytes] = []
    while True:
        ready, _, _ = select.select([number], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(number, 65_536)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def _log_into(path: Path, request: UpRequest) -> None:
    """From here on nobody listens but the log."""
    shift_log(path)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(number, 1)
    os.dup2(number, 2)
    os.close(number)
    logs.configure(request.log_level, request.log_format)


def main() -> int:
    """Serve what the command in :func:`start_background` asked for."""
    send = int(sys.argv[1])
    request = msgspec.json.decode(sys.argv[2], type=UpRequest)

    def answer(message: UpState | _Failure) -> None:
        # The command may have given up waiting.
        with contextlib.suppress(BrokenPipeError):
            os.write(send, msgspec.json.encode(message))
        os.close(send)

    # How the nodes are told; see common.embedded.launch.
    os.environ["CRAWLCTL_LOG_LEVEL"] = request.log_level
    os.environ["CRAWLCTL_LOG_FORMAT"] = request.log_format
    is_ready = False

    def on_ready(state: UpState) -> None:
        nonlocal is_ready
        is_ready = True
        answer(state)

    try:
        installation.hold()
        asyncio.run(supervise(request, on_ready=on_ready))
    except CrawlerError as error:
        if not is_ready:
            answer(_Failure(message=str(error), exit_code=error.exit_code))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
