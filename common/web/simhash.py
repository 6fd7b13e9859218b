"""A 64-bit SimHash of a text: near-duplicates differ in few bits (Charikar 2002).

The features are pairs of neighbouring words, each counted once for every time it stands there. The
sums of all 64 bits are kept side by side in one large integer: a hash is added by eight look-ups
and not by 64 steps.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import xxhash

MAX_WORDS: Final = 20_000
"""Words that count; bounds the time a page can take."""
_LANE_BITS: Final = 16
_WORD: Final = re.compile(r"\w+")
_SPREAD: Final = tuple(
    sum(1 << (_LANE_BITS * bit) for bit in range(8) if byte >> bit & 1) for byte in range(256)
)
_LANES: Final = tuple(_LANE_BITS * 8 * position for position in range(8))


def simhash(text: str) -> str | None:
    """Return the hash as 16 hex digits, or None for a text without words."""
    words = [found[0] for found, _ in zip(_WORD.finditer(text.lower()), range(MAX_WORDS))]  # noqa: B905 - the shorter decides
    if not words:
        return None
    features = [f"{one} {other}" for one, other in pairwise(words)] or words
    total = 0
    for feature in features:
        for byte, lane in zip(
            xxhash.xxh3_64_digest(feature.encode("utf-8", "replace")), _LANES, strict=True
        ):
            total += _SPREAD[byte] << lane
    mask, half = (1 << _LANE_BITS) - 1, len(features) / 2
    bits = sum(1 << bit for bit in range(64) if (total >> (_LANE_BITS * bit) & mask) > half)
    return f"{bits:016x}"


def distance(one: str, other: str) -> int:
    """Return in how many bits two hashes differ."""
    return (int(one, 16) ^ int(other, 16)).bit_count()
