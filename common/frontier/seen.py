"""Where a URL lies in the seen-set of its shard: one hash, cut into independent slices.

The seen-set of a shard is a Bloom filter that grows in layers and, in mode ``exact``, buckets of
64-bit fingerprints that confirm every "seen" (``offer.lua`` tests and updates both). Layer ``n``
holds :func:`capacity` URLs. A filter is made of 32-byte blocks; a URL sets one bit in each of the
eight words of one block (a split-block Bloom filter). Mode ``bloom`` has no fingerprints and two
independent filters a layer instead, so that the rate of false "seen" is the product of both.
Strings hold at most 8 MB, because allocating a larger one would block the server.

Of the 128-bit hash, each 64-bit half serves one filter: five bits of each byte choose the bit of a
word, the other three bits of the eight bytes choose the block. In mode ``exact`` the second half is
the fingerprint.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import xxhash

from common.frontier.keys import TaskKeys

BLOCK_BYTES = 32
PIECE_BLOCKS = 8 * 1024 * 1024 // BLOCK_BYTES
BUCKET_URLS = 384
"""Mean fingerprints a full bucket; well under the 512 up to which Redis packs a set of integers."""
FIRST_BUCKETS = 16
GROWTH = 4

_M64 = (1 << 64) - 1
_BLOCK_BITS = 0xE0E0E0E0E0E0E0E0
_SPREAD = 0x9E3779B97F4A7C15  # odd; spreads the three bits of each byte over the upper half


class Layer(NamedTuple):
    """Sizes of one layer."""

    number: int
    buckets: int
    blocks: int


def capacity(layer: int) -> int:
    """Return how many URLs layer ``layer`` takes before the next one is begun."""
    return FIRST_BUCKETS * int(GROWTH**layer) * BUCKET_URLS


def filter_bits(mode: Literal["exact", "bloom"], layer: int) -> int:
    """Return the bits per URL of one filter of a layer.

    Exact mode needs only a cheap "new": about 0.1 % of false hits cost one look-up each. In mode
    bloom the rates of all layers add up, so that each layer is a little stricter than the last.
    """
    return 16 if mode == "exact" else 20 + 2 * layer


@lru_cache(maxsize=64)
def layer_of(mode: Literal["exact", "bloom"], number: int) -> Layer:
    """Return the sizes of a layer."""
    urls = capacity(number)
    blocks = urls * filter_bits(mode, number) // (8 * BLOCK_BYTES)
    return Layer(number, urls // BUCKET_URLS, blocks)


class Print(NamedTuple):
    """The hash of a URL, as the scripts want it."""

    fingerprint: int
    """Signed 64-bit, as Redis packs sets of integers."""
    halves: tuple[bytes, bytes]
    spots: tuple[int, int]
    """One number below 2^32 a half, from which the block follows for any filter size."""


def fingerprint(url: str) -> Print:
    """Return the hash of a canonical URL (xxh3, 128 bits)."""
    digest = xxhash.xxh3_128_digest(url.encode())
    low, high = digest[:8], digest[8:]
    a = int.from_bytes(low, "little")
    b = int.from_bytes(high, "little")
    spot_a = ((a & _BLOCK_BITS) * _SPREAD & _M64) >> 32
    spot_b = ((b & _BLOCK_BITS) * _SPREAD & _M64) >> 32
    signed = b - (1 << 64) if b >> 63 else b
    return Print(signed, (low, high), (spot_a, spot_b))


class SeenLayout:
    """The filters and buckets of one shard, for scripts that name every key they touch."""

    def __init__(self, keys: TaskKeys, *, mode: Literal["exact", "bloom"]) -> None:
        self._keys = keys
        self._mode: Literal["exact", "bloom"] = mode
        self.filters = 1 if mode == "exact" else 2
        self.confirms = mode == "exact"

    def places(self, seen: Print, layers: int) -> list[tuple[list[tuple[str, int]], str | None]]:
        """Return, newest layer first, (key, first byte) per filter and the bucket's key."""
        places = []
        for number in range(layers - 1, -1, -1):
            layer = layer_of(self._mode, number)
            spots = []
            for which in range(self.filters):
                block = seen.spots[which] * layer.blocks >> 32
                piece, at = divmod(block, PIECE_BLOCKS)
                spots.append((self._keys.filter_piece(number, which, piece), at * BLOCK_BYTES))
            bucket = None
            if self.confirms:
                at = (seen.fingerprint & _M64) * layer.buckets >> 64
                bucket = self._keys.fingerprints(number, at)
            places.append((spots, bucket))
        return places
