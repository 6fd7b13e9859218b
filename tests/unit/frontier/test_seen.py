"""Where a URL lies in the seen-set: stable for ever, inside its layer, evenly spread."""

from __future__ import annotations

from collections import Counter

import pytest

from common.frontier.keys import TaskKeys
from common.frontier.seen import (
    BLOCK_BYTES,
    BUCKET_URLS,
    PIECE_BLOCKS,
    SeenLayout,
    capacity,
    fingerprint,
    layer_of,
)
from common.model.ids import JobId, Task

KEYS = TaskKeys("c", Task(JobId("j"), 3))


def test_the_hash_of_a_url_never_changes() -> None:
    """Part of the layout version: another hash would make every known URL new again."""
    seen = fingerprint("http://a.example/")
    assert seen.fingerprint == -5226537150839207088
    assert seen.halves == (b"\xdbe,\xa20\xb2\xec\x87", b"P\xcb\xd8\x16'\x9cw\xb7")
    assert seen.spots == (658240600, 1132660820)
    assert int.from_bytes(seen.halves[1], "little", signed=True) == seen.fingerprint


def test_the_place_of_a_url_never_changes() -> None:
    exact, bloom = SeenLayout(KEYS, mode="exact"), SeenLayout(KEYS, mode="bloom")
    tag = "crawlctl:c:{j:3}:"
    assert exact.places(fingerprint("http://a.example/"), 2) == [
        ([(tag + "b:1:0:0", 7520)], tag + "f:1:45"),
        ([(tag + "b:0:0:0", 1856)], tag + "f:0:11"),
    ]
    assert bloom.places(fingerprint("http://a.example/"), 1) == [
        ([(tag + "b:0:0:0", 2336), (tag + "b:0:1:0", 4032)], None)
    ]


@pytest.mark.parametrize("mode", ["exact", "bloom"])
@pytest.mark.parametrize("number", range(8))
def test_a_place_lies_inside_its_layer_and_pieces_are_at_most_eight_megabytes(
    mode: str, number: int
) -> None:
    layout, layer = SeenLayout(KEYS, mode=mode), layer_of(mode, number)  # type: ignore[arg-type]
    assert PIECE_BLOCKS * BLOCK_BYTES == 8 * 1024 * 1024
    assert layer.buckets * BUCKET_URLS == capacity(number)
    for at in range(500):
        spots, bucket = layout.places(fingerprint(f"http://a.example/{at}"), number + 1)[0]
        for key, first in spots:
            piece = int(key.rpartition(":")[2])
            assert first % BLOCK_BYTES == 0
            assert 0 <= first < PIECE_BLOCKS * BLOCK_BYTES
            assert piece * PIECE_BLOCKS + first // BLOCK_BYTES < layer.blocks
        assert (bucket is None) == (mode == "bloom")
        assert bucket is None or int(bucket.rpartition(":")[2]) < layer.buckets


def test_a_full_layer_fills_its_buckets_evenly_enough_to_stay_packed() -> None:
    layout = SeenLayout(KEYS, mode="exact")
    buckets = Counter(
        layout.places(fingerprint(f"http://h{at % 7}.example/{at}"), 1)[0][1]
        for at in range(capacity(0))
    )
    assert len(buckets) == layer_of("exact", 0).buckets
    assert max(buckets.values()) < 512


@pytest.mark.parametrize(("mode", "rate"), [("exact", 4e-3), ("bloom", 2e-6)])
def test_false_hits_of_a_full_filter_are_as_rare_as_stated(mode: str, rate: float) -> None:
    """Counted bit by bit as offer.lua does. Mode exact confirms each hit by its fingerprint."""
    layout = SeenLayout(KEYS, mode=mode)  # type: ignore[arg-type]
    blocks: dict[tuple[str, int], list[int]] = {}

    def spots(url: str) -> list[tuple[tuple[str, int], bytes]]:
        seen = fingerprint(url)
        ((places, _),) = layout.places(seen, 1)
        return list(zip(places, seen.halves, strict=False))

    for at in range(capacity(0)):
        for place, bits in spots(f"http://a.example/{at}"):
            words = blocks.setdefault(place, [0] * 8)
            for word, bit in enumerate(bits):
                words[word] |= 1 << (bit & 31)
    probes = 40_000
    hits = sum(
        all(
            all(blocks.get(place, [0] * 8)[word] >> (bit & 31) & 1 for word, bit in enumerate(bits))
            for place, bits in spots(f"http://b.example/{at}")
        )
        for at in range(probes)
    )
    assert hits <= max(3, rate * probes)


def test_all_keys_of_a_shard_share_one_hash_tag() -> None:
    names = [getattr(KEYS, name) for name in TaskKeys.__slots__ if not name.startswith("_")]
    layout = SeenLayout(KEYS, mode="exact").places(fingerprint("http://a.example/"), 3)
    names += [key for spots, bucket in layout for key in (spots[0][0], bucket)]
    names.append(KEYS.queue("http://[::1]:80{x}"))  # type: ignore[arg-type]
    assert {name[: name.index("}") + 1] for name in names} == {"crawlctl:c:{j:3}"}
    assert len(set(names)) == len(names)
