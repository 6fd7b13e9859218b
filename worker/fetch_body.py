"""Reads one response body: refuses it early, decodes it, and stops at the limits.

Memory stays near the size limit whatever the server sends: pieces are decoded as they come, and no
piece can decode to more than the limit leaves room for.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

import aiohttp

from worker.content_coding import Decoder, codings_of, open_decoder
from worker.fetch_errors import (
    EarlyEndFault,
    FetchFault,
    RefusedTypeFault,
    TooLargeFault,
    TooSlowFault,
)
from worker.heavy import Load
from worker.web_session import Answer

RATE_WINDOW_S: Final = 10.0
_LATE_S: Final = 1.0
"""Later than this it was not the server that stopped, but this process: with its machine, say."""
_CODING_OVERHEAD_BYTES: Final = 65_536
"""How much longer than its content a compressed body may be: some content does not compress."""


class Limits(NamedTuple):
    """What of a body is wanted."""

    max_body: int
    """Decoded bytes."""
    accept: tuple[str, ...]
    """Media types, lower case, ``image/*`` allowed; none: all."""
    cut: bool
    """Keep the first part of a longer body instead of failing."""
    min_rate: int = 0
    """Bytes a second, on the wire, over ``RATE_WINDOW_S``; 0 = no limit."""


class Body(NamedTuple):
    """What came of a body; with a failure, ``content`` is what had arrived before it."""

    content: bytes = b""
    truncated: bool = False
    failure: Exception | None = None
    had_no_room: bool = False
    """It was left unread, since the process holds too much already."""


class _NoRoomError(Exception):
    """The process holds too much already."""


class _Rate:
    """Watches that a body does not trickle, nor stop."""

    def __init__(self, least: int) -> None:
        self._least = least
        self.received = 0
        self._until = time.monotonic() + RATE_WINDOW_S
        self._before = 0

    async def next_piece(self, stream: aiohttp.StreamReader) -> bytes:
        """Return what comes next.

        Raises:
            TooSlowFault: too little has come since the window began, or nothing.
            TimeoutError: the request's own time limit.
            ClientError: the connection or the framing failed.
        """
        if not self._least:
            return await stream.readany()
        while True:
            window = asyncio.timeout(max(0.0, self._until - time.monotonic()))
            try:
                async with window:
                    return await stream.readany()
            except TimeoutError:
                if not window.expired():
                    raise
                self.note(0)

    def note(self, size: int) -> None:
        """Take note of bytes received.

        Raises:
            TooSlowFault: there were too few since the window began.
        """
        self.received += size
        now = time.monotonic()
        if not self._least or now < self._until:
            return
        is_late = now - self._until > _LATE_S
        if not is_late and self.received - self._before < self._least * RATE_WINDOW_S:
            raise TooSlowFault(self._least)
        self._until, self._before = now + RATE_WINDOW_S, self.received


async def read_body(answer: Answer, limits: Limits, load: Load | None = None) -> Body:
    """Read and decode the body within the limits.

    A body that is refused or cannot be decoded is left unread; its connection is closed when the
    response is released.

    Args:
        answer: whose body.
        limits: what of it is wanted.
        load: asked for room as the body grows.
    """
    stream = answer.content
    content: bytes | bytearray = b""
    failure: Exception | None = None
    rate = _Rate(limits.min_rate)
    try:
        decoder = _begin(answer, limits)
        _take_room(load, min(answer.content_length or 0, limits.max_body))
        while failure is None and not stream.at_eof():
            try:
                chunk = await rate.next_piece(stream)
            except TimeoutError as error:
                failure, chunk = error, b""
            except aiohttp.ClientError as error:
                failure = error
                chunk = stream._read_nowait(-1)  # noqa: SLF001 - readany no longer gives what it holds
            rate.note(len(chunk))
            if decoder is not None and chunk:
                chunk = decoder.feed(chunk)
            content = _joined(content, chunk)
            if len(content) > limits.max_body and limits.cut:
                return Body(content=bytes(content[: limits.max_body]), truncated=True)
            if max(len(content), rate.received - _CODING_OVERHEAD_BYTES) > limits.max_body:
                return Body(failure=TooLargeFault(limits.max_body))
            _take_room(load, len(content))
    except _NoRoomError:
        return Body(had_no_room=True)
    except FetchFault as error:
        return Body(failure=error)
    is_unfinished = decoder is not None and rate.received > 0 and not decoder.is_complete
    if failure is None and not _is_framed(answer) and (is_unfinished or answer.has_failed()):
        failure = EarlyEndFault()
    # Framed and yet unfinished is a fault of the server's encoder: the page is all there is.
    return Body(bytes(content), is_unfinished or failure is not None, failure)


def _take_room(load: Load | None, size: int) -> None:
    if load is not None and not load.fits(size):
        raise _NoRoomError


def _joined(content: bytes | bytearray, chunk: bytes) -> bytes | bytearray:
    if not content:
        return chunk  # the usual page comes in one piece, and is not copied
    content = bytearray(content) if isinstance(content, bytes) else content
    content += chunk
    return content


def text_field(answer: Answer, name: str) -> str | None:
    """Return a header field as text that can be stored: bytes that are no UTF-8 read as Latin-1."""
    field = answer.headers.get(name)
    if field is None or field.isascii():
        return field
    sent = field.encode("utf-8", "surrogateescape")
    try:
        return sent.decode()
    except UnicodeDecodeError:
        return sent.decode("latin-1")


def _begin(answer: Answer, limits: Limits) -> Decoder | None:
    """Return what decodes the body; raise if the header alone tells that it is not wanted."""
    if answer.status == 101:
        raise aiohttp.ClientError("the server changed the protocol unasked")
    if limits.accept and 200 <= answer.status < 300:
        media_type = (text_field(answer, "Content-Type") or "").partition(";")[0].strip().lower()
        if media_type and not _is_accepted(media_type, limits.accept):
            raise RefusedTypeFault(f"the media type {media_type} is not accepted")
    if "Content-Encoding" in answer.headers:
        codings = codings_of(answer.headers.getall("Content-Encoding"))
        if codings:
            return open_decoder(codings, limit_bytes=limits.max_body)
    if (answer.content_length or 0) > limits.max_body and not limits.cut:
        raise TooLargeFault(limits.max_body)
    return None


def _is_accepted(media_type: str, accept: tuple[str, ...]) -> bool:
    family = media_type.partition("/")[0] + "/*"
    return any(pattern in (media_type, family, "*/*", "*") for pattern in accept)


def _is_framed(answer: Answer) -> bool:
    """Tell whether the end of the body was marked, not just the end of the connection."""
    return answer.content_length is not None or "Transfer-Encoding" in answer.headers
