"""Where a URL lies in the seen-set of its shard: one hash, cut into independent slices.

The seen-set of a shard is a Bloom filter that grows in layers and, in mode ``exact``, buckets of
64-bit fingerprints that confirm every "seen" (``offer.lua`` tests and updates both). Layer ``n``
holds :func:`capacity` URLs. A filter is cut into chunks of 1 KB, each read once a script however
many URLs of a batch lie there; a URL chooses a chunk, blocks within it, words within each block,
and sets three bits in each word. What that costs is one read a URL, not one a bit.

Mode ``exact``: one word a URL at 6 bits a URL. Such a small filter does, since a false hit costs
one look at the fingerprints and never a URL. Mode ``bloom``: two blocks of 64 bytes with three
words each, at as many bits a URL as the stated rate needs. The rates of all layers add up; each of
the first eight may use an eighth of it, later ones ever less, so that the sum stays below.

Strings hold at most 8 MB, because allocating a larger one would block the server. Just after a
layer was begun its filter is larger than what is in it: up to four times what all URLs need.
"""

from __future__ import annotations

import math
from functools import lru_cache
from struct import Struct
from typing import Literal, NamedTuple

import xxhash

from common.frontier.keys import TaskKeys

Mode = Literal["exact", "bloom"]

CHUNK_BYTES = 1024
PIECE_CHUNKS = 8 * 1024 * 1024 // CHUNK_BYTES
BUCKET_URLS = 384
"""Mean fingerprints a full bucket; well under the 512 up to which Redis packs a set of integers."""
FIRST_BUCKETS = 16
GROWTH = 4
FULL_SHARES = 8
"""Layers that may each use 1/8 of the stated rate."""

_M64 = (1 << 64) - 1
_WORD_BITS = 32
_BITS_A_WORD = 3
_EXACT_BITS = 6.0


class Form(NamedTuple):
    """How a URL is spread over its chunk."""

    blocks: int
    """Blocks a URL."""
    words: int
    """Words a URL in each of its blocks."""
    block_words: int
    """Words a block."""
    packed: Struct
    """What a script is told of a URL: spot, then a block and its (word, mask) pairs, for each."""

    @property
    def chunk_blocks(self) -> int:
        """Blocks a chunk."""
        return CHUNK_BYTES // (4 * self.block_words)


FORMS: dict[Mode, Form] = {
    "exact": Form(1, 1, 1, Struct("<IHBi")),
    "bloom": Form(2, 3, 16, Struct("<I" + 2 * "HBiBiBi")),
}


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
def chunks_of(mode: Mode, rate: float, layer: int) -> int:
    """Return how many chunks the filter of a layer has."""
    bits = _EXACT_BITS if mode == "exact" else bits_for(rate_of_layer(rate, layer))
    return math.ceil(capacity(layer) * bits / (8 * CHUNK_BYTES))


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
    form = FORMS["bloom"]
    a_chunk = 8 * CHUNK_BYTES / bits
    spread = math.sqrt(3 / a_chunk)
    # Three points stand for the normal distribution of the chunks' loads (Gauss-Hermite).
    loads = ((1 - spread, 1 / 6), (1.0, 2 / 3), (1 + spread, 1 / 6))
    return sum(
        weight * _block_rate(a_chunk * load * form.blocks / form.chunk_blocks) ** form.blocks
        for load, weight in loads
        if load > 0
    )


def _block_rate(mean: float) -> float:
    """Return the chance that all words of a URL hit in a block that holds ``mean`` URLs' share."""
    form = FORMS["bloom"]
    total, weight = 0.0, math.exp(-mean)
    for count in range(int(mean + 12 * math.sqrt(mean) + 20)):
        if count:
            weight *= mean / count
        total += weight * _word_rate(count * form.words) ** form.words
    return total


@lru_cache(maxsize=4096)
def _word_rate(picks: int) -> float:
    """Return the chance that three random bits of a word are set, after picks of its block."""
    other = 1 - 1 / FORMS["bloom"].block_words

    def avoided(bits: int) -> float:
        return (other + (1 - other) * (1 - bits / _WORD_BITS) ** _BITS_A_WORD) ** picks

    # Of three random bits all, two or one may be distinct.
    n = _WORD_BITS
    shares = (1 / n**2, 3 * (n - 1) / n**2, (n - 1) * (n - 2) / n**2)
    one, two, three = avoided(1), avoided(2), avoided(3)
    hits = (1 - one, 1 - 2 * one + two, 1 - 3 * one + 3 * two - three)
    return sum(share * hit for share, hit in zip(shares, hits, strict=True))


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
    return false_positive_rate(8 * CHUNK_BYTES * chunks_of("bloom", rate, layer) / urls)


class Print(NamedTuple):
    """The hash of a URL, as the scripts want it."""

    fingerprint: int
    """Signed 64-bit, as Redis packs sets of integers."""
    packed: bytes
    """Where its bits are; see :class:`Form`."""


_EXACT = FORMS["exact"].packed.pack
_BLOOM = FORMS["bloom"].packed.pack
_BIT = [1 << at if at < 31 else -(1 << 31) for at in range(32)]
_MASKS = [
    _BIT[at & 31] | _BIT[at >> 5 & 31] | _BIT[at >> 10 & 31] for at in range(1 << 15)
]  # the words of Lua's bit library are signed


def fingerprint(url: str, mode: Mode) -> Print:
    """Return the hash of a canonical URL (xxh3; stable for ever, part of the layout version)."""
    raw = url.encode()
    both = xxhash.xxh3_128_intdigest(raw)
    a, b = both & _M64, both >> 64
    signed = b - (1 << 64) if b >> 63 else b
    if mode == "exact":
        return Print(signed, _EXACT(a >> 32, a & 0xFF, 1, _MASKS[a >> 8 & 0x7FFF]))
    spot = xxhash.xxh3_64_intdigest(raw, 1) >> 32
    return Print(
        signed,
        _BLOOM(
            spot,
            a & 15, (a >> 4 & 15) + 1, _MASKS[a >> 8 & 0x7FFF], (a >> 23 & 15) + 1,
            _MASKS[a >> 27 & 0x7FFF], (a >> 42 & 15) + 1, _MASKS[a >> 46 & 0x7FFF],
            b & 15, (b >> 4 & 15) + 1, _MASKS[b >> 8 & 0x7FFF], (b >> 23 & 15) + 1,
            _MASKS[b >> 27 & 0x7FFF], (b >> 42 & 15) + 1, _MASKS[b >> 46 & 0x7FFF],
        ),
    )  # fmt: skip


class SeenLayout:
    """The filters and buckets of one shard, for scripts that name every key they touch."""

    def __init__(self, keys: TaskKeys, *, mode: Mode, rate: float) -> None:
        self._keys = keys
        self.mode: Mode = mode
        self.form = FORMS[mode]
        self.confirms = mode == "exact"
        self._rate = rate
        self._pieces: list[list[str]] = []

    def chunks(self, layer: int) -> int:
        """Return how many chunks the filter of a layer has."""
        return chunks_of(self.mode, self._rate, layer)

    def pieces(self, layer: int) -> list[str]:
        """Return the keys of a layer's filter, in order."""
        while len(self._pieces) <= layer:
            number = len(self._pieces)
            count = -(-self.chunks(number) // PIECE_CHUNKS)
            self._pieces.append([self._keys.filter_piece(number, at) for at in range(count)])
        return self._pieces[layer]

    def buckets(self, seen: Print, layers: int) -> list[str]:
        """Return the key of the URL's bucket in each layer, newest first; none in mode bloom."""
        if not self.confirms:
            return []
        unsigned = seen.fingerprint & _M64
        return [
            self._keys.fingerprints(layer, unsigned * buckets_of(layer) >> 64)
            for layer in range(layers - 1, -1, -1)
        ]

    def chunk(self, seen: Print, layer: int) -> tuple[str, int]:
        """Return the key and the first byte of the URL's chunk in a layer."""
        (spot,) = _SPOT.unpack_from(seen.packed)
        piece, at = divmod(spot * self.chunks(layer) >> 32, PIECE_CHUNKS)
        return self.pieces(layer)[piece], at * CHUNK_BYTES


_SPOT = Struct("<I")


def holds(chunk: bytes | bytearray, seen: Print, form: Form) -> bool:
    """Tell whether all bits of a URL are set in its chunk."""
    values = form.packed.unpack(seen.packed)
    step = 1 + 2 * form.words
    for at in range(1, len(values), step):
        block = values[at] * form.block_words
        for pair in range(at + 1, at + step, 2):
            first = 4 * (block + values[pair] - 1)
            word = int.from_bytes(chunk[first : first + 4].ljust(4, b"\0"), "little", signed=True)
            if word & values[pair + 1] != values[pair + 1]:
                return False
    return True
