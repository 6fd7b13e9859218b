"""``locks``: who owns what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from crawlctl.framework import Command, json_option, run, settings_of

if TYPE_CHECKING:
    from common.coord import Coord
    from common.runtime.settings import Settings
    from crawlctl.watching import Listing


@click.command(cls=Command, examples=["crawlctl locks", "crawlctl locks --watch --json"])
@click.option("--watch", is_flag=True, help="show them again whenever one changes")
@json_option
@click.pass_context
def locks(ctx: click.Context, *, watch: bool, as_json: bool) -> None:
    """List every lock: the master's, those of tasks, others; with owner and fencing token."""
    run(_locks(settings_of(ctx), watch=watch, as_json=as_json))


async def _locks(settings: Settings, *, watch: bool, as_json: bool) -> None:
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
    """Return every lock in the shape of the contract."""
    return [
        {
            "name": lock.name,
            "kind": lock.kind,
            "owner": lock.owner,
            "token": lock.token,
            "age_seconds": lock.age_seconds,
            "ttl_seconds": lock.ttl_seconds,
        }
        for lock in await coord.locks.list()
    ]


def _display(rows: Listing) -> None:
    from crawlctl.show import print_table

    columns = ("name", "kind", "owner", "token", "age_seconds", "ttl_seconds")
    print_table(
        ("name", "kind", "owner", "token", "age s", "ttl s"),
        [[row[name] for name in columns] for row in rows],
    )
