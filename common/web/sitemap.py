"""Sitemaps: which pages and further sitemaps a file names, whatever shape it is in.

Understood are the sitemap protocol (urlset, sitemapindex) with any namespace or none, RSS and Atom
feeds, and plain text with a URL a line; each also as gzip, however it is labelled: bytes decide.

Memory is bounded: a reader holds a piece of text and what it has found so far, at most
``MAX_ENTRIES`` pages and ``MAX_CHILDREN`` sitemaps; more input than ``MAX_BYTES`` (decoded) is not
read. Nothing raises on hostile input.
"""

from __future__ import annotations

import zlib
from typing import Final

from common.web.sitemap_reader import Entry, Reader, Sitemap
from common.web.url import canonicalize

MAX_BYTES: Final = 52_428_800
"""Decoded; what the protocol allows a file to have (50 MiB)."""
_PIECE_BYTES: Final = 65_536
_MAX_MEMBERS: Final = 1_000
_USUAL_PRIORITY: Final = 0.5
"""What the protocol says a page without one has."""


def parse(body: bytes) -> Sitemap:
    """Return what a sitemap names.

    Args:
        body: The content as received, content coding undone.
    """
    reader = Reader()
    for piece in _pieces(body, reader):
        reader.feed(piece)
        if reader.is_full:
            break
    return reader.close()


def resolved(found: Sitemap, base: str) -> Sitemap:
    """Return what can be crawled of it, by canonical URLs.

    Pages stand by priority, then newest first, those without a date last; where a sitemap says
    neither, they keep its order.

    Args:
        found: by :func:`parse`.
        base: URL of the sitemap.
    """
    # As it is written, a date sorts by its characters.
    newest = sorted(found.pages, key=lambda one: one.lastmod or "", reverse=True)
    ranked = sorted(newest, key=_lateness)
    return found._replace(pages=_canonical(ranked, base), children=_canonical(found.children, base))


def _lateness(entry: Entry) -> float:
    return -(_USUAL_PRIORITY if entry.priority is None else entry.priority)


def _canonical(entries: list[Entry], base: str) -> list[Entry]:
    return [
        one._replace(url=url) for one in entries if (url := canonicalize(one.url, base)) is not None
    ]


def _pieces(body: bytes, reader: Reader) -> list[bytes] | _Unpacked:
    if body[:2] == b"\x1f\x8b":
        return _Unpacked(body, reader)
    return [
        body[at : at + _PIECE_BYTES] for at in range(0, min(len(body), MAX_BYTES), _PIECE_BYTES)
    ]


class _Unpacked:
    """The pieces of a gzip file, of one member or several; what cannot be undone ends it."""

    def __init__(self, body: bytes, reader: Reader) -> None:
        self._body = memoryview(body)
        self._reader = reader

    def __iter__(self) -> _Unpacked:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._at = self._given = 0
        self._members = 1
        self._tail = b""
        return self

    def __next__(self) -> bytes:
        while self._given < MAX_BYTES:
            data = self._tail or bytes(self._body[self._at : self._at + _PIECE_BYTES])
            if not self._tail:
                self._at += len(data)
            if not data:
                self._reader.is_whole = self._reader.is_whole and self._member.eof
                raise StopIteration
            try:
                piece = self._member.decompress(data, _PIECE_BYTES)
            except zlib.error:
                self._reader.is_whole = False
                raise StopIteration from None
            self._tail = self._member.unconsumed_tail
            if self._member.eof:
                self._next_member()
            if piece:
                self._given += len(piece)
                return piece
        self._reader.is_whole = False
        raise StopIteration

    def _next_member(self) -> None:
        rest = self._member.unused_data
        if rest[:2] == b"\x1f\x8b" or (
            not rest and bytes(self._body[self._at : self._at + 2]) == b"\x1f\x8b"
        ):
            self._members += 1
            if self._members <= _MAX_MEMBERS:
                self._member, self._tail = zlib.decompressobj(zlib.MAX_WBITS | 16), rest
                return
        self._at, self._tail = len(self._body), b""
