"""Shuts out a session's writes that got no answer and may still be on their way.

A write whose reply was lost may be applied after everything that was done about it: a lock taken
again by a request that was given up minutes ago would be held by nobody's knowledge. So every
write that creates a key under a session carries the guard that the session's *door* is unchanged;
the door is a key of the session, and writing it closes the way for every write sent before.

The door does not exist until it is first needed. When the session's lease ends the door goes with
it, but by then etcd refuses any write under that lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from common.coord.jitter import pause
from common.coord.keys import Keys
from common.coord.session import Session
from common.coord.wire import Compare, Get, KeyValue, Put, modified_at
from common.model.errors import CoordUnavailable, LeaseLost, UnknownOutcome

Result = TypeVar("Result")


class Door:
    """The doors of the sessions of one cluster."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def guard(self, session: Session) -> Compare:
        """Return the guard that fails once the door was closed after now."""
        return modified_at(self._keys.door(session.lease), session.door)

    def read(self, session: Session) -> Get:
        """Return the read to make when a guard failed; give its answer to :meth:`note`."""
        return Get(self._keys.door(session.lease))

    def note(self, session: Session, door: KeyValue | None) -> None:
        """Take over the door's revision, so that the next guard can hold."""
        session.door = door.mod_revision if door is not None else 0

    async def close(self, session: Session) -> None:
        """Make every guarded write sent before fail from now on; tried until it is done.

        Raises:
            LeaseLost: the session ended meanwhile, which closes the door as well.
        """
        key = self._keys.door(session.lease)
        while True:
            try:
                reply = await session.txn(compare=(), success=[Put(key, b"", session.lease)])
            except (UnknownOutcome, CoordUnavailable):
                # Closing twice does no harm: a late copy only makes a guard fail that is renewed.
                await pause()
            else:
                session.door = reply.revision
                return


async def undone_if_cancelled(
    session: Session,
    attempt: Coroutine[Any, Any, Result],
    undo: Callable[[Result], Awaitable[None]],
) -> Result:
    """Run ``attempt``; if the caller is cancelled meanwhile, let it end and undo its result.

    A write that is interrupted halfway would have an unknown outcome, so it is not interrupted. The
    attempt must end by itself, and ``undo`` must be harmless when repeated or late.
    """
    running = asyncio.create_task(attempt)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # A second cancellation leaves the undoing to the session and does not wait for it.
        await asyncio.wait({session.finish(_undone(session, running, undo))})
        raise


async def _undone(
    session: Session,
    running: asyncio.Task[Result],
    undo: Callable[[Result], Awaitable[None]],
) -> None:
    try:
        result = await running
    except (LeaseLost, CoordUnavailable):
        return  # Nothing was taken.
    while session.is_live:
        try:
            await undo(result)
        except (CoordUnavailable, UnknownOutcome):
            await pause()
        else:
            return
