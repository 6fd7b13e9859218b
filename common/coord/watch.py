"""One watch on one member, from a given revision until something breaks it.

It ends with an exception rather than with silence: when the stream breaks, when the member loses
its leader, when nothing is heard although asked for, and when the revision to start from has been
compacted. Whoever uses it decides how to go on (:mod:`common.coord.mirror`).

Not promised: that an event is delivered once. Drop what is not newer than what was applied.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Final, Self

import grpc

from common.coord.member import Member
from common.coord.transport import ATTEMPT_TIMEOUT_S, Transport
from common.coord.wire import Event, Get, messages, range_end, watch_events
from common.model.errors import CoordUnavailable

SILENCE_S: Final = 10.0
"""After this long without a message the member is asked for one; after twice as long it is left."""


class Compacted(Exception):
    """The history from the revision asked for on is gone: list again. Stays in this package."""


class Watch:
    """An open watch; use it with ``async with`` and call :meth:`next` in a loop."""

    def __init__(self, transport: Transport, target: Get, *, start_revision: int) -> None:
        self._transport = transport
        self._target = target
        self._start_revision = start_revision
        self._member: Member | None = None
        self._call: Any = None
        self._reading: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        """Open the stream.

        Raises:
            CoordUnavailable: the current member does not answer; open another watch.
        """
        self._member, options = await self._transport.stream(timeout_s=ATTEMPT_TIMEOUT_S)
        key = self._target.key
        create = messages.WatchCreateRequest(
            key=key.encode(),
            range_end=range_end(key) if self._target.is_prefix else b"",
            start_revision=self._start_revision,
        )
        self._call = self._member.watch.Watch(**options)
        try:
            await self._write(messages.WatchRequest(create_request=create))
        except BaseException:
            self._call.cancel()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the stream."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def next(self) -> tuple[Event, ...]:
        """Return the next events, in order of their revisions; none when etcd had none to tell.

        Raises:
            Compacted: list again and watch from there.
            CoordUnavailable: the watch is over; resume from the last event with another.
        """
        response = await self._read()
        if response.compact_revision:
            raise Compacted
        if response.canceled:
            # An invalid token shows here, so the next watch authenticates anew.
            self._transport.forget()
            raise self._failed(CoordUnavailable(f"the watch was ended: {response.cancel_reason}"))
        return watch_events(response)

    async def _read(self) -> Any:
        for is_asked in (False, True):
            # A read is a task of its own: gRPC ends the stream of a read that is cancelled.
            if self._reading is None:
                self._reading = asyncio.create_task(self._call.read())
            await asyncio.wait({self._reading}, timeout=SILENCE_S)
            if self._reading.done():
                reading, self._reading = self._reading, None
                return self._response(reading)
            if not is_asked:
                progress = messages.WatchProgressRequest()
                await self._write(messages.WatchRequest(progress_request=progress))
        raise self._failed(CoordUnavailable("the watch is silent"))

    def _response(self, reading: asyncio.Task[Any]) -> Any:
        if reading.cancelled():
            raise self._failed(CoordUnavailable("the watch was closed"))
        try:
            response = reading.result()
        except messages.AioRpcError as error:
            raise self._failed(error) from error
        if response is grpc.aio.EOF:
            raise self._failed(CoordUnavailable("the watch ended"))
        return response

    async def _write(self, request: Any) -> None:
        try:
            await self._call.write(request)
        except (messages.AioRpcError, asyncio.InvalidStateError) as error:
            raise self._failed(CoordUnavailable(f"the watch broke: {error}")) from error

    def _failed(self, error: Exception) -> Exception:
        assert self._member is not None
        return self._transport.failed(self._member, error)
