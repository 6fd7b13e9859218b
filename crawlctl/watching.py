"""Listings that go on: read every second, and shown again when they changed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from crawlctl import show

if TYPE_CHECKING:
    from common.coord import Coord
    from common.runtime.settings import Settings

_POLL_S: Final = 1.0
_MOVING: Final = ("age_seconds", "ttl_seconds", "load", "weight")
"""Fields that move all the time: alone they are no change worth a line."""
_CLEAR: Final = "\x1b[H\x1b[2J"

Listing = list[dict[str, Any]]


async def listed(
    settings: Settings,
    load: Callable[[Coord], Awaitable[Listing]],
    display: Callable[[Listing], None],
    *,
    is_watched: bool,
    as_json: bool,
) -> None:
    """Show a listing out of etcd, once or until interrupted.

    Args:
        settings: where etcd is.
        load: reads it.
        display: writes it for people.
        is_watched: go on, as :func:`watch` does.
        as_json: write JSON instead.
    """
    from crawlctl.connect import coordination

    async with coordination(settings) as coord:
        if is_watched:
            await watch(lambda: load(coord), display, as_json=as_json)
        elif as_json:
            show.print_json(await load(coord))
        else:
            display(await load(coord))


async def watch(
    load: Callable[[], Awaitable[Listing]],
    display: Callable[[Listing], None],
    *,
    as_json: bool,
) -> None:
    """Show a listing until interrupted.

    Args:
        load: reads it.
        display: writes it for people; on a terminal it is refreshed in place, every second.
        as_json: one JSON document a line instead, first as it is, then whenever it changed.
    """
    refreshes = show.redraws(sys.stdout) and not as_json
    last: Listing | None = None
    while True:
        listing = await load()
        still = [
            {name: value for name, value in row.items() if name not in _MOVING} for row in listing
        ]
        if refreshes or still != last:
            if as_json:
                show.print_json(listing)
            else:
                sys.stdout.write(_CLEAR if refreshes else "")
                display(listing)
        last = still
        await asyncio.sleep(_POLL_S)
