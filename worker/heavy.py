"""Heavy pages: a process bears few at a time, whatever the web serves.

A body takes *room* from ``LIGHT_BYTES`` on, until its page is written; where there is none, what
has come of it is dropped, and the page is fetched again later. The page that has had room for the
longest always gets more, so that there is always one which comes to its end: all bodies together
stay below ``ROOM_BYTES`` and one ``--max-body``.

Heavy pages also take *turns*: links and parsed markup take up many times the room of the body, so
that one page at a time is read and has its links offered. Its host is not asked for another
meanwhile: the slot is free only when the page is ready to be written.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from worker.aside import Aside

LIGHT_BYTES: Final = 256 * 1024
"""Of a decoded body; pages below are too many to be counted and too small to matter."""
ROOM_BYTES: Final = 64 * 1024 * 1024
AGAIN_S: Final = 2.0
"""When a page is tried again for which there was no room."""


class HeavyPages:
    """The heavy pages of one process."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._room_bytes = room_bytes
        self._held: dict[Load, int] = {}
        """Bytes, the load that came first before the others."""
        self._turn = asyncio.Lock()
        self.aside = Aside()
        """Where they are read."""

    async def aclose(self) -> None:
        """End the process that reads them."""
        await self.aside.close()

    @property
    def held_bytes(self) -> int:
        """Room taken."""
        return sum(self._held.values())

    def load(self) -> Load:
        """Return what a page holds: a context at whose end it holds nothing."""
        return Load(self)

    def hold(self, load: Load, size: int) -> bool:
        """Let a load hold so many bytes; False: there is no room for them."""
        before = self._held.get(load, 0)
        rest, size = self.held_bytes - before, max(before, size)
        is_first = next(iter(self._held), load) is load
        if rest + size > self._room_bytes and not is_first:
            return False
        self._held[load] = size
        return True

    def drop(self, load: Load) -> None:
        """Let a load hold nothing."""
        self._held.pop(load, None)

    async def turn(self) -> None:
        """Wait for the turn; :meth:`pass_on` must follow."""
        await self._turn.acquire()

    def pass_on(self) -> None:
        """Let the next one have the turn."""
        self._turn.release()


class Load:
    """What one page holds of the process."""

    __slots__ = ("_has_turn", "_pages")

    def __init__(self, pages: HeavyPages) -> None:
        self._pages = pages
        self._has_turn = False

    def fits(self, size: int) -> bool:
        """Take the room for a body that has grown to ``size`` bytes; False: there is none."""
        return size < LIGHT_BYTES or self._pages.hold(self, size)

    async def turn(self, size: int) -> None:
        """Wait until no other heavy page is worked on; at once for a body that is not heavy."""
        if size < LIGHT_BYTES or self._has_turn:
            return
        await self._pages.turn()
        self._has_turn = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pages.drop(self)
        if self._has_turn:
            self._pages.pass_on()
