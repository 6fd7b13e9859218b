"""Where a URL lies in the seen-set of its shard: one hash, cut into independent slices.

The seen-set of a shard grows in layers (``offer.lua`` asks and updates them); layer ``n`` holds
:func:`capacity` URLs.

Mode ``exact``: buckets of 64-bit fingerprints, sets of integers that Redis packs; a bucket is what
begins with the same bits.

Mode ``bloom``: a Bloom filter, at as many bits a URL as the stated rate needs. It is cut into
chunks, these into blocks and these into eight parts of six words; a URL chooses a block, a word in
each of its parts, and sets two bits in each. What that costs is one read a URL and layer, not one a
bit. The rates of all layers add up; each of the first eight may use an eighth of it, later ones
ever less, so that the sum stays below. Strings are a little smaller than 8 MB, because allocating a
larger one would block the server. Just after a layer was begun its filter is larger than what is in
it: up to four times what all URLs need.
"""

from __future__ import annotations

import math
from functools import lru_cache
from struct import Struct
from typing import Literal, NamedTuple

import xxhash

from common.frontier.keys import TaskKeys

Mode = Literal["exact", "bloom"]

CHUNK_BYTES = 768
PIECE_CHUNKS = 8 * 1024 * 1024 // CHUNK_BYTES
BUCKET_URLS = 384
"""Mean fingerprints a full bucket; well under the 512 up to which Redis packs a set of integers."""
FIRST_BUCKETS = 16
GROWTH = 4
FULL_SHARES = 8
"""Layers that may each use 1/8 of the stated rate."""

_M64 = (1 << 64) - 1
_WORD_BITS = 32
_BITS_A_WORD = 2
WORDS = 8
"""Words of its block that a URL sets bits in, one in each part."""
PART_WORDS = 6
BLOCK_BYTES = 4 * PART_WORDS * WORDS
CHUNK_BLOCKS = CHUNK_BYTES // BLOCK_BYTES
_BITS = Struct("<IH" + WORDS * "Bi")
"""What a script is told of a URL's bits: spot, block in the chunk, pairs of word and mask."""


def capacity(layer: int) -> int:
    """Return how many URLs layer ``layer`` takes before the next one is begun."""
    return FIRST_BUCKETS * int(GROWTH**layer) * BUCKET_URLS


def buckets_of(layer: int) -> int:
    """Return how many buckets of fingerprints a layer has."""
    return capacity(layer) // BUCKET_URLS


def rate_of_layer(rate: float, layer: int) -> float:
    """Return what layer ``layer`` may use of the stated rate; the shares add up to less than it."""
    if layer < FULL_SHARES - 1:
        return rate / FULL_SHARES
    return math.ldexp(rate / FULL_SHARES, FULL_SHARES - 2 - layer)


@lru_cache(maxsize=256)
def chunks_of(rate: float, layer: int) -> int:
    """Return how many chunks the filter of a layer has."""
    return math.ceil(capacity(layer) * bits_for(rate_of_layer(rate, layer)) / (8 * CHUNK_BYTES))


@lru_cache(maxsize=256)
def bits_for(rate: float) -> float:
    """Return the bits per URL at which a filter of mode ``bloom``, once full, has this rate."""
    low, high = 4.0, 256.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if false_positive_rate(middle) > rate else (low, middle)
    return high


@lru_cache(maxsize=4096)
def false_positive_rate(bits: float) -> float:
    """Return the chance that a filter of mode ``bloom`` holds a URL never put into it.

    The loads of chunks, of blocks within a chunk and of words within a block are all uneven, which
    makes such a filter worse than the textbook one; each is taken into account.

    Args:
        bits: of the filter per URL that is in it.
    """
    a_chunk = 8 * CHUNK_BYTES / bits
    spread = math.sqrt(3 / a_chunk)
    # Three points stand for the normal distribution of the chunks' loads (Gauss-Hermite).
    loads = ((1 - spread, 1 / 6), (1.0, 2 / 3), (1 + spread, 1 / 6))
    return sum(
        weight * _block_rate(a_chunk * load / CHUNK_BLOCKS) for load, weight in loads if load > 0
    )


def _block_rate(mean: float) -> float:
    """Return the chance that all words of a URL hit in a block that holds ``mean`` URLs."""
    total, weight = 0.0, math.exp(-mean)
    for count in range(int(mean + 12 * math.sqrt(mean) + 20)):
        if count:
            weight *= mean / count
        total += weight * _word_rate(count) ** WORDS
    return total


@lru_cache(maxsize=4096)
def _word_rate(picks: int) -> float:
    """Return the chance that two random bits of a word are set, after picks of its part."""
    other = 1 - 1 / PART_WORDS

    def avoided(bits: int) -> float:
        return (other + (1 - other) * (1 - bits / _WORD_BITS) ** _BITS_A_WORD) ** picks

    one, two = avoided(1), avoided(2)
    same = 1 / _WORD_BITS  # of two random bits both may be the same
    return same * (1 - one) + (1 - same) * (1 - 2 * one + two)


def estimated_rate(rate: float, *, layers: int, inserted: int) -> float:
    """Return the chance that mode ``bloom`` takes a new URL for a known one, as it is filled now.

    Args:
        rate: stated.
        layers: begun so far.
        inserted: URLs in the newest one.
    """
    if layers < 1:
        return 0.0
    full = sum(_filled_rate(rate, layer, capacity(layer)) for layer in range(layers - 1))
    return full + _filled_rate(rate, layers - 1, inserted)


@lru_cache(maxsize=1024)
def _filled_rate(rate: float, layer: int, urls: int) -> float:
    if urls == 0:
        return 0.0
    return false_positive_rate(8 * CHUNK_BYTES * chunks_of(rate, layer) / urls)


class Print(NamedTuple):
    """The hash of a URL, as the scripts want it."""

    unsigned: int
    """The fingerprint."""
    bits: bytes
    """Where its bits are in a filter; empty in mode exact."""

    @property
    def fingerprint(self) -> int:
        """The fingerprint as a signed number of 64 bits, as Redis packs sets of integers."""
        return signed(self.unsigned)


def signed(unsigned: int) -> int:
    """Return a number of 64 bits as the signed one of the same bits."""
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


_BIT = [1 << at if at < 31 else -(1 << 31) for at in range(32)]
_MASKS = [_BIT[at & 31] | _BIT[at >> 5] for at in range(1 << 10)]
"""The words of Lua's bit library are signed."""
_WORD = [1 + (PART_WORDS * at >> 6) for at in range(64)]
"""Which word of a part, from 1."""


def fingerprint(url: str, mode: Mode) -> Print:
    """Return the hash of a canonical URL (xxh3; stable for ever, part of the layout version)."""
    raw = url.encode()
    both = xxhash.xxh3_128_intdigest(raw)
    b = both >> 64
    if mode == "exact":
        return Print(b, b"")
    a = both & _M64
    other = xxhash.xxh3_64_intdigest(raw, 1)
    bits = _BITS.pack(
        other >> 32, other & 3,
        _WORD[a & 63], _MASKS[a >> 6 & 1023], 6 + _WORD[a >> 16 & 63], _MASKS[a >> 22 & 1023],
        12 + _WORD[a >> 32 & 63], _MASKS[a >> 38 & 1023], 18 + _WORD[a >> 48 & 63], _MASKS[a >> 54],
        24 + _WORD[b & 63], _MASKS[b >> 6 & 1023], 30 + _WORD[b >> 16 & 63], _MASKS[b >> 22 & 1023],
        36 + _WORD[b >> 32 & 63], _MASKS[b >> 38 & 1023], 42 + _WORD[b >> 48 & 63], _MASKS[b >> 54],
    )  # fmt: skip
    return Print(b, bits)


class SeenLayout:
    """The filters or buckets of one shard, for scripts that name every key they touch."""

    def __init__(self, keys: TaskKeys, *, mode: Mode, rate: float) -> None:
        self._keys = keys
        self.mode: Mode = mode
        self._rate = rate
        self._pieces: list[list[str]] = []

    def chunks(self, layer: int) -> int:
        """Return how many chunks the filter of a layer has; 0 in mode exact."""
        return chunks_of(self._rate, layer) if self.mode == "bloom" else 0

    def pieces(self, layer: int) -> list[str]:
        """Return the keys of a layer's filter, in order."""
        while len(self._pieces) <= layer:
            number = len(self._pieces)
            count = -(-self.chunks(number) // PIECE_CHUNKS)
            self._pieces.append([self._keys.filter_piece(number, at) for at in range(count)])
        return self._pieces[layer]

    def bucket(self, layer: int, number: int) -> str:
        """Return the key of a bucket."""
        return self._keys.fingerprints(layer, number)

    def buckets(self, seen: Print, layers: int) -> list[str]:
        """Return the key of the URL's bucket in each layer, newest first."""
        concerned = Buckets(self, layers)
        concerned.numbers(seen)
        return concerned.names

    def chunk(self, seen: Print, layer: int) -> tuple[str, int]:
        """Return the key and the first byte of the URL's chunk in a layer."""
        (spot,) = _SPOT.unpack_from(seen.bits)
        piece, at = divmod(spot * self.chunks(layer) >> 32, PIECE_CHUNKS)
        return self.pieces(layer)[piece], at * CHUNK_BYTES


_SPOT = Struct("<I")


def _shift(layer: int) -> int:
    """Return by how much a fingerprint is shifted to leave the number of its bucket."""
    return 65 - buckets_of(layer).bit_length()  # there are a power of two


class Buckets:
    """The distinct buckets of one script call, numbered from 1 as they are met."""

    def __init__(self, layout: SeenLayout, layers: int) -> None:
        self._layout = layout
        newest_first = range(layers - 1, -1, -1) if layout.mode == "exact" else ()
        self._layers = [(layer, _shift(layer)) for layer in newest_first]
        self._known: dict[tuple[int, int], int] = {}

    def numbers(self, seen: Print) -> list[int]:
        """Return the number of the URL's bucket in each layer, newest first; none in mode bloom."""
        known, fingerprint = self._known, seen.unsigned
        return [
            known.setdefault((layer, fingerprint >> shift), len(known) + 1)
            for layer, shift in self._layers
        ]

    @property
    def names(self) -> list[str]:
        """The keys, in order of their numbers."""
        return [self._layout.bucket(layer, number) for layer, number in self._known]


def holds(chunk: bytes | bytearray, seen: Print) -> bool:
    """Tell whether all bits of a URL are set in its chunk."""
    _, block, *pairs = _BITS.unpack(seen.bits)
    for word, mask in zip(pairs[::2], pairs[1::2], strict=True):
        first = block * BLOCK_BYTES + 4 * (word - 1)
        raw = chunk[first : first + 4].ljust(4, b"\0")
        if int.from_bytes(raw, "little", signed=True) & mask != mask:
            return False
    return True
