"""A local copy of all keys below a prefix, kept up to date by a watch.

The copy is listed at one revision and then follows the events after it. After a broken watch it
resumes from the last event it applied; where that history was compacted it lists again and takes
over the difference, deletions included. A full list every few minutes mends what a watch might
ever miss.

Not promised: that the copy is current. It may be behind by the length of an outage, so whatever
must be true right now is read from etcd or guarded in a transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from common.coord.client import Etcd
from common.coord.jitter import backoff_s, between_s
from common.coord.log import logger
from common.coord.watch import Compacted
from common.coord.wire import Event, Get, KeyValue
from common.model.errors import CoordUnavailable

RELIST_S: Final = (240.0, 360.0)
"""Range of the time between full lists; spread, so that nodes do not list at the same time."""

_FIRST_BACKOFF_S: Final = 0.1
_LONGEST_BACKOFF_S: Final = 2.0


class Mirror:
    """The keys below a prefix; :meth:`start` it, read :attr:`items`, wait with :meth:`changed`."""

    def __init__(self, etcd: Etcd, prefix: str) -> None:
        self.items: dict[str, KeyValue] = {}
        """The copy; replaced and changed in place between two awaits of its reader."""
        self.revision = 0
        """The store's revision the copy has reached."""
        self._etcd = etcd
        self._prefix = prefix
        self._change = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List the keys and begin to follow them.

        Raises:
            CoordUnavailable: etcd does not answer.
        """
        await self._list()
        self._change.clear()
        self._following = asyncio.create_task(self._follow(), name=f"mirror {self._prefix}")

    async def changed(self, *, timeout_s: float) -> bool:
        """Wait for a change; True at once if there was one since the last call.

        Returns:
            False if nothing changed within ``timeout_s``.

        Raises:
            CrawlerError: the mirror ended for a reason that waiting does not mend, such as a user
                who may not read the prefix.
        """
        assert self._following is not None, "start the mirror first"
        waiting = asyncio.create_task(self._change.wait())
        try:
            await asyncio.wait(
                {waiting, self._following},
                timeout=timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waiting.cancel()
        if self._following.done():
            self._following.result()
        has_changed = self._change.is_set()
        self._change.clear()
        return has_changed

    async def close(self) -> None:
        """Stop following; the copy stays as it is. Idempotent."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        is_list_due = False
        failures = 0
        while True:
            before = self.revision
            try:
                if is_list_due:
                    await self._list()
                    is_list_due = False
                await self._watch()
                is_list_due = True
            except Compacted:
                logger().info("mirror.compacted", prefix=self._prefix, revision=self.revision)
                is_list_due = True
            except CoordUnavailable as error:
                failures = 0 if self.revision > before else failures + 1
                if failures <= 1:
                    logger().warning("mirror.interrupted", prefix=self._prefix, error=str(error))
                wait_s = backoff_s(failures, first_s=_FIRST_BACKOFF_S, longest_s=_LONGEST_BACKOFF_S)
                await asyncio.sleep(wait_s)

    async def _watch(self) -> None:
        """Apply events until a full list is due."""
        list_at_s = time.monotonic() + between_s(*RELIST_S)
        target = Get(self._prefix, is_prefix=True)
        async with self._etcd.watch(target, start_revision=self.revision + 1) as watch:
            while time.monotonic() < list_at_s:
                self._apply(await watch.next())

    async def _list(self) -> None:
        snapshot = await self._etcd.get_prefix(self._prefix)
        if snapshot.revision < self.revision:
            logger().warning(
                "mirror.store_went_back",
                prefix=self._prefix,
                revision=snapshot.revision,
                before=self.revision,
            )
        if snapshot.items != self.items:
            self.items = snapshot.items
            self._change.set()
        self.revision = snapshot.revision

    def _apply(self, events: Sequence[Event]) -> None:
        # Events of one revision arrive together, so only whole messages can be duplicates.
        applied = self.revision
        for event in events:
            kv = event.kv
            if kv.mod_revision <= applied:
                continue
            if event.is_delete:
                self.items.pop(kv.key, None)
            else:
                self.items[kv.key] = kv
            self.revision = max(self.revision, kv.mod_revision)
            self._change.set()
