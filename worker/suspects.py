"""URLs that several owners lost in flight: each is tried once more, alone in its process.

If it is such a URL that ends its owners, it ends one more, and nobody's request but its own is on
the wire then: what counts against it is written just before, so it counts what was really sent. If
it is not, that is taken back. So no URL is given up for what its neighbours do.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from common.frontier.items import Item
from common.frontier.owner import HOLD_MS, MAX_OWNERS
from common.model.errors import FrontierUnavailable
from worker.capacity import Share
from worker.settlement import Settlement

GIVEN_UP: Final = (
    f"{MAX_OWNERS} workers ended with it in flight, the last one while it worked on nothing else"
)

log = structlog.get_logger()


class Suspects:
    """The suspects of one task."""

    def __init__(
        self,
        places: Share,
        *,
        may_send: Callable[[], bool],
        count_owners: Callable[[int, Item], Awaitable[bool]],
    ) -> None:
        """Prepare.

        Args:
            places: of the job; each suspect has one.
            may_send: whether the task is still ours.
            count_owners: ``TaskFrontier.count_owners``.
        """
        self._places = places
        self._may_send = may_send
        self._count_owners = count_owners

    async def tried(
        self, claim: int, item: Item, request: Callable[[float], Awaitable[Settlement]]
    ) -> Settlement | None:
        """Return what comes of a suspect; None = it was not asked for, and is to wait.

        Args:
            claim: of the suspect.
            item: the suspect.
            request: asks for it; takes the monotonic time after which no request may start.
        """
        async with self._places.alone():
            claimed_at = time.monotonic()
            if not self._may_send():
                return None
            if not await self._written(claim, item._replace(owners=MAX_OWNERS)):
                return None
            log.warning("page.alone", url=item.url, owners=item.owners)
            settlement = await request(claimed_at + HOLD_MS / 1000)
            await self._written(claim, item)
            return settlement

    async def _written(self, claim: int, item: Item) -> bool:
        """Tell whether it is known to be written; else it is when the claim is settled."""
        try:
            return await self._count_owners(claim, item)
        except FrontierUnavailable as error:
            log.info("page.not_counted", url=item.url, reason=str(error))
            return False
