"""The queued form of a URL: small, because there are millions of them.

An item is msgpack ``[path, depth, shared, suffix, attempt, owners]``, without its end where that is
as for a seed's first try. The host is the queue it lies in. The referrer is stored as the length of
its common prefix with the URL and the rest, since most links stay near the page they stand on;
``shared`` is -1 for a seed. A sitemap, and a page that one names, have three elements more: level
of the sitemap (0 = a page), lastmod, priority. A page to be visited again has a tenth element, what
is known of it from earlier visits (``visits.py``), and an eleventh, ``true``, where one of these
has used up its page of the budgets: scripts know such an item by its first byte. Above the lower 32
bits of the depth stands how many redirects in a row led to the URL.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from common.model.ids import HostKey

_DEPTH_BITS: Final = 32

_encode = msgspec.msgpack.Encoder().encode


class _Stored(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    path: str
    depth: int
    shared: int = -1
    suffix: str = ""
    attempt: int = 1
    owners: int = 0
    sitemap: int = 0
    lastmod: str | None = None
    priority: float | None = None
    known: bytes = b""
    is_paid: bool = False


_decode = msgspec.msgpack.Decoder(_Stored).decode


class Item(NamedTuple):
    """A URL on its way through the frontier."""

    host: HostKey
    path: str
    depth: int
    referrer: str | None
    attempt: int = 1
    """The try this item is waiting for, from 1."""
    owners: int = 0
    """Owners that lost it in flight."""
    sitemap: int = 0
    """0 for a page; for a sitemap how many lead to it: 1 for one of its host's own."""
    lastmod: str | None = None
    """What the sitemap that names the page says of it; likewise ``priority``, from 0 to 1."""
    priority: float | None = None
    known: bytes = b""
    """Of a page that is visited again: what earlier visits found (``visits.py``)."""
    is_paid: bool = False
    """One of those visits has used up its page of the budgets."""
    redirects: int = 0
    """In a row, that led to it."""

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.host + self.path

    @property
    def identity(self) -> str:
        """What the seen-set knows it by: a URL may be a page and, apart from that, a sitemap."""
        return f"sitemap {self.url}" if self.sitemap else self.host + self.path


def encode(item: Item) -> bytes:
    """Return the queued form."""
    host, path, depth, referrer, attempt, owners, *hints, known, is_paid, redirects = item
    depth |= redirects << _DEPTH_BITS
    shared = -1 if referrer is None else _shared_prefix(host + path, referrer)
    suffix = "" if referrer is None else referrer[shared:]
    if known:
        again = (known, True) if is_paid else (known,)
        return _encode((path, depth, shared, suffix, attempt, owners, *hints, *again))
    if item.sitemap or item.lastmod is not None or item.priority is not None:
        return _encode((path, depth, shared, suffix, attempt, owners, *hints))
    if attempt != 1 or owners != 0:
        return _encode((path, depth, shared, suffix, attempt, owners))
    return _encode((path, depth) if referrer is None else (path, depth, shared, suffix))


def _shared_prefix(one: str, other: str) -> int:
    """Return the length of the common prefix, by bisection (a loop would cost more)."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def may_have_owners(raw: bytes) -> bool:
    """Tell whether an item may have outlived owners, by the length of its array alone."""
    return raw[0] not in _WITHOUT_OWNERS


_WITHOUT_OWNERS = (0x92, 0x94)
"""How an array of two, or of four, begins: no owners are written."""


def decode(host: HostKey, raw: bytes) -> Item:
    """Return the item that lay in the queue of ``host``.

    Raises:
        msgspec.DecodeError: the bytes were not written by :func:`encode`.
    """
    it = _decode(raw)
    redirects, depth = divmod(it.depth, 1 << _DEPTH_BITS)
    referrer = None if it.shared < 0 else (host + it.path)[: it.shared] + it.suffix
    return Item(
        host, it.path, depth, referrer, it.attempt, it.owners, it.sitemap, it.lastmod, it.priority,
        it.known, it.is_paid, redirects,
    )  # fmt: skip
