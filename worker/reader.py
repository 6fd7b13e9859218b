"""The program that reads heavy pages and sitemaps for a worker: a process of its own.

``python -m worker.reader`` takes requests on its standard input and gives answers on its output
until the input ends, as it does when the worker ends in whatever way. Each message is its length (4
bytes, big-endian) and msgpack. The links of a page go ahead of it in parts, so that the worker
never has to take in a million at once.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import BinaryIO, Final

import msgspec

from common.web import sitemap
from common.web.html import HtmlParser, Page
from common.web.sitemap_reader import Sitemap

LENGTH: Final = struct.Struct(">I")
PART: Final = 2_000
"""Links a message; taking one in stops the worker's event loop for less than a millisecond."""
MEMORY_BYTES: Final = 4 * 1024**3
"""Of address space: a fuse, far above what the readers' own bounds allow."""
CPU_S: Final = 120
"""Of processor time a request: a fuse for when the worker, which allows a minute, is gone."""
_NICE: Final = 5
"""The worker's event loop goes before."""


class PageRequest(msgspec.Struct, tag="page", frozen=True):
    """Read a page; the arguments of ``HtmlParser`` and its ``parse``."""

    body: bytes
    url: str
    content_type: str | None
    follow: frozenset[str]
    agent: str
    with_simhash: bool


class SitemapRequest(msgspec.Struct, tag="sitemap", frozen=True):
    """Read a sitemap."""

    body: bytes
    url: str


class Part(msgspec.Struct, tag="part", frozen=True, kw_only=True):
    """Some of what the answer holds."""

    links: list[str] = []
    nofollow: list[str] = []


class PageRead(msgspec.Struct, tag="page", frozen=True):
    """A page, its ``links`` and ``nofollow`` being what the parts before it held."""

    page: Page


class SitemapRead(msgspec.Struct, tag="sitemap", frozen=True):
    """A sitemap."""

    sitemap: Sitemap


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """Nothing could be read."""

    reason: str


Request = PageRequest | SitemapRequest
Answer = Part | PageRead | SitemapRead | Failed


class Reader:
    """Answers requests."""

    def __init__(self) -> None:
        self._parsers: dict[tuple[str, bool], HtmlParser] = {}

    def answers(self, request: Request) -> Iterator[Answer]:
        """Yield the messages that answer a request; the last one is no :class:`Part`."""
        try:
            if isinstance(request, SitemapRequest):
                found = sitemap.parse(request.body)
                yield SitemapRead(sitemap.resolved(found, request.url))
            else:
                yield from _in_parts(self._page(request))
        except Exception as error:  # noqa: BLE001 - hostile bytes; MemoryError is among them
            yield Failed(f"{type(error).__name__}: {error}")

    def _page(self, request: PageRequest) -> Page:
        key = request.agent, request.with_simhash
        parser = self._parsers.get(key)
        if parser is None:
            parser = HtmlParser(agent=request.agent, with_simhash=request.with_simhash)
            self._parsers[key] = parser
        return parser.parse(
            request.body,
            url=request.url,
            content_type=request.content_type,
            follow=request.follow,
        )


def _in_parts(page: Page) -> Iterator[Answer]:
    for links in _cut(page.links):
        yield Part(links=links)
    for nofollow in _cut(page.nofollow):
        yield Part(nofollow=nofollow)
    yield PageRead(replace(page, links=[], nofollow=frozenset()))


def _cut(found: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(found)
    while part := list(islice(rest, PART)):
        yield part


def main() -> None:
    """Answer until the input ends, or nobody takes answers any more."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # The worker's, also where they go to all its processes: it ends the input when it leaves.
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the worker was killed: end without a word
    _allow(resource.RLIMIT_AS, MEMORY_BYTES)
    os.nice(_NICE)
    reader, encode = Reader(), msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(Request).decode
    # A buffer of its own: with PYTHONUNBUFFERED there is none, and a signal would cut an answer.
    incoming, outgoing = sys.stdin.buffer, open(sys.stdout.fileno(), "wb", closefd=False)  # noqa: SIM115
    while (message := _received(incoming)) is not None:
        _allow(resource.RLIMIT_CPU, math.ceil(time.process_time()) + CPU_S)
        for answer in reader.answers(decode(message)):
            packed = encode(answer)
            outgoing.write(LENGTH.pack(len(packed)) + packed)
        outgoing.flush()
        del message
        _give_back_memory()


def _allow(kind: int, most: int) -> None:
    """Limit what this process may use; where less is allowed it stays so."""
    _, hard = resource.getrlimit(kind)
    soft = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def _give_back_memory() -> None:
    """Let the system have what was freed: the C library keeps it, after a large page all of it."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _received(incoming: BinaryIO) -> bytes | None:
    head = incoming.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    message = incoming.read(length)
    return message if len(message) == length else None


if __name__ == "__main__":
    main()
