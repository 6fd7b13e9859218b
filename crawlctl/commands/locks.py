"""``locks``: who owns what, and breaking a lock whose owner will not let go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from common.model.errors import UsageError
from crawlctl.framework import Command, Group, json_option, run, settings_of
from crawlctl.parameters import Whole

if TYPE_CHECKING:
    from common.coord import Coord
    from common.runtime.settings import Settings
    from crawlctl.watching import Listing


@click.group(
    cls=Group,
    invoke_without_command=True,
    examples=[
        "crawlctl locks",
        "crawlctl locks --watch --json",
        "crawlctl locks show tasks/spring/7",
    ],
)
@click.option("--watch", is_flag=True, help="show them again whenever one changes")
@json_option
@click.pass_context
def locks(ctx: click.Context, *, watch: bool, as_json: bool) -> None:
    """List every lock: the master's, those of tasks, others; with owner and fencing token."""
    if ctx.invoked_subcommand is None:
        from crawlctl.watching import listed

        settings = settings_of(ctx)
        run(listed(settings, listing, _display, is_watched=watch, as_json=as_json))
    elif watch or as_json:
        option = "--watch" if watch else "--json"
        raise UsageError(f"{option} belongs to the listing; give it after 'locks' alone")


@locks.command(
    cls=Command,
    short_help="show one lock",
    examples=["crawlctl locks show master", "crawlctl locks show tasks/spring/7 --json"],
)
@click.argument("name")
@json_option
@click.pass_context
def show(ctx: click.Context, *, name: str, as_json: bool) -> None:
    """Show one lock; exits 1 where there is none of this name."""
    run(_show(settings_of(ctx), name, as_json=as_json))


async def _show(settings: Settings, name: str, *, as_json: bool) -> None:
    from common.model.errors import NotFoundError
    from crawlctl.connect import coordination
    from crawlctl.show import print_json, print_line

    async with coordination(settings) as coord:
        found = await _find(coord, name)
        nodes = {view.info.id: view for view in await coord.members.list()}
    if found is None:
        raise NotFoundError(
            f"there is no lock {name!r} now; 'crawlctl locks' lists those there are"
        )
    owner = nodes.get(found["owner"])
    found["owner_state"] = "unknown" if owner is None else owner.info.state
    if as_json:
        print_json(found)
    else:
        _display([found])
        print_line(f"its owner is {found['owner_state']}" + _advice(found["owner_state"]))


def _advice(owner_state: str) -> str:
    if owner_state in ("unknown", "offline"):
        return ": no node of that name is there to give it back; 'locks release' breaks it"
    return ""


@locks.command(
    cls=Command,
    short_help="break a lock that is held under this token",
    examples=[
        "crawlctl locks release tasks/spring/7 --token 4711",
        "crawlctl locks release master --token 4242",
    ],
)
@click.argument("name")
@click.option(
    "--token",
    type=Whole(1),
    required=True,
    metavar="T",
    help="the fencing token the lock is shown with; under another one it is left alone",
)
@click.pass_context
def release(ctx: click.Context, *, name: str, token: int) -> None:
    """Break a lock, if it is still held under this token; else exit 4.

    NAME is any that 'crawlctl locks' lists. The lock of a task: whoever held it is refused from the
    moment there is a new owner, as after any other loss; where the task is still assigned to a live
    worker, it takes the lock again within seconds. 'master': the master stands down at once and a
    new one is elected, the same one maybe; its token is its term. Any other name: it is free.
    """
    run(_release(settings_of(ctx), name, token))


async def _release(settings: Settings, name: str, token: int) -> None:
    from common.model.errors import RefusedError
    from common.model.ids import Token
    from crawlctl.connect import coordination
    from crawlctl.show import note

    async with coordination(settings) as coord:
        if not await coord.locks.release(name, Token(token)):
            found = await _find(coord, name)
            now = f"held by {found['owner']} under token {found['token']}" if found else "free"
            raise RefusedError(
                f"--token: lock {name!r} is not held under token {token} but {now}; "
                "look at it with 'crawlctl locks' and decide anew"
            )
    if not settings.quiet:
        note(f"lock {name} is broken")


async def _find(coord: Coord, name: str) -> dict[str, Any] | None:
    return next((lock for lock in await listing(coord) if lock["name"] == name), None)


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
