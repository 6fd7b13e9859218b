"""``start-master`` and ``start-worker``: a node in the foreground, until it is told to leave."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from common.model.ids import NodeId, checked_name
from crawlctl.framework import Command, options_given, settings_of
from crawlctl.parameters import Number, Place, Size, Whole
from crawlctl.plugin_options import arguments as plugin_arguments
from crawlctl.plugin_options import code_option, loaded

F = TypeVar("F", bound=Callable[..., Any])

_HOST_LENGTH = 40
_END_S = 5.0
"""For tasks that are left at the end of a node."""
"""Of the host's name in a default id; the longest id allowed has 64."""


def _node_options(function: F) -> F:
    for option in reversed(
        (
            click.option(
                "--id",
                "node_id",
                metavar="NAME",
                help="the node's id  [default: made of host and process]",
            ),
            click.option(
                "--lease-ttl",
                type=Number(2, 3600),
                default=10.0,
                metavar="SECONDS",
                help="how long others wait before they take over from a node that went silent "
                "(2 to 3600)  [default: 10]",
            ),
            click.option(
                "--http",
                metavar="HOST:PORT",
                help="serve /health and /metrics there  [default: off]",
            ),
            click.option("--exit-with-parent", is_flag=True, hidden=True),
            click.option("--settings-from-parent", is_flag=True, hidden=True),
        )
    ):
        function = option(function)
    return function


@click.command(
    "start-master",
    cls=Command,
    examples=[
        "crawlctl start-master --etcd etcd1:2379,etcd2:2379 --redis redis://redis1:6379/0",
        "crawlctl start-master --http 127.0.0.1:9100 --log-format json",
    ],
)
@_node_options
@click.pass_context
def start_master(
    ctx: click.Context,
    /,
    *,
    node_id: str | None,
    lease_ttl: float,
    http: str | None,
    exit_with_parent: bool,
    settings_from_parent: bool,
) -> None:
    """Run a master in the foreground until SIGTERM.

    Start as many as you like: one is elected, the others stand by.
    """
    if settings_from_parent:
        _take_settings(preload="coordinator.master")
    settings = settings_of(ctx, default_log_level="info")
    name = _checked_id(node_id, role="master")
    _check_address(http)

    async def work() -> None:
        import coordinator
        from common.runtime.process import stop_on_signals

        stop = stop_on_signals()
        await coordinator.run(settings, node_id=name, lease_ttl_s=lease_ttl, http=http, stop=stop)

    _run_node(work(), exit_with_parent=exit_with_parent)


@click.command(
    "start-worker",
    cls=Command,
    examples=[
        "crawlctl start-worker --etcd etcd1:2379,etcd2:2379 --redis redis://redis1:6379/0",
        "crawlctl start-worker --processes 4 --concurrency 128",
        "crawlctl start-worker --warc-dir /data/warc",
        "crawlctl start-worker --plugin prices=shop.plugins:Prices",
    ],
)
@_node_options
@click.option(
    "--concurrency",
    type=Whole(1, 10_000),
    default=64,
    metavar="N",
    help="most requests at once, of one process  [default: 64]",
)
@click.option(
    "--processes",
    type=Whole(1, 1024),
    default=1,
    metavar="N",
    help="workers to run, each a process with its own id; with --http on ports counted up from "
    "the one given  [default: 1]",
)
@click.option(
    "--warc-dir",
    type=Place(),
    metavar="DIR",
    help="folder for the responses of jobs with --store warc; without it they are refused",
)
@click.option(
    "--memory-limit",
    type=Size(),
    metavar="BYTES",
    help="with more in use, a process takes nothing new (500M, 2G)  [default: 80% of the "
    "machine's]",
)
@code_option
@click.pass_context
def start_worker(
    ctx: click.Context,
    /,
    *,
    node_id: str | None,
    lease_ttl: float,
    http: str | None,
    concurrency: int,
    processes: int,
    warc_dir: str | None,
    memory_limit: int | None,
    plugins: Sequence[str],
    exit_with_parent: bool,
    settings_from_parent: bool,
) -> int:
    """Run a worker in the foreground until SIGTERM.

    On SIGTERM it finishes what is in flight, releases its locks and leaves; a second one ends it at
    once.
    """
    if settings_from_parent:
        _take_settings(preload="worker.program")
    settings = settings_of(ctx, default_log_level="info")
    name = _checked_id(node_id, role="worker")
    _check_address(http)
    folder = None if warc_dir is None else _made(warc_dir)
    available, references = loaded(plugins)
    if processes > 1:
        from crawlctl.worker_processes import WorkerProcesses

        arguments = ["--lease-ttl", f"{lease_ttl:g}", "--concurrency", str(concurrency)]
        if folder is not None:
            arguments += ["--warc-dir", str(folder)]
        if memory_limit is not None:
            arguments += ["--memory-limit", str(memory_limit)]
        arguments += plugin_arguments(references)
        workers = WorkerProcesses(
            name, processes, http=http, arguments=[*_passed_on(ctx), *arguments]
        )
        return _run_node(workers.run(), exit_with_parent=exit_with_parent)

    async def work() -> int:
        import worker
        from common.runtime.process import stop_on_signals

        stop = stop_on_signals()
        await worker.run(
            settings,
            node_id=name,
            lease_ttl_s=lease_ttl,
            concurrency=concurrency,
            http=http,
            stop=stop,
            warc_dir=folder,
            memory_limit_bytes=memory_limit,
            plugins=available,
        )
        return 0

    return _run_node(work(), exit_with_parent=exit_with_parent)


T = TypeVar("T")


def _take_settings(*, preload: str) -> None:
    """Load the node's code, then wait for the parent to say where the services are."""
    import importlib
    import json
    import sys

    importlib.import_module(preload)
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(1)  # the parent is gone
    os.environ.update(json.loads(line))


def _run_node(work: Coroutine[Any, Any, T], *, exit_with_parent: bool) -> T:
    import uvloop

    if exit_with_parent:
        from common.runtime import process

        process.exit_with_parent()
    return uvloop.run(_alone(work))


async def _alone(work: Coroutine[Any, Any, T]) -> T:
    """Do the work; leave the process then, even if a task (a plugin's, say) refuses to end.

    Nothing is lost by that: all that matters was committed, or is left to leases.
    """
    import asyncio

    import structlog

    from common.runtime.process import end_others

    working = asyncio.ensure_future(work)
    await asyncio.wait([working])
    if left := await end_others(within_s=_END_S):
        failure = None if working.cancelled() else working.exception()
        log = structlog.get_logger()
        log.error("node.left_behind", tasks=left, reason=str(failure) if failure else None)
        os._exit(0 if failure is None else 1)
    return working.result()


def _made(warc_dir: str) -> Path:
    """Return the folder, made where there is none: wrong use should show at once."""
    from common.model.errors import UsageError

    folder = Path(warc_dir).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(None, "no permission to write")
    except OSError as error:
        raise UsageError(
            f"--warc-dir: {folder} cannot be used ({error.strerror or error}); give a folder you "
            "may write to"
        ) from error
    return folder


def _checked_id(given: str | None, *, role: str) -> NodeId:
    if given is not None:
        return NodeId(checked_name(given, field="--id"))
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname())[:_HOST_LENGTH].lstrip("._-")
    return NodeId(f"{host or 'node'}-{os.getpid()}-{role}")


def _check_address(http: str | None) -> None:
    if http is not None:
        from common.runtime.endpoints import host_and_port

        host_and_port(http, where="--http", lowest_port=0)


def _passed_on(ctx: click.Context) -> list[str]:
    """Return the global options as they were given, for processes that are to have the same."""
    arguments = []
    for name, value in options_given(ctx).items():
        arguments.append(f"--{name.replace('_', '-')}")
        if value is not True:
            arguments.append(str(value))
    return arguments
