"""``nodes``: masters and workers, those that left within the last hour included; draining one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from common.model.errors import UsageError
from crawlctl.framework import Command, Group, json_option, run, running_up, settings_of

if TYPE_CHECKING:
    from common.coord import Coord
    from common.runtime.settings import Settings
    from crawlctl.watching import Listing


@click.group(
    cls=Group,
    invoke_without_command=True,
    examples=["crawlctl nodes", "crawlctl nodes --watch", "crawlctl nodes drain worker-3"],
)
@click.option("--watch", is_flag=True, help="show them again whenever one changes")
@json_option
@click.pass_context
def nodes(ctx: click.Context, *, watch: bool, as_json: bool) -> None:
    """List every node with its role, state and load."""
    if ctx.invoked_subcommand is None:
        from crawlctl.watching import listed

        settings = settings_of(ctx)
        run(listed(settings, listing, _display, is_watched=watch, as_json=as_json))
    elif watch or as_json:
        option = "--watch" if watch else "--json"
        raise UsageError(f"{option} belongs to the listing; give it after 'nodes' alone")


@nodes.command(
    cls=Command,
    short_help="let a node finish what it has and leave",
    examples=["crawlctl nodes drain worker-3"],
)
@click.argument("node_id", metavar="ID")
@click.pass_context
def drain(ctx: click.Context, *, node_id: str) -> None:
    """Let a node finish what it has in flight and leave, as SIGTERM does.

    A worker hands over its tasks, a master resigns; both end with exit code 0. Returns once the
    node has been asked; 'crawlctl nodes' shows it as draining, then as offline.

    One that 'crawlctl up' started stays away until the next 'up'; 'crawlctl start-worker', or
    start-master, runs another until then.
    """
    run(_drain(settings_of(ctx), node_id))


async def _drain(settings: Settings, node_id: str) -> None:
    from crawlctl.connect import coordination
    from crawlctl.show import note

    async with coordination(settings) as coord:
        roles = {view.info.id: view.info.role for view in await coord.members.list()}
        await coord.drains.ask(node_id)
    if settings.quiet:
        return
    note(f"node {node_id} was asked to drain; 'crawlctl nodes' shows when it has left")
    state = running_up(settings.cluster, os.environ)
    if state is not None and settings.etcd_endpoints == (state.etcd,):
        role = roles.get(node_id, "worker")
        note(
            f"nothing starts it again before the next 'crawlctl up --data {state.data}' (after "
            f"'crawlctl down'); until then 'crawlctl start-{role}' runs another"
        )


async def listing(coord: Coord) -> list[dict[str, Any]]:
    """Return every node in the shape of the contract."""
    return [
        {
            "id": view.info.id,
            "role": view.info.role,
            "state": view.info.state,
            "term": view.term,
            "weight": view.info.weight,
            "load": view.info.load,
            "tasks": view.info.tasks,
            # One that left has no lease; only the memory of it has.
            "ttl_seconds": None if view.left_at else view.ttl_seconds,
            "reasons": list(view.info.reasons),
            "host": view.info.host,
            "pid": view.info.pid,
            "started_at": view.info.started_at,
            "left_at": view.left_at,
        }
        for view in await coord.members.list()
    ]


def _display(rows: Listing) -> None:
    from crawlctl.show import print_table

    print_table(
        ("id", "role", "state", "term", "weight", "tasks", "ttl s", "host", "load", "reasons"),
        [
            (
                row["id"],
                row["role"],
                row["state"],
                row["term"],
                row["weight"],
                row["tasks"],
                row["ttl_seconds"],
                row["host"],
                " ".join(_figure(name, value) for name, value in sorted(row["load"].items())),
                "; ".join(row["reasons"]),
            )
            for row in rows
        ],
    )


def _figure(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')}={value / 1e6:.0f}MB"
    return f"{name}={round(value, 3):g}"
