"""Where a URL lies in the seen-set of its shard: one hash, cut into independent slices.

The seen-set of a shard grows in layers (``offer.lua`` asks and updates them); layer ``n`` holds
:func:`capacity` URLs.

Mode ``exact``: buckets of 64-bit fingerprints, sets of integers that Redis packs; a bucket is what
begins with the same bits.

Mode ``bloom``: a Bloom filter, at as many bits a URL as the stated rate needs. Its buckets are
strings of blocks, each of six parts of six words; a URL chooses a bucket, a block, a word in each
of its parts, and sets three bits in each. What that costs is one read a URL and layer, not one a
bit. The rates of all layers add up; each of the first eight may use an eighth of it, later ones
ever less, so that the sum stays below. Buckets are small, so that the server allocates each at once
and an offset in one is one of few strings that ``offer.lua`` need not print. Just after a layer was
begun its filter is larger than what is in it: up to four times what all URLs need.
"""

from __future__ import annotations

import math
from functools import lru_cache
from struct import Struct
from typing import Literal, NamedTuple

import xxhash

from common.frontier.keys import TaskKeys

Mode = Literal["exact", "bloom"]

BUCKET_URLS = 384
"""Mean fingerprints a full bucket; well under the 512 up to which Redis packs a set of integers."""
FIRST_BUCKETS = 16
GROWTH = 4
FULL_SHARES = 8
"""Layers that may each use 1/8 of the stated rate."""

_WORD_BITS = 32
BITS_A_WORD = 3
WORDS = 6
"""Words of its block that a URL sets bits in, one in each part."""
PART_WORDS = 6
BLOCK_BYTES = 4 * PART_WORDS * WORDS
BUCKET_BLOCKS = 56
BUCKET_BYTES = BLOCK_BYTES * BUCKET_BLOCKS
"""Of a filter; just under the 8 KB that the server allocates for it."""
_BITS = Struct("<B" + WORDS * "Bi")
"""What a script is told of a URL's bits: block in the bucket, pairs of first byte and mask; blocks
and bytes are counted from 1."""


def capacity(layer: int) -> int:
    """Return how many URLs layer ``layer`` takes before the next one is begun."""
    return FIRST_BUCKETS * int(GROWTH**layer) * BUCKET_URLS


@lru_cache(maxsize=256)
def buckets_of(layer: int, mode: Mode, rate: float) -> int:
    """Return how many buckets a layer has; ``rate`` counts in mode ``bloom`` only."""
    if mode == "exact":
        return capacity(layer) // BUCKET_URLS
    return math.ceil(capacity(layer) * bits_for(rate_of_layer(rate, layer)) / (8 * BUCKET_BYTES))


def rate_of_layer(rate: float, layer: int) -> float:
    """Return what layer ``layer`` may use of the stated rate; the shares add up to less than it."""
    if layer < FULL_SHARES - 1:
        return rate / FULL_SHARES
    return math.ldexp(rate / FULL_SHARES, FULL_SHARES - 2 - layer)


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

    The loads of buckets, of blocks within a bucket and of words within a block are all uneven,
    which makes such a filter worse than the textbook one; each is taken into account.

    Args:
        bits: of the filter per URL that is in it.
    """
    a_bucket = 8 * BUCKET_BYTES / bits
    spread = math.sqrt(3 / a_bucket)
    # Three points stand for the normal distribution of the buckets' loads (Gauss-Hermite).
    loads = ((1 - spread, 1 / 6), (1.0, 2 / 3), (1 + spread, 1 / 6))
    return sum(
        weight * _block_rate(a_bucket * load / BUCKET_BLOCKS) for load, weight in loads if load > 0
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
    """Return the chance that three random bits of a word are set, after picks of its part."""
    other = 1 - 1 / PART_WORDS

    def avoided(bits: int) -> float:
        return (other + (1 - other) * (1 - bits / _WORD_BITS) ** BITS_A_WORD) ** picks

    one, two, three = avoided(1), avoided(2), avoided(3)
    # Of three random bits all may be the same, or two of them.
    alone = 1 / _WORD_BITS**2
    apart = (1 - 1 / _WORD_BITS) * (1 - 2 / _WORD_BITS)
    set_apart = 1 - 3 * one + 3 * two - three
    return alone * (1 - one) + (1 - alone - apart) * (1 - 2 * one + two) + apart * set_apart


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
    return false_positive_rate(8 * BUCKET_BYTES * buckets_of(layer, "bloom", rate) / urls)


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
"""The words of Lua's bit library are signed."""
_TWO_BITS = [_BIT[at & 31] | _BIT[at >> 5] for at in range(1 << 10)]
_WORD = [4 * (PART_WORDS * at >> 6) for at in range(64)]
"""The first byte of a word in its part."""


def fingerprint(url: str, mode: Mode) -> Print:
    """Return the hash of a canonical URL (xxh3; stable for ever, part of the layout version)."""
    raw = url.encode()
    print_ = xxhash.xxh3_128_intdigest(raw) >> 64
    if mode == "exact":
        return Print(print_, b"")
    # Not the other half: of long URLs that is what shard_of goes by, and alike within a shard.
    a, b = divmod(xxhash.xxh3_128_intdigest(raw, 1), 1 << 64)
    bits = _BITS.pack(
        1 + ((print_ & 0xFFFF) * BUCKET_BLOCKS >> 16),
        1 + _WORD[a & 63], _TWO_BITS[a >> 6 & 1023] | _BIT[a >> 16 & 31],
        25 + _WORD[a >> 21 & 63], _TWO_BITS[a >> 27 & 1023] | _BIT[a >> 37 & 31],
        49 + _WORD[a >> 42 & 63], _TWO_BITS[a >> 48 & 1023] | _BIT[a >> 58 & 31],
        73 + _WORD[b & 63], _TWO_BITS[b >> 6 & 1023] | _BIT[b >> 16 & 31],
        97 + _WORD[b >> 21 & 63], _TWO_BITS[b >> 27 & 1023] | _BIT[b >> 37 & 31],
        121 + _WORD[b >> 42 & 63], _TWO_BITS[b >> 48 & 1023] | _BIT[b >> 58 & 31],
    )  # fmt: skip
    return Print(print_, bits)


class SeenLayout:
    """The buckets of one shard, for scripts that name every key they touch."""

    def __init__(self, keys: TaskKeys, *, mode: Mode, rate: float) -> None:
        self._name = keys.fingerprints if mode == "exact" else keys.filter
        self.mode: Mode = mode
        self._rate = rate

    def count(self, layer: int) -> int:
        """Return how many buckets a layer has."""
        return buckets_of(layer, self.mode, self._rate)

    def bucket(self, layer: int, number: int) -> str:
        """Return the key of a bucket."""
        return self._name(layer, number)

    def buckets(self, seen: Print, layers: int) -> list[str]:
        """Return the key of the URL's bucket in each layer, newest last."""
        concerned = Buckets(self, layers)
        concerned.numbers(seen)
        return concerned.names


class Buckets:
    """The distinct buckets of one script call, numbered from 1 as they are met."""

    def __init__(self, layout: SeenLayout, layers: int) -> None:
        self._layout = layout
        self._layers = [(layer, layout.count(layer)) for layer in range(layers)]
        self._known: dict[tuple[int, int], int] = {}

    def numbers(self, seen: Print) -> list[int]:
        """Return the number of the URL's bucket in each layer, newest last."""
        known, fingerprint = self._known, seen.unsigned
        return [
            known.setdefault((layer, fingerprint * count >> 64), len(known) + 1)
            for layer, count in self._layers
        ]

    @property
    def names(self) -> list[str]:
        """The keys, in order of their numbers."""
        return [self._layout.bucket(layer, number) for layer, number in self._known]


def block_span(seen: Print) -> tuple[int, int]:
    """Return the first and the last byte of the URL's block in any of its buckets."""
    first = (seen.bits[0] - 1) * BLOCK_BYTES
    return first, first + BLOCK_BYTES - 1


def holds(block: bytes | bytearray, seen: Print) -> bool:
    """Tell whether all bits of a URL are set in its block (empty: nothing was ever put there)."""
    _, *pairs = _BITS.unpack(seen.bits)
    for first, mask in zip(pairs[::2], pairs[1::2], strict=True):
        word = int.from_bytes(block[first - 1 : first + 3], "little", signed=True)
        if word & mask != mask:
            return False
    return True
