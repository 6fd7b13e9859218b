"""The queued form of a URL: small, because there are millions of them.

An item is msgpack ``[path, depth, shared, suffix, attempt, owners]``. The host is the queue it lies
in. The referrer is stored as the length of its common prefix with the URL and the rest, since most
links stay near the page they stand on; ``shared`` is -1 for a seed.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from common.model.ids import HostKey

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, int, int, str, int, int]).decode


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

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.host + self.path


def encode(item: Item) -> bytes:
    """Return the queued form."""
    host, path, depth, referrer, attempt, owners = item
    if referrer is None:
        return _encode((path, depth, -1, "", attempt, owners))
    shared = _shared_prefix(host + path, referrer)
    return _encode((path, depth, shared, referrer[shared:], attempt, owners))


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


def decode(host: HostKey, raw: bytes) -> Item:
    """Return the item that lay in the queue of ``host``.

    Raises:
        msgspec.DecodeError: the bytes were not written by :func:`encode`.
    """
    path, depth, shared, suffix, attempt, owners = _decode(raw)
    referrer = None if shared < 0 else (host + path)[:shared] + suffix
    return Item(host, path, depth, referrer, attempt, owners)
