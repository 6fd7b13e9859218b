"""``nodes``: masters and workers, those that left within the last hour included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from crawlctl.framework import Command, json_option, run, settings_of

if TYPE_CHECKING:
    from common.coord import Coord
    from common.runtime.settings import Settings
    from crawlctl.watching import Listing


@click.command(cls=Command, examples=["crawlctl nodes", "crawlctl nodes --watch"])
@click.option("--watch", is_flag=True, help="show them again whenever one changes")
@json_option
@click.pass_context
def nodes(ctx: click.Context, *, watch: bool, as_json: bool) -> None:
    """List every node with its role, state and load."""
    run(_nodes(settings_of(ctx), watch=watch, as_json=as_json))


async def _nodes(settings: Settings, *, watch: bool, as_json: bool) -> None:
    from crawlctl import watching
    from crawlctl.connect import coordination
    from crawlctl.show import print_json

    async with coordination(settings) as coord:

        async def load() -> Listing:
            return await listing(coord)

        if watch:
            await watching.watch(load, _display, as_json=as_json)
        elif as_json:
            print_json(await load())
        else:
            _display(await load())


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
