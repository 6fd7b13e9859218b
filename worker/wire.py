"""One connection to a site, with what the HTTP library leaves open against hostile servers.

* Bytes that bring nothing are bounded: the header of an answer with all its interim ones (1xx),
  chunk extensions, trailers. The library bounds lines, and fields by their number, singly.
* What arrives when nothing was asked for closes the connection, so that it cannot pass for the
  answer to the next request. So does what follows a body of known length in the same piece: the
  page is whole, and what is too much of it is discarded (RFC 9112, 6.3). Not seen is the start of a
  header that came in one piece with the end of a chunked body; what follows it is no answer then.
* A body ends when its connection does, also where its framing turns out to be malformed.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.streams import StreamReader

MAX_IDLE_BYTES: Final = 262_144
"""Received in a row without an end of the header, or a byte of the body: what browsers allow."""
_HEADER_END: Final = re.compile(rb"[^\r\n]\r?\n\r?\n")
_LINE_ENDS: Final = (b"\r", b"\n")
_LONGEST_LINE_END: Final = 4


class Wire(ResponseHandler):
    """A connection, for as long as the library keeps it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, holds: object = None) -> None:
        """Prepare.

        Args:
            loop: the running one.
            holds: what must live as long as the connection.
        """
        super().__init__(loop)
        self._holds = holds
        self.ip: str | None = None
        """Address connected to."""
        self.exchanges = 0
        """Requests that were made over it."""
        self._answered = False
        """Whether the header of the present answer is there."""
        self._length: int | None = None
        """Bytes that its body is to have; None where its end is marked otherwise."""
        self._progress = -1
        """Bytes of the present body when there were last new ones."""
        self._idle_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.ip = str(peer[0]) if peer else None

    def set_response_params(self, **options: Any) -> None:
        """Begin with a request."""
        self.exchanges += 1
        self._answered, self._length, self._progress, self._idle_bytes = False, None, -1, 0
        super().set_response_params(**options)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Take the header of an answer; one behind the answer that was asked for is dropped.

        In one piece with the end of a body it comes when the connection waits for its next request
        already: the library gave it back at the body's last byte.
        """
        if self._answered:
            self.force_close()
            if self.transport is not None:
                self.transport.close()
            return
        if data[0].code >= 200 or data[0].code == 101:
            self._answered, self._length = True, _length_of(data[0])
        if data[0].code == 101:
            self.force_close()  # the library does so only where the header names a protocol
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived: a header by itself, then no more than is its body's.

        The library drops an answer if something that is none follows in the same piece.
        """
        start = 0
        while True:
            left = self._left()
            if left == 0 and start < len(data):
                self.close()
                return
            if self._answered:
                stop = len(data) if left is None else min(len(data), start + left)
            else:
                stop = _end_of_header(data, start)
            self._take(data[start:stop])
            start = stop
            if start == len(data) or self.transport is None or self.exception() is not None:
                return

    def _left(self) -> int | None:
        """Return how many bytes the answer lacks; None where only its framing tells."""
        if not self._answered:
            return None
        payload = self._payload
        if payload is None or payload.is_eof():
            return 0
        return None if self._length is None else max(0, self._length - payload.total_bytes)

    def _take(self, data: bytes) -> None:
        super().data_received(data)
        payload = self._payload
        progress = payload.total_bytes if self._answered and payload is not None else -1
        if progress != self._progress:
            self._progress, self._idle_bytes = progress, 0
            return
        self._idle_bytes += len(data)
        if self._idle_bytes > MAX_IDLE_BYTES and self.transport is not None:
            self._give_up()

    def _give_up(self) -> None:
        assert self.transport is not None
        self.transport.close()
        where = "between two bytes of the body" if self._answered else "in the header"
        said = f"more than {MAX_IDLE_BYTES} bytes {where}"
        self.set_exception(BadHttpMessage(said))
        if self._answered and self._payload is not None:
            self._payload.set_exception(aiohttp.ClientPayloadError(said))
            self._payload = None  # else the library ends it once more, as cut short

    def connection_lost(self, exc: BaseException | None) -> None:
        """End, and end a body the library does not end: one malformed later than its header."""
        content = self._payload
        super().connection_lost(exc)
        if content is not None and not content.is_eof() and content.exception() is None:
            fault = self.exception()
            content.set_exception(aiohttp.ClientPayloadError(getattr(fault, "message", str(fault))))


def _end_of_header(data: bytes, start: int) -> int:
    """Return where a header may end that what starts there is of; else the end of the data."""
    if data[start : start + 1] in _LINE_ENDS and start < _LONGEST_LINE_END:
        return start + 1  # the empty line may have begun in the piece before
    found = _HEADER_END.search(data, start)
    return found.end() if found else len(data)


def _length_of(message: RawResponseMessage) -> int | None:
    field = message.headers.get("Content-Length")
    if field is None or not field.isdecimal() or "Transfer-Encoding" in message.headers:
        return None
    return int(field)
