"""``up`` and ``down``: a whole crawler on this machine, in the background."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from crawlctl.framework import Command, settings_of
from crawlctl.parameters import Place, Whole
from crawlctl.plugin_options import arguments, code_option, loaded


@click.command(
    cls=Command,
    examples=[
        "crawlctl up --data data",
        "crawlctl up --data data --workers 4 --cluster lab",
        "crawlctl up --data data --plugin prices=shop.py:Prices",
    ],
)
@click.option(
    "--data",
    type=Place(),
    required=True,
    metavar="DIR",
    help="folder for everything that is stored; jobs in it go on where they were",
)
@click.option("--workers", type=Whole(1, 256), metavar="N", help="workers  [default: one a core]")
@code_option
@click.pass_context
def up(ctx: click.Context, *, data: str, workers: int | None, plugins: Sequence[str]) -> None:
    """Start a private etcd and data server, a master and workers in the background.

    The two servers are those on PATH, else those installed with crawlctl; what was taken is said.
    Every other command then finds them, until 'crawlctl down'.
    """
    from common.embedded.background import UpRequest, start_background
    from common.runtime.process import cores
    from common.runtime.secrets import mask_url
    from crawlctl.show import note, quantity

    settings = settings_of(ctx, with_services=False, default_log_level="info")
    _, references = loaded(plugins)
    request = UpRequest(
        data=str(Path(data).absolute()),
        workers=workers or cores(),
        cluster=settings.cluster,
        log_level=settings.log_level,
        log_format=settings.log_format,
        worker_arguments=(
            *("--warc-dir", str(Path(data).absolute() / "warc")),
            *arguments(references),
        ),
    )
    state = start_background(request, os.environ)
    if not settings.quiet:
        note(f"up with {quantity(request.workers, 'worker')} in {state.data} (process {state.pid})")
        note(f"{state.etcd_program}: {state.etcd}")
        note(f"{state.redis_program}: {mask_url(state.redis)}")


@click.command(cls=Command, examples=["crawlctl down", "crawlctl down --cluster lab"])
@click.pass_context
def down(ctx: click.Context) -> None:
    """Stop what 'up' started; jobs go on at the next 'up' on the same folder."""
    from common.embedded.background import stop_background
    from common.model.errors import NotFoundError
    from crawlctl.show import note

    settings = settings_of(ctx, with_services=False)
    state = stop_background(settings.cluster, os.environ)
    if state is None:
        name = settings.cluster
        raise NotFoundError(
            f"no cluster {name!r} is up here; 'crawlctl up' starts one, --cluster names another"
        )
    if not settings.quiet:
        note(f"stopped; its data stays in {state.data}")
